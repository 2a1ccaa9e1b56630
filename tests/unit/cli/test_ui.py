"""`headrace ui`: its link, its errors, and the run that it can stand beside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from headrace.cli.commands.ui import _open
from headrace.declare.spec import load_project
from headrace.errors import PackageMissingError

HEADRACE = [sys.executable, "-m", "headrace", "ui", "--port", "0", "--no-open"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: none.py}]\n")
    return tmp_path


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*HEADRACE, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_prints_one_link_that_opens_and_ends_with_ctrl_c(project: Path) -> None:
    with started(project, "--json") as process:
        assert process.stdout is not None
        link = json.loads(process.stdout.readline())["url"]
        with requests.Session() as session:
            assert "Nothing has run yet" in session.get(link, timeout=10).text
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stdout.read() == ""


def test_outside_of_a_pipeline_it_needs_a_storage(tmp_path: Path) -> None:
    done = subprocess.run([*HEADRACE, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["error"]["code"] == "SPEC_NOT_FOUND"


def test_another_address_warns(project: Path) -> None:
    with started(project, "--host", "0.0.0.0") as process:
        assert process.stderr is not None
        assert "without encryption" in process.stderr.readline()
        assert "?token=" in process.stderr.readline()


@pytest.mark.parametrize("argument", ["storage-file", "storage-none", "pipeline", "host"])
def test_what_does_not_exist_is_an_error_with_a_remedy(project: Path, argument: str) -> None:
    (project / "file").write_text("")
    given = {
        "storage-file": ("--storage", "file"),
        "storage-none": ("--storage", "none"),
        "pipeline": ("--pipeline", "nope"),
        "host": ("--host", ""),
    }[argument]
    command = [*HEADRACE, *given, "--json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 2 and error["code"] == "ARGUMENT_INVALID" and error["remedies"]
    assert error["params"]["argument"] == argument.partition("-")[0]


def test_a_missing_package_names_the_extra(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith(("headrace.dashboard", "uvicorn"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(PackageMissingError) as raised:
        _open(load_project(project))
    assert raised.value.params == {"package": "uvicorn"}
    assert "headrace[ui]" in str(raised.value)


def test_a_triggered_run_has_no_dashboard() -> None:
    from headrace.cli.commands.run import run

    assert CliRunner().invoke(run, ["--ui"]).exit_code != 0
