"""The order of a table's rows by columns (Z-order): when it is due, and when it was made last."""

from __future__ import annotations

from headrace.maintain.record import load_maintenance, record_maintenance
from headrace.model.maintenance import TablePolicy
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.table_log import load_commit
from headrace.storage.table_snapshot import TableSnapshot

_CLUSTERING = "delta.clustering"


def is_ordering_due(storage: Storage, table: TableName, snapshot: TableSnapshot, policy: TablePolicy) -> bool:
    """Whether `headrace maintain` orders the rows of a table.

    This is the case if they have never been ordered by these columns, or if `small_files` commits (or
    `commits`, if these are fewer) have changed rows since then. Closed partitions are ordered when they are
    compacted.
    """
    if not policy.z_order or not policy.compact or not snapshot.files or _CLUSTERING in snapshot.domains:
        return False
    if policy.closed_partitions is not None and snapshot.partition_columns:
        return False
    last = load_maintenance(storage, table).get("ordered", {})
    if (last.get("table_id"), last.get("columns")) != (snapshot.table_id, list(policy.z_order)):
        return True
    since, wanted = int(last["version"]), min(policy.small_files, policy.commits or policy.small_files)
    # Commits that the log no longer has may have changed rows.
    number = max(snapshot.commits[0] - since - 1, 0) if snapshot.commits else 0
    for version in reversed(snapshot.commits):
        if version <= since or number >= wanted:
            break
        number += load_commit(storage.table(table), version).changes_data
    return number >= wanted


def record_ordering(storage: Storage, table: TableName, snapshot: TableSnapshot, policy: TablePolicy) -> None:
    """Record that the rows of a version were ordered."""
    if policy.z_order:
        outcome = {"version": snapshot.version, "columns": policy.z_order, "table_id": snapshot.table_id}
        record_maintenance(storage, table, "ordered", outcome)
