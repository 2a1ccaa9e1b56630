"""What a killed process leaves is removed by the next one, and what a living one has is not."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from headrace.runtime import places
from headrace.runtime.places import Scratch


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_it_is_gone_when_it_is_removed() -> None:
    scratch = Scratch()
    (scratch.folder("tmp") / "file").write_text("x")
    scratch.remove()
    assert not scratch.path.exists()


def test_a_living_process_keeps_its_own() -> None:
    first, second = Scratch(), Scratch()
    assert first.path.is_dir()
    assert second.path.is_dir()
    first.remove()
    second.remove()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1];"
        " from headrace.runtime.places import Scratch; Scratch().folder('local');"
        " os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    scratch = Scratch()
    until(lambda: list(tmp_path.iterdir()) == [scratch.path], "only the new folder is left")
    scratch.remove()


def test_a_process_that_starts_between_the_file_and_its_lock_takes_no_folder_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def lock_late(file: Any, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            places._remove_abandoned(removed)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    scratch = Scratch()
    assert removed and not removed[0].exists(), "another process has taken the first folder away"
    assert scratch.folder("local").is_dir()
    scratch.remove()


def test_folders_that_the_user_sets_are_relative_to_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(places.BROKER_VARIABLE, "demo/broker")
    (tmp_path / "pipeline").mkdir()
    with places.working_in(tmp_path / "pipeline"):
        assert Path.cwd() == tmp_path / "pipeline"
        assert places.broker_folder() == tmp_path / "demo" / "broker"
