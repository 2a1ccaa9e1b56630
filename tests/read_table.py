"""A table of three small files in each of two partitions, and a flow that reads it; without Spark."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from headrace.maintain.condition import TableCondition, examine_table
from headrace.maintain.holders import find_holders
from headrace.model.maintenance import TablePolicy
from headrace.model.names import TableName
from headrace.sources.delta.facts import DeltaPosition
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity, seed_files, write_checkpoint
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_snapshot import load_snapshot

ORDERS = TableName("default", "orders")


class ReadTable:
    """A storage with one table of three small files in each of two partitions."""

    def __init__(self, folder: Location) -> None:
        self.storage = Storage(folder)
        self.path = self.storage.table(ORDERS)
        for number in range(3):
            self.append(number)

    def append(self, number: int) -> None:
        rows = pa.table({"id": [number, number + 10], "day": ["a b", "c"]})
        cleans = {"delta.enableExpiredLogCleanup": "false"}
        write_deltalake(self.disk, rows, mode="append", partition_by=["day"], configuration=cleans)

    @property
    def disk(self) -> Path:
        """The table's folder on this disk, also if it is a part of an object store for the code."""
        return Path(self.path.path.removeprefix("memory://"))

    @property
    def table_id(self) -> str:
        return load_snapshot(self.path).table_id

    def compact(self) -> None:
        DeltaTable(self.disk).optimize.compact()

    def age(self, days: float) -> None:
        """Make all data files and commits older, and let a pipeline own the table."""
        then = time.time() - days * 86400
        for file in self.disk.rglob("*"):
            os.utime(file, (then, then))
        for file in (self.disk / "_delta_log").glob("*.json"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for line in lines:
                line.get("metaData", {}).get("configuration", {})["headrace.pipeline"] = "shop"
                for action in line.values():
                    for key in ("timestamp", "deletionTimestamp"):
                        if key in action:
                            action[key] = int(then * 1000)
            file.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines))

    def add_reader(self, version: int | None, index: int = 99, *, is_snapshot: bool = False) -> None:
        """A flow that has read the table up to a version; ``None`` for one that has read nothing."""
        source = SourceIdentity(index=0, kind="delta", identity={"table_id": self.table_id, "path": "x"})
        target = TableName("default", "large")
        identity = CheckpointIdentity(
            pipeline="shop", flow="large", dataset=str(target), generation=1, table_id="t", sources=(source,)
        )
        seed = {}
        if version is not None:
            at = DeltaPosition(
                table_id=self.table_id, version=version, index=index, is_snapshot=is_snapshot, format=1
            )
            seed = seed_files({0: at}, (source,), "2")
        folder = self.storage.checkpoint(target, "large", 1)
        folder.delete_folder()
        write_checkpoint(folder, identity, seed)

    def examine(self, policy: TablePolicy | None = None) -> TableCondition:
        holders = find_holders(self.storage, ORDERS, self.table_id)
        return examine_table(self.path, policy or TablePolicy(), holders)

    def expired(self) -> int:
        return len(self.examine().vacuum.expired)
