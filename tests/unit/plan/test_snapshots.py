"""Folders of snapshots: versions from names, formats from suffixes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stores import At

from headrace.errors import SnapshotInvalidError, SourceLocation
from headrace.model.project import ProjectSettings
from headrace.model.snapshots import StoredSnapshots, Version
from headrace.plan.snapshots import SnapshotReader, format_of, is_complete, list_snapshots, parse_name


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("7", 7),
        ("0007.csv.gz", 7),
        ("version=12", 12),
        ("2026-01-31", date(2026, 1, 31)),
        ("date=2026-01-31", date(2026, 1, 31)),
        ("2026-01-31.snappy.parquet", date(2026, 1, 31)),
        ("2026-01-31T08-30-00", datetime(2026, 1, 31, 8, 30)),
        ("2026-01-31_0830.json", datetime(2026, 1, 31, 8, 30)),
        ("2026-02-30", None),
        ("latest", None),
        ("v1", None),
    ],
)
def test_the_name_of_a_snapshot_is_its_version(name: str, version: Version | None) -> None:
    assert parse_name(name) == version
    assert type(parse_name(name)) is type(version)


def test_a_snapshot_is_complete_if_it_has_files_and_nothing_writes_it(at: At, tmp_path: Path) -> None:
    for name in ("2/part-0.parquet", "10/part-0.parquet", "3/_SUCCESS", "4/_temporary/0", "4/part-0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("5.csv", ".6.csv", "_7.csv", "other.csv"):
        (tmp_path / name).touch()
    found = {path.name: version for path, version in list_snapshots(at(tmp_path))}
    assert found == {"2": 2, "3": 3, "4": 4, "10": 10, "5.csv": 5, "other.csv": None}
    complete = {name for name in found if is_complete(at(tmp_path / name))}
    assert complete == {"2", "10", "5.csv", "other.csv"}
    assert list_snapshots(at(tmp_path / "missing")) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_snapshot_without_a_version_in_its_name_is_renamed_to_the_next_one(
    at: At, tmp_path: Path, make_project: Callable[[], ProjectSettings], *, is_folder: bool
) -> None:
    name, new = ("orders.v2", "8") if is_folder else ("orders.v2.json.gz", "8.json.gz")
    for file in ("7.json", f"{name}/part-0.json" if is_folder else name):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    flow: Any = SimpleNamespace(name="orders", location=SourceLocation("orders.py", 3))
    session: Any = None
    folder = at(tmp_path)
    reader = SnapshotReader(flow, StoredSnapshots("./orders"), make_project(), session, None)
    with pytest.raises(SnapshotInvalidError) as caught:
        reader._find_folder(folder, ())
    scheme = folder.files.scheme
    move = "mv" if scheme == "file" else f"aws {scheme} mv" + (" --recursive" if is_folder else "")
    assert caught.value.remedies[0].endswith(f":   {move} {folder / name} {folder / new}")


def test_all_files_of_a_snapshot_have_one_format(at: At, tmp_path: Path) -> None:
    for name, format in (
        ("1/a.json.gz", "json"),
        ("1/k=1/b.jsonl", "json"),
        ("1/c.csv", None),
        ("2.txt", None),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        assert format_of(at(tmp_path / name.partition("/")[0])) == format
