"""When the rows of a table are ordered by columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from stores import At, on_disk

from headrace.maintain.condition import is_ordering_due, record_ordering
from headrace.model.maintenance import TablePolicy
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.table_snapshot import load_snapshot

ORDERS = TableName("default", "orders")


def test_a_table_is_ordered_again_after_so_many_commits(at: At, tmp_path: Path) -> None:
    storage = Storage(at(tmp_path))
    path, policy = storage.table(ORDERS), TablePolicy(small_files=3, z_order=("id",))

    def append() -> None:
        write_deltalake(on_disk(path), pa.table({"id": [1], "day": ["d"]}), mode="append")

    def is_due(policy: TablePolicy = policy) -> bool:
        return is_ordering_due(storage, ORDERS, load_snapshot(path), policy)

    append()
    assert is_due() and not is_due(TablePolicy()) and not is_due(replace(policy, compact=False))
    record_ordering(storage, ORDERS, load_snapshot(path), policy)
    assert not is_due() and is_due(replace(policy, z_order=("day", "id")))
    append()
    append()
    # A compaction in a run changes no rows.
    DeltaTable(on_disk(path)).optimize.compact()
    assert not is_due() and is_due(replace(policy, commits=2))
    append()
    assert is_due()
    # The log no longer has the commits since the last order.
    snapshot = load_snapshot(path)
    assert is_ordering_due(storage, ORDERS, replace(snapshot, commits=snapshot.commits[-1:]), policy)
    clustered = replace(snapshot, domains=frozenset({"delta.clustering"}))
    assert not is_ordering_due(storage, ORDERS, clustered, policy)
