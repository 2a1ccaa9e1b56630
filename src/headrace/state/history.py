"""How far a flow has read each of its sources, over all checkpoints since its rows were last cleared.

If a source is removed from a query and added again two checkpoints later, its last position is found here,
and not in the current checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.model.ranges import marks_of
from headrace.state.checkpoint import SourceIdentity
from headrace.state.ledger import Ledger, TargetCommits, last_version


@dataclass(frozen=True, kw_only=True)
class PastRead:
    checkpoint: str
    source: SourceIdentity
    until: Any
    marks: Mapping[str, Any]
    start: Any = None  # its start, as JSON; ``None`` where the source does not say where it starts


@dataclass(frozen=True, kw_only=True)
class History:
    """The positions up to which a flow has read its sources."""

    commits: tuple[tuple[PastRead, ...], ...] = ()
    whole: bool = True  # whether the commits of all the flow's checkpoints are known
    deletes: bool = False  # whether records have deleted rows

    @classmethod
    def of(cls, entries: Collection[Mapping[str, Any]], *, whole: bool = True) -> History:
        """The reads of commits, in the order in which they were made."""
        deletes = any(entry.get("deleted") for entry in entries)
        return cls(commits=tuple(filter(None, map(_reads, entries))), whole=whole, deletes=deletes)

    def with_last(self, entry: Mapping[str, Any]) -> History:
        """The history with one more commit at its end; the end may have it already."""
        return replace(self, commits=(*self.commits, *filter(None, (_reads(entry),))))

    def reads(self, kind: str) -> Iterator[PastRead]:
        """The reads of a kind of source, the oldest first."""
        return (read for reads in self.commits for read in reads if read.source.kind == kind)

    def last_reads(self, source: SourceIdentity, keys: Sequence[str]) -> tuple[PastRead, ...]:
        """The reads of a source in the last commit that names it; two if the query read it twice."""
        found = (
            tuple(r for r in reads if r.source.key(keys) == source.key(keys))
            for reads in reversed(self.commits)
        )
        return next(filter(None, found), ())


def _reads(entry: Mapping[str, Any]) -> tuple[PastRead, ...]:
    return tuple(
        PastRead(
            checkpoint=entry["checkpoint"],
            source=SourceIdentity.from_json(one),
            until=one["until"],
            start=one.get("from"),
            marks=marks_of(one),
        )
        for one in entry.get("sources", ())
    )


def load_history(
    ledger: Ledger, target: TargetCommits, table_id: str, version: int, checkpoint: str | None
) -> History:
    """Collect the reads of a flow, from its current checkpoint back to the first one after the last full
    refresh. Versions in the ledger after the table's were removed when an older copy was restored."""
    if checkpoint is None:
        return History()
    entries = _entries((ledger,), target, table_id, version)
    chain, whole = _chain(entries, checkpoint)
    # Checkpoints go from name to name with `--rename-flow`, and their folds stay where they were written.
    if not whole or any(_is_rename(entry) for entry in entries if entry["checkpoint"] in chain):
        entries = _entries({*ledger.siblings(), ledger}, target, table_id, version)
        chain, whole = _chain(entries, checkpoint)
    found = sorted((entry for entry in entries if entry["checkpoint"] in chain), key=last_version)
    return History.of(found, whole=whole)


def _entries(
    ledgers: Iterable[Ledger], target: TargetCommits, table_id: str, version: int
) -> list[Mapping[str, Any]]:
    """The commits in the folds of the ledger, and the later ones that the target has."""
    held, first = [], version + 1
    for ledger in ledgers:
        stale = ledger.stale_folds(target, table_id, version)
        held += [fold for fold in ledger.folds() if fold["table_id"] == table_id and fold not in stale]
        # The log says again what was taken back.
        first = min([first, ledger.next_version(table_id), *(fold["versions"][0] for fold in stale)])
    logged = [one for one in target.commits(first, others=False) if "checkpoint" in one]
    return [*(entry for fold in held for entry in fold["batches"]), *logged]


def _is_rename(entry: Mapping[str, Any]) -> bool:
    return bool("opens" in entry and entry["opens"]["reason"] == "renamed")


def _chain(entries: Iterable[Mapping[str, Any]], checkpoint: str) -> tuple[set[str], bool]:
    """The chain of checkpoints that ends at one, each fenced by the next; and whether its first one is
    known."""
    # The checkpoint of a renamed flow has two openings: the first says what came before it.
    opened: dict[str, Mapping[str, Any]] = {}
    for entry in sorted((entry for entry in entries if "opens" in entry), key=last_version):
        if not _is_rename(entry):
            opened.setdefault(entry["checkpoint"], entry["opens"])
    chain = {checkpoint}
    while (opens := opened.get(checkpoint)) is not None:
        before = opens.get("fences")
        if opens["reason"] == "full-refresh" or before is None or before in chain:
            return chain, True
        chain.add(before)
        checkpoint = before
    return chain, False
