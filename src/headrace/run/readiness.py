"""When a flow or view may start: every table that it reads has data, or its flows found nothing to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.model.names import TableName
from headrace.storage.location import Location
from headrace.storage.table_log import newest_commits

FeedState = Literal["pending", "retrying", "working", "failed", "skipped"]
"""How far a flow or view is: not started or in its first batch, waiting for its next attempt, running
without an error or ended without one, ended with an error, not started because of another's error."""


@dataclass(frozen=True)
class Feed:
    """A flow or view of this update that writes a table."""

    name: str  # for messages, such as ``flow orders``
    state: FeedState
    failed: tuple[str, ...] = ()  # the flows and views whose errors were the reason to skip it


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A flow or view is not started: a table that it reads was never written."""

    reason: str
    failed: tuple[str, ...]


Verdict = Literal["ready", "wait"] | Skip


def judge_inputs(
    inputs: Iterable[TableName],
    feeds: Callable[[TableName], Sequence[Feed]],
    is_written: Callable[[TableName], bool],
) -> Verdict:
    """Whether a flow or view may start.

    Returns:
        ``ready`` also if no flow of this update writes the table: it is then read as it is.
    """
    waits = False
    for table in inputs:
        found = feeds(table)
        states = {feed.state for feed in found}
        if not found or states == {"working"} or is_written(table):
            continue
        if states <= {"failed", "skipped"}:
            return _skip(table, found)
        waits |= "pending" in states or "working" not in states
    return "wait" if waits else "ready"


def _skip(table: TableName, feeds: Sequence[Feed]) -> Skip:
    failed = [feed.name for feed in feeds if feed.state == "failed"]
    roots = tuple(dict.fromkeys([*failed, *(name for feed in feeds for name in feed.failed)]))
    has = "has no data" if failed else "was skipped"
    return Skip(reason=f"it reads {table.short}, which {has}: {' and '.join(roots)} failed", failed=roots)


def is_written(path: Location) -> bool:
    """Whether a table has a commit of a batch, a view or another writer since it was created or emptied.

    Reads only the newest commits, without Spark.
    """
    commit = None
    for commit in newest_commits(path):
        opens = (commit.metadata or {}).get("opens")
        if opens is None and (commit.changes_data or (commit.is_ours and commit.metadata is not None)):
            return True
        if opens is not None and opens.get("reason") == "full-refresh":
            return False
    # The oldest commits of a long log are gone: the table is not new.
    return commit is not None and commit.version > 0
