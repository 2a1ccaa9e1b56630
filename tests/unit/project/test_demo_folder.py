"""The demo's folder: never somebody else's, and never a loss of what the user has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DemoFolderTakenError, StorageUnwritableError
from headrace.project.demo.folder import open_demo, rewrite, write_pipeline

FILES = {"headrace.yml": "name: demo\n", "transformations/sales.py": "x = 1\n"}


def test_a_new_folder_holds_the_pipeline(tmp_path: Path) -> None:
    demo = open_demo(tmp_path / "demo")
    assert not demo.renewed
    write_pipeline(demo, FILES)
    assert (tmp_path / "demo/transformations/sales.py").read_text() == "x = 1\n"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    assert not open_demo(tmp_path).renewed


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_no_demo_has_written_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "mine"
    if kind == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("years of work")
    else:
        target.write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DemoFolderTakenError) as caught:
        open_demo(target)
    assert caught.value.code == "DEMO_FOLDER_TAKEN"
    assert caught.value.params == {"path": str(target)}
    assert sorted(tmp_path.rglob("*")) == before


def test_an_earlier_demo_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    write_pipeline(open_demo(path), FILES)
    (path / "lake/tables").mkdir(parents=True)
    (path / "lake/tables/row").write_text("old")
    again = open_demo(path)
    again.broker.mkdir(parents=True)
    (again.broker / "old").write_text("old")
    assert again.renewed
    write_pipeline(again, FILES)
    assert not (path / "lake").exists()
    assert not again.broker.exists()
    assert (path / "headrace.yml").read_text() == "name: demo\n"


@pytest.mark.parametrize(
    ("name", "done"), [("transformations/sales.py", "changed"), ("transformations/more.py", "added")]
)
def test_a_folder_in_which_the_user_has_changed_or_added_a_file_is_left_alone(
    tmp_path: Path, name: str, done: str
) -> None:
    path = tmp_path / "demo"
    write_pipeline(open_demo(path), FILES)
    (path / ".git").mkdir()
    (path / ".git/config").write_text("mine")
    for other in (".DS_Store", "transformations/.sales.py.swp", "edited/sales.py"):
        (path / other).parent.mkdir(exist_ok=True)
        (path / other).write_text("of a tool, or of an earlier version")
    assert open_demo(path).renewed
    (path / name).write_text("x = 2  # mine\n")
    with pytest.raises(DemoFolderTakenError, match=f"{name} was {done} after an earlier demo"):
        open_demo(path)
    assert (path / name).read_text() == "x = 2  # mine\n"


def test_a_demo_that_ended_before_it_wrote_anything_is_renewed_not_refused(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    open_demo(path)
    assert open_demo(path).renewed


def test_a_demo_that_is_killed_while_it_writes_is_renewed_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = tmp_path / "demo", 0

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return write(*given)

        return call

    steps: list[Callable[[], object]] = [
        lambda: write_pipeline(open_demo(path), {**FILES, "more.sql": "SELECT 1"}),
        lambda: rewrite(open_demo(path), "transformations/sales.py", "x = 1", "x = 2"),
        lambda: rewrite(open_demo(path), "transformations/sales.py", "x = 2", "x = 3"),
        lambda: write_pipeline(open_demo(path), FILES),
    ]
    for step in steps:
        for most in range(8):
            with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                left = most
                patch.setattr(os, "fdopen", dying(os.fdopen))
                patch.setattr(Path, "replace", dying(Path.replace))
                patch.setattr(Path, "write_text", dying(Path.write_text))
                step()
            open_demo(path)
        step()
    assert open_demo(path).renewed


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo"
    write_pipeline(open_demo(path), FILES)
    (path / "headrace.yml").unlink()
    (path / "headrace.yml").symlink_to("/proc/self/mem")
    with pytest.raises(StorageUnwritableError, match="cannot be read or written"):
        open_demo(path)


def test_two_demos_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        open_demo(tmp_path / "demo").locked(),
        pytest.raises(DemoFolderTakenError),
        open_demo(tmp_path / "demo").locked(),
    ):
        pass
    with open_demo(tmp_path / "demo").locked():
        pass
