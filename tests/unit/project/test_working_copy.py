from pathlib import Path

import pytest
from stores import memory_location

from headrace.project.working_copy import WorkingCopy
from headrace.runtime.places import CACHE_VARIABLE
from headrace.storage.locate import locate


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
    assert WorkingCopy(folder).root == copy.root
    assert file.read_text() == "of another machine"
    assert not (copy.root / "stray.py").exists()
