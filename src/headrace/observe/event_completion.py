"""Finds batches that a table's commits have and the event log lacks, such as after a crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from headrace.model.event_columns import Row
from headrace.model.names import TableName
from headrace.observe.batch_facts import BatchFacts
from headrace.observe.event_rows import RowBuilder
from headrace.observe.event_table import EventTable, sql_time
from headrace.storage.layout import Storage
from headrace.storage.table_log import LoggedCommit, newest_commits

_MARGIN = timedelta(minutes=10)
"""Events of several flows of one table may be logged in another order than their commits."""
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_MOST = 10_000
"""The number of newest commits of a table that are compared with the log."""


def find_missing(
    storage: Storage, table: EventTable, builder: RowBuilder, since: Mapping[TableName, datetime | None]
) -> list[Row]:
    """The rows of committed batches and refreshes that the event log lacks, in the order of their commits.

    Args:
        since: The tables to compare, and the time from which; ``None`` is the last batch in the log.

    Raises:
        Exception: The event log or the log of a table cannot be read.
    """
    newest = _newest_batches(table) if any(at is None for at in since.values()) else {}
    committed: list[tuple[datetime, BatchFacts]] = []
    for name, at in since.items():
        first = at or newest.get(str(name), _BEGINNING) - _MARGIN
        committed += _batches(storage, name, first)
    if not committed:
        return []
    logged = _logged_ids(table, min(at for at, _ in committed) - _MARGIN)
    found = [one for one in committed if one[1].id not in logged]
    if not found:
        return []
    updates = _updates(table)
    found.sort(key=lambda one: (one[0], one[1].version))
    return [builder.batch_row(at, facts, _update_of(facts, at, updates)) for at, facts in found]


def _batches(storage: Storage, name: TableName, first: datetime) -> Iterator[tuple[datetime, BatchFacts]]:
    """The batches and refreshes that were committed to a table since a time, newest first."""
    for commit in newest_commits(storage.table(name), _MOST):
        if commit.at < first:
            return
        if (facts := _facts(name, commit)) is not None:
            yield commit.at, facts


def _facts(name: TableName, commit: LoggedCommit) -> BatchFacts | None:
    said = commit.metadata
    if said is None or not commit.is_ours or "opens" in said or "replay" in said:
        return None
    is_view = "view" in said
    return BatchFacts(
        dataset=name,
        flow=str(name) if is_view else str(said["flow"]),
        key=(str(said["update"]),) if is_view else (str(said["checkpoint"]), int(said["batch"])),
        version=commit.version,
        rows=int(said.get("accepted", 0)),
        upserted=int(said["inserted"]) + int(said["updated"]) if "inserted" in said else None,
        deleted=int(said["deleted"]) + int(said["truncated"]) if "inserted" in said else None,
        quarantined=int(said.get("quarantined", 0)),
        dropped=int(said.get("dropped", 0)),
        expectations=said.get("expectations", ()),
        bad_records=said.get("bad_records", ()),
    )


def _newest_batches(table: EventTable) -> dict[str, datetime]:
    """The time of the newest batch of each dataset in the log."""
    rows = table.query(
        "SELECT origin['dataset_name'] AS dataset, max(timestamp) AS newest FROM t "
        "WHERE level = 'METRICS' GROUP BY 1"
    )
    return {row["dataset"]: row["newest"] for row in rows}


def _logged_ids(table: EventTable, first: datetime) -> set[str]:
    rows = table.query(f"SELECT id FROM t WHERE level = 'METRICS' AND timestamp >= {sql_time(first)}")
    return {row["id"] for row in rows}


def _updates(table: EventTable) -> dict[str, list[tuple[datetime, str]]]:
    """The updates of each flow with the time of their beginning, oldest first."""
    rows = table.query(
        "SELECT origin['flow_name'] AS flow, origin['update_id'] AS update, min(timestamp) AS began FROM t "
        "WHERE event_type = 'flow_progress' AND level = 'INFO' GROUP BY 1, 2 ORDER BY 3"
    )
    found: dict[str, list[tuple[datetime, str]]] = {}
    for row in rows:
        found.setdefault(row["flow"], []).append((row["began"], row["update"]))
    return found


def _update_of(
    facts: BatchFacts, at: datetime, updates: Mapping[str, list[tuple[datetime, str]]]
) -> str | None:
    """The update that has committed a batch, if the log shows it."""
    if facts.batch is None:
        return str(facts.key[0])
    return next((update for began, update in reversed(updates.get(facts.flow, [])) if began <= at), None)
