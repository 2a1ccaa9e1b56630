"""The health of tables: what is due, and for which table of a dataset."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console
from stores import At, on_disk

from headrace.cli.commands.status import health_table
from headrace.declare.spec import load_project
from headrace.maintain.health import examine_health
from headrace.storage.location import Location
from headrace.storage.table_snapshot import load_snapshot
from read_table import ORDERS, ReadTable


def test_the_quarantine_of_a_table_has_a_health_of_its_own(at: At, tmp_path: Path) -> None:
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(at(tmp_path)), "maintenance.small_files": "3"}
    )
    storage = settings.storage
    write_deltalake(on_disk(storage.table(ORDERS)), pa.table({"id": [1]}))
    for number in range(5):
        write_deltalake(on_disk(storage.quarantine(ORDERS)), pa.table({"id": [number]}), mode="append")
    found = list(examine_health(storage, settings.maintenance, storage.find_tables()))
    assert [one.target.title for one in found] == ["orders", "orders (quarantine)"]
    assert [one.to_json()["part"] for one in found] == ["table", "quarantine"]
    assert [[str(remark.command) for remark in one.remarks] for one in found] == [
        [],
        ["headrace maintain orders --only optimize"],
    ]


def test_the_facts_of_a_table(at: At, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = ReadTable(at(tmp_path))
    table.add_reader(1)
    rows = pa.table({"id": list(range(4000)), "day": ["c"] * 4000})
    write_deltalake(on_disk(table.path), rows, mode="append", partition_by=["day"])
    DeltaTable(on_disk(table.path)).create_checkpoint()
    table.append(9)
    hide_rows(table.path, 1000)
    # 20 kB are a large file here.
    policy = {"maintenance.target_file_size": "32k"}
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path)), **policy})
    (health,) = examine_health(settings.storage, settings.maintenance, [ORDERS])
    found = health.to_json()
    snapshot = load_snapshot(table.path)
    sizes = {one.path: one.size for one in snapshot.files}
    large = max(sizes.values())
    in_c = sum(size for path, size in sizes.items() if path.startswith("day=c"))
    assert large > 8192 and in_c > sum(sizes.values()) / 2
    assert {key: found[key] for key in EXPECTED} == EXPECTED
    assert (found["size_bytes"], found["mean_bytes"]) == (sum(sizes.values()), sum(sizes.values()) // 9)
    assert found["skew"] == round(in_c * 2 / sum(sizes.values()), 2)
    assert health.compacted is None and found["problem"] is None
    # The same facts are the columns of `headrace status --tables`.
    console = Console(width=200)
    console.print(health_table([health]))
    header, row = (re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()[:2])
    shown = dict(zip(header, row, strict=True))
    assert (shown["files"], shown["small"], shown["partitions"]) == ("9", "8", "2")
    assert (shown["commits"], shown["checkpoint"], shown["deleted"]) == ("6", "2 commits ago", "25%")
    assert (shown["skew"], shown["needed from"]) == (f"{found['skew']:.1f}", "v1 flow large")


EXPECTED = {
    "files": 9,
    "small_files": 8,
    "partitions": 2,
    "commits": 6,
    "commits_after_checkpoint": 2,
    "deleted_share": round(1000 / 4008, 4),
    "oldest_needed": {"kind": "flow", "name": "large", "version": 1},
}


def hide_rows(table: Location, number: int) -> None:
    """Commit a deletion vector that hides rows of the largest file."""
    adds = [
        action
        for file in sorted((on_disk(table) / "_delta_log").glob("*.json"))
        for line in file.read_text().splitlines()
        for name, action in json.loads(line).items()
        if name == "add"
    ]
    old = max(adds, key=lambda one: one["size"])
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": number}
    actions = [
        {"commitInfo": {"timestamp": 0, "operation": "DELETE"}},
        {"remove": {"path": old["path"], "dataChange": True}},
        {"add": {**old, "deletionVector": vector}},
    ]
    version = load_snapshot(table).version + 1
    text = "\n".join(json.dumps(one, separators=(",", ":")) for one in actions)
    (on_disk(table) / "_delta_log" / f"{version:020d}.json").write_text(text)
