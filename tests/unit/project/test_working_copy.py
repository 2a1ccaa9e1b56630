from pathlib import Path

import pytest
from stores import memory_location

from headrace.project.working_copy import WorkingCopy
from headrace.runtime.places import CACHE_VARIABLE
from headrace.storage.layout import locate


def test_a_local_folder_is_its_own_working_copy(tmp_path: Path) -> None:
    assert WorkingCopy(locate(tmp_path)).root == tmp_path


def test_files_of_an_object_store_are_copied_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = memory_location() / "ingest"
    (folder / "orders.json").create("{}")
    (folder / "schemas" / "orders.json").create("old")
    copy = WorkingCopy(folder)
    file, schema = copy.root / "orders.json", copy.root / "schemas" / "orders.json"
    assert (file.read_text(), schema.read_text()) == ("{}", "old")

    file.write_text("new")
    schema.unlink()
    copy.keep([file], [schema])
    assert [str(path) for path in folder.walk()] == ["memory://lake/ingest/orders.json"]

    (folder / "orders.json").replace("of another machine")
    (copy.root / "stray.py").write_text("")
    root = copy.root
    del copy  # the command ends
    copy = WorkingCopy(folder)
    assert copy.root == root
    assert file.read_text() == "of another machine"
    assert not (copy.root / "stray.py").exists()


def test_two_commands_at_once_have_a_copy_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = memory_location() / "ingest"
    (folder / "orders.json").create("old")
    first = WorkingCopy(folder)
    written, kept = first.root / "customers.json", first.root / "orders.json"
    written.write_text("of the first command")
    (folder / "orders.json").replace("new")
    second = WorkingCopy(folder)
    assert (second.root / "orders.json").read_text() == "new"
    assert (written.read_text(), kept.read_text()) == ("of the first command", "old")
    first.keep([written], [])
    assert (folder / "customers.json").read_text() == "of the first command"
