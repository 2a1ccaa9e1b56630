"""The Delta log in all the forms that the protocol knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lake import Lake, rows

from headrace.verify.delta_log import LogDamagedError, load_table_log
from headrace.verify.stored import StoredPath

At = Callable[[Path], StoredPath]

Verify = Any


def test_a_snapshot_from_a_checkpoint_is_the_same_as_from_the_commits(lake: Lake, at: At) -> None:
    table = lake.table()
    flow = table.flow()
    for number in range(5):
        flow.append({0: (number * 10, number * 10 + 10)})
    table.delete([1, 2], table.active()[0])
    whole = load_table_log(at(table.path))
    table.forget_log(4)
    later = load_table_log(at(table.path))
    assert (whole.base_version, later.base_version) == (-1, 4)
    assert later.first_version == 5
    assert later.active().keys() == whole.active().keys()
    assert {f.rows for f in later.active().values()} == {10}
    assert later.metadata.id == table.id
    assert later.metadata.properties == table.properties


def test_a_checkpoint_in_parts(lake: Lake, at: At) -> None:
    table = lake.table()
    table.flow().append({0: (0, 10)})
    table.flow("another").append({0: (0, 5)})
    table.forget_log(3)
    (single,) = table.log.glob("*.checkpoint.parquet")
    content = pq.read_table(single)
    half = content.num_rows // 2
    for part, piece in enumerate((content.slice(0, half), content.slice(half)), start=1):
        pq.write_table(piece, table.log / f"{3:020d}.checkpoint.{part:010d}.{2:010d}.parquet")
    single.unlink()
    assert len(load_table_log(at(table.path)).active()) == 2
    (table.log / f"{3:020d}.checkpoint.{2:010d}.{2:010d}.parquet").unlink()
    with pytest.raises(LogDamagedError):
        load_table_log(at(table.path))


def test_a_checkpoint_with_sidecars(lake: Lake, at: At) -> None:
    table = lake.table()
    table.flow().append({0: (0, 10)})
    version = table.version
    table.forget_log(version)
    (single,) = table.log.glob("*.checkpoint.parquet")
    sidecars = table.log / "_sidecars"
    sidecars.mkdir()
    content = pq.read_table(single, columns=["add"])
    pq.write_table(content.filter(content.column("add").is_valid()), sidecars / "files.parquet")
    single.unlink()
    lines = [table.metadata(), {"sidecar": {"path": "files.parquet", "sizeInBytes": 1}}]
    name = f"{version:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (table.log / name).write_text("\n".join(json.dumps(line) for line in lines))
    assert len(load_table_log(at(table.path)).active()) == 1


def test_the_files_of_an_earlier_version(lake: Lake, at: At) -> None:
    table = lake.table()
    flow = table.flow()
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)})
    log = load_table_log(at(table.path))
    assert [len(log.active(version)) for version in (1, 2, 3)] == [0, 1, 2]


def test_paths_are_decoded(lake: Lake, at: At) -> None:
    table = lake.table()
    add = table.write(rows(range(3)))
    path = add["add"]["path"]
    folder = table.path / "day=a b"
    folder.mkdir()
    (table.path / path).rename(folder / path)
    add["add"]["path"] = f"day=a%20b/{path}"
    table.commit([add])
    log = load_table_log(at(table.path))
    (file,) = log.active().values()
    assert log.file_path(file.path).look() is not None


def test_a_folder_that_is_no_table(tmp_path: Path, at: At) -> None:
    with pytest.raises(LogDamagedError):
        load_table_log(at(tmp_path))


def test_a_commit_below_a_gap_is_a_finding(lake: Lake, verify: Verify) -> None:
    table = lake.table()
    flow = table.flow()
    for number in range(3):
        flow.append({0: (number * 10, number * 10 + 10)})
    file = table.log / f"{2:020d}.json"
    stray = file.read_bytes()
    table.forget_log(4)
    table.commit([], operation="SET TBLPROPERTIES")
    before = [finding.code for finding in verify().findings]
    file.write_bytes(stray)
    (finding,) = [one for one in verify().findings if one.code not in before]
    assert (finding.code, finding.place["version"]) == ("COMMIT_STRAY", 2)


def test_a_batch_that_only_the_ledger_holds_is_a_finding(lake: Lake, verify: Verify) -> None:
    table = lake.table()
    flow = table.flow()
    for number in range(3):
        flow.append({0: (number * 10, number * 10 + 10)})
    table.fold("bronze", 0, table.version, flow.said)
    assert not verify().findings
    # The commit of batch 2 was never part of the table: others have committed its version.
    (table.log / f"{table.version:020d}.json").unlink()
    table.version -= 1
    for _ in range(2):
        table.commit([], operation="SET TBLPROPERTIES")
    table.forget_log(table.version)
    table.commit([], operation="SET TBLPROPERTIES")
    assert "BATCH_NOT_HELD" in [finding.code for finding in verify().findings]
