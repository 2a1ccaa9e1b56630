"""Views that are refreshed by what has changed: each refresh has the rows before, plus those that it added,
less those that it removed, and begins where the refresh before ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import first_line
from headrace.model.texts import counted
from headrace.verify.balance import RowBalance, RowDelta
from headrace.verify.commits import CommitClaims, Refresh
from headrace.verify.delta_log import TableLog
from headrace.verify.keys import find_twice
from headrace.verify.report import Judgement
from headrace.verify.stored import StoredPath


@dataclass(frozen=True, kw_only=True)
class Increments:
    """The increments of a view since its rows were last computed as a whole, as its log has them."""

    number: int
    since: int  # the version before the first of them
    before: int  # rows
    added: int
    removed: int

    @property
    def text(self) -> str:
        after = self.before + self.added - self.removed
        return (
            f"{counted(self.number, 'increment')} since version {self.since}: "
            f"{self.before:,} + {self.added:,} added - {self.removed:,} removed = {counted(after, 'row')}"
        )


def judge_increments(metadata: CommitClaims, balance: RowBalance, found: Judgement) -> Increments | None:
    """Check the equation and the chain of each increment that the balance has; returns the newest ones."""
    rows_before = _rows_before(balance)
    newest: list[RowDelta] = []
    for before, refresh in pairwise([None, *metadata.refreshes]):
        assert refresh is not None
        delta = balance.deltas.get(refresh.version)
        if refresh.increment is None or delta is None:
            newest = []
            continue
        newest.append(delta)
        _judge_rows(refresh, delta, rows_before[refresh.version], found)
        if before is not None:
            _judge_chain(before, refresh, balance, found)
    if not newest:
        return None
    first = newest[0].commit.version
    return Increments(
        number=len(newest),
        since=first - 1,
        before=rows_before[first],
        added=sum(one.gained for one in newest),
        removed=sum(one.lost for one in newest),
    )


def _rows_before(balance: RowBalance) -> Mapping[int, int]:
    rows, found = balance.opened_with, {}
    for version in sorted(balance.deltas):
        found[version] = rows
        rows += balance.deltas[version].net
    return found


def _judge_rows(refresh: Refresh, delta: RowDelta, before: int, found: Judgement) -> None:
    version, stated = refresh.version, refresh.increment
    assert stated is not None
    if delta.unknown:
        found.reasons.append(
            f"the increment of version {version} cannot be counted: {delta.unknown[0]} is gone"
        )
        return
    if (delta.gained, delta.lost) != (stated.added, stated.removed):
        text = (
            f"the increment of version {version} states that it added {counted(stated.added, 'row')} and "
            f"removed {stated.removed:,}; its files and deletion vectors added {delta.gained:,} and removed "
            f"{delta.lost:,}"
        )
        found.find("COUNTS_DIFFER", text, version=version)
    elif refresh.total is not None and before + delta.net != refresh.total:
        text = (
            f"the increment of version {version} states that the view has {counted(refresh.total, 'row')} "
            f"after it; {before:,} before + {delta.gained:,} added - {delta.lost:,} removed = "
            f"{before + delta.net:,}"
        )
        found.find("COUNTS_DIFFER", text, version=version)


def _judge_chain(before: Refresh, refresh: Refresh, balance: RowBalance, found: Judgement) -> None:
    """The changes that an increment applies begin where the refresh before it ended."""
    stated = refresh.increment
    assert stated is not None
    for name, start in sorted(stated.start.items()):
        end = before.inputs.get(name, ("", -1))[1]
        if start == end:
            continue
        text = (
            f"the increment of version {refresh.version} has the changes of {name} after v{start}, and the "
        )
        text += f"refresh of version {before.version} had them up to v{end}: "
        text += "changes are missing" if start > end else "changes were applied twice"
        code = "INCREMENT_MISSED" if start > end else "INCREMENT_TWICE"
        found.find(code, text, version=refresh.version, input=name, versions=sorted((start, end)))
    for version in range(before.version + 1, refresh.version):
        other = balance.deltas.get(version)
        if other is not None and other.is_foreign:
            text = f"{other.text}; the increment of version {refresh.version} has kept what it did"
            found.find("VIEW_CHANGED", text, version=version)


def judge_groups(table: StoredPath, log: TableLog, metadata: CommitClaims, found: Judgement) -> str | None:
    """Each group of a view whose aggregates are combined has one row; returns why it is not known, if so."""
    last = metadata.refreshes[-1].increment if metadata.refreshes else None
    if last is None or last.groups is None:
        return None
    try:
        find_twice(table, log, last.groups, found)
    except Exception as error:  # the engine raises no narrower class
        return f"the groups cannot be read: {first_line(error)}"
    return None
