"""The demo's folder: never somebody else's, and never a loss of what the user has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import DemoFolderTakenError, StorageUnwritableError
from headrace.project.demo.folder import choose_folder, write_demo

FILES = {"headrace.yml": "name: demo\n", "transformations/sales.py": "x = 1\n"}


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_gets_the_pipeline(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "demo"
    if exists:
        path.mkdir()
    demo = write_demo(path, FILES)
    assert (path / "transformations/sales.py").read_text() == "x = 1\n"
    assert demo.scratch.is_dir()


@pytest.mark.parametrize("kind", ["folder", "file", "demo"])
def test_a_folder_with_files_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "mine"
    if kind == "file":
        target.write_text("mine")
    elif kind == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
    else:
        write_demo(target, FILES)
        (target / "transformations/sales.py").write_text("x = 2\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DemoFolderTakenError) as refused:
        write_demo(target, FILES)
    assert refused.value.params == {"path": str(target)}
    assert sorted(tmp_path.rglob("*")) == before
    if kind == "demo":
        assert (target / "transformations/sales.py").read_text() == "x = 2\n"


def test_another_demo_without_a_named_folder_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("headrace-demo", "headrace-demo-2", "headrace-demo-3"):
        assert choose_folder(None) == Path(name)
        write_demo(Path(name), FILES)
    assert choose_folder(Path("headrace-demo")) == Path("headrace-demo")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnwritableError) as refused:
        write_demo(tmp_path / "file" / "demo", FILES)
    assert refused.value.params == {"path": str(tmp_path / "file" / "demo")}
