"""The facts on which `state.opening` decides, with all that a flow has read before, and its decisions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position, marks_of
from headrace.model.remedies import ChosenStart
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity
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


FENCED = 2**63 - 1
"""The highest batch number: a transaction with it fences a checkpoint, because no batch can follow."""

ListOrigin = tuple[str, int]
"""The checkpoint, and the index of the source in it, whose lists name the files that were read."""

Losses = tuple[Mapping[str, Any], ...]
"""Records or files that a source has lost before they were read, in the form of the ledger."""

Reason = Literal["first", "reset", "data-loss", "full-refresh", "renamed"]


@dataclass(frozen=True, kw_only=True)
class SourceFacts(ABC):
    """A source of a flow as it is now; no method reads anything.

    Each kind of source has a class; the answers here are those of a source without surprises. A start that
    would lose or duplicate records is raised as an error with its remedy.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """The keys of the identity that stay the same if a query reads the source in another way; () for all."""

    source: SourceIdentity

    @property
    def can_resume(self) -> bool:
        """Whether a new checkpoint can start at a position of an old one."""
        return True

    def check(self, flow: FlowFacts) -> None:
        """Refuse a source that no checkpoint of the flow may continue to read."""
        return

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        """Whether this is the source that a checkpoint has read."""
        return self.source.key(self.keys) == then.source.key(self.keys)

    def last_reads(self, history: History) -> tuple[PastRead, ...]:
        return history.last_reads(self.source, self.keys)

    def first_position(self) -> Position | None:
        """Where a flow starts that has read nothing; ``None`` for a source whose start Spark keeps."""
        return None

    @abstractmethod
    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        """Where a new checkpoint starts, after all earlier ones; ``None`` for a source that none has read."""

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        """Where the flow can continue, and what the source has lost before that position; it includes what is
        new in the source."""
        return position, ()

    def choose_position(
        self, flow: FlowFacts, history: History, position: Position, start: ChosenStart
    ) -> ChosenPosition | None:
        """Where a new checkpoint starts by the user's choice; ``None`` for a source without such a choice."""
        return None

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin | None:
        """The origin of the file lists of a new checkpoint; ``None`` for a source without such lists."""
        return None


@dataclass(frozen=True, kw_only=True)
class ReadBefore:
    checkpoint: str
    source: SourceIdentity
    committed: SourceIdentity | None = None  # the source as the checkpoint's last commit names it
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True)
class NextPosition:
    position: Position
    origin: ListOrigin | None = None  # the checkpoint that ended there, and the index of the source in it


@dataclass(frozen=True, kw_only=True)
class ChosenPosition:
    """Where a new checkpoint starts by the user's choice."""

    position: Position
    partitions: frozenset[tuple[str, int]]  # those that the user can choose, by their names and numbers
    losses: Losses = ()  # what was never read before it, in the form of the ledger
    repeats: Losses = ()  # what was committed after it, in the same form


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    table_id: str
    fresh: bool  # whether this update created it
    checkpoints: Mapping[str, str]
    transactions: Mapping[str, int]  # its SetTransactions: the last batch, by checkpoint
    # Where the checkpoint's last commit ended, by source; ``None`` if neither log nor ledger has it
    positions: Mapping[int, Position] | None = None
    sources: tuple[SourceIdentity, ...] = ()
    version: int = -1
    folded: int = -1  # the last version in the flow's ledger; -1 if none
    ledger_stale: bool = False  # whether the ledger has versions of which an older copy was restored
    history: History = field(default_factory=History)  # the reads of all the flow's checkpoints


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    identity: CheckpointIdentity
    last_planned: int
    last_finished: int
    positions: Mapping[int, Position]
    """Where what the table does not hold yet begins, by source index: a batch that was planned and
    not committed is still to be read."""
    query: str | None = None  # the fingerprint of the query that has last used it, if it is known


@dataclass(frozen=True, kw_only=True)
class FlowFacts:
    """The declared flow, and the options of the command line."""

    flow: str
    dataset: str
    location: SourceLocation
    folder: str  # the folder of its checkpoints
    declared_flows: frozenset[str]
    sources: tuple[SourceFacts, ...]
    stateful: bool
    describe: Callable[[SourceIdentity], str] = field(default=lambda source: source.kind)
    on_data_loss: OnDataLoss = "refuse"
    reset: bool = False
    start: ChosenStart | None = None
    rename_from: str | None = None
    query: str | None = None  # the fingerprint of the query
    readers: tuple[str, ...] = ()  # the tables whose flows read its table as a stream
    places: tuple[SourceLocation, ...] = ()  # where the query reads each source

    @property
    def short_dataset(self) -> str:
        """The dataset in messages: without the schema `default`."""
        return self.dataset.removeprefix("default.")

    @property
    def can_resume(self) -> bool:
        """Whether a new checkpoint can start where an old one ended."""
        return not self.stateful and all(source.can_resume for source in self.sources)

    def error(
        self, kind: type[HeadraceError], what: str, facts: Sequence[str], *remedies: str, **params: Any
    ) -> HeadraceError:
        """An error of this flow: the words after its name, and the remedies, by default a full refresh."""
        return kind(
            f"flow {self.flow}{what}",
            location=self.location,
            facts=facts,
            remedies=remedies or (f"read everything again:   headrace full-refresh {self.short_dataset}",),
            params={"flow": self.flow, **params},
        )


@dataclass(frozen=True, kw_only=True)
class Continue:
    identity: CheckpointIdentity


@dataclass(frozen=True, kw_only=True)
class Open:
    """Open a new checkpoint, and fence the old one in the same commit."""

    reason: Reason
    positions: Mapping[int, Position] | None = None  # where it starts; ``None`` for the sources' beginning
    # For each files source with a position, whose lists hold what was read
    lists: Mapping[int, ListOrigin] = field(default_factory=dict)
    fences: str | None = None  # the checkpoint that may never commit again
    losses: Losses = ()  # what will never be read; written to the ledger first
    repeats: Losses = ()  # the records that are read again, because the user allows it


@dataclass(frozen=True, kw_only=True)
class RenameFlow:
    """Continue with the checkpoint of a flow that had another name."""

    old_flow: str


Opening = Continue | Open | RenameFlow
