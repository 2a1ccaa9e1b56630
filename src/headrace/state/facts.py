"""The facts on which `state.opening` decides, and its decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from headrace.errors import SourceLocation
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart
from headrace.state.history import History
from headrace.state.identity import CheckpointIdentity, SourceIdentity

FENCED = 2**63 - 1
"""The highest batch number: a transaction with it fences a checkpoint, because no batch can follow."""

ListOrigin = tuple[str, int]
"""The checkpoint, and the index of the source in it, whose lists name the files that were read."""

Losses = tuple[Mapping[str, Any], ...]
"""Records or files that a source has lost before they were read, in the form of the ledger."""

Reason = Literal["first", "reset", "data-loss", "full-refresh", "renamed"]


class SourceFacts(Protocol):
    """A source of a flow as it is now. Each kind of source implements it; no method reads anything.

    A start that would lose or duplicate records is raised as an error with its remedy.
    """

    @property
    def source(self) -> SourceIdentity: ...

    @property
    def can_resume(self) -> bool:
        """Whether a new checkpoint can start at a position of an old one."""
        ...

    def check(self, flow: FlowFacts) -> None:
        """Refuse a source that no checkpoint of the flow may continue to read."""
        ...

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        """Whether this is the source that a checkpoint has read."""
        ...

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        """Where a new checkpoint starts, after all earlier ones; ``None`` for a source that none has read."""
        ...

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        """Compare a position with what the source holds.

        Returns:
            Where the flow can continue: with what is new in the source, and after what the source has
            lost; and what it has lost.
        """
        ...

    def choose_position(
        self, flow: FlowFacts, history: History, position: Position, start: ChosenStart
    ) -> ChosenPosition | None:
        """Where a new checkpoint starts by the user's choice; ``None`` for a source without such a choice."""
        ...

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin | None:
        """The origin of the file lists of a new checkpoint; ``None`` for a source without such lists."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReadBefore:
    """A source in a checkpoint."""

    checkpoint: str
    source: SourceIdentity
    committed: SourceIdentity | None = None  # the source as the checkpoint's last commit names it
    positions: tuple[Position, ...] = ()


@dataclass(frozen=True)
class NextPosition:
    """Where a new checkpoint starts to read a source."""

    position: Position
    origin: ListOrigin | None = None  # the checkpoint that ended there, and the index of the source in it


@dataclass(frozen=True, kw_only=True)
class ChosenPosition:
    """Where a new checkpoint starts by the user's choice."""

    position: Position
    losses: Losses = ()  # what was never read before it, in the form of the ledger
    repeats: Losses = ()  # what was committed after it, in the same form


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The state of the target table.

    Args:
        ledger_stale: Whether the ledger has versions that no longer exist, because an older copy was
            restored.
        positions: Where the last commit of this flow's checkpoint ended, by source index;
            ``None`` if neither log nor ledger has it.
        history: How far the sources of all the flow's checkpoints were read.
    """

    table_id: str
    fresh: bool  # whether this update created it
    checkpoints: Mapping[str, str]
    transactions: Mapping[str, int]  # its SetTransactions: the last batch, by checkpoint
    positions: Mapping[int, Position] | None = None
    sources: tuple[SourceIdentity, ...] = ()
    version: int = -1
    folded: int = -1  # the last version in the flow's ledger; -1 if none
    ledger_stale: bool = False
    history: History = field(default_factory=History)


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """The flow's newest checkpoint."""

    identity: CheckpointIdentity
    last_planned: int
    last_finished: int
    positions: Mapping[int, Position]
    """Where what the table does not hold yet begins, by source index: a batch that was planned and
    not committed is still to be read."""


@dataclass(frozen=True, kw_only=True)
class FlowFacts:
    """The declared flow, and the options of the command line."""

    flow: str
    dataset: str
    location: SourceLocation
    declared_flows: frozenset[str]
    sources: tuple[SourceFacts, ...]
    stateful: bool
    describe: Callable[[SourceIdentity], str] = field(default=lambda source: source.kind)
    on_data_loss: OnDataLoss = "refuse"
    reset: bool = False
    start: ChosenStart | None = None
    rename_from: str | None = None

    @property
    def short_dataset(self) -> str:
        """The dataset in messages: without the schema `default`."""
        return self.dataset.removeprefix("default.")

    @property
    def can_resume(self) -> bool:
        """Whether a new checkpoint can start where an old one ended."""
        return not self.stateful and all(source.can_resume for source in self.sources)


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Continue with the checkpoint."""

    identity: CheckpointIdentity


@dataclass(frozen=True, kw_only=True)
class Open:
    """Open a new checkpoint, and fence the old one in the same commit.

    Args:
        positions: Where it starts; ``None`` starts at the sources' beginning.
        lists: For each files source with a position, whose lists hold what was read.
        losses: The records or files that will never be read; written to the ledger first.
    """

    reason: Reason
    positions: Mapping[int, Position] | None = None
    lists: Mapping[int, ListOrigin] = field(default_factory=dict)
    fences: str | None = None  # the checkpoint that may never commit again
    losses: tuple[Mapping[str, Any], ...] = ()
    repeats: tuple[Mapping[str, Any], ...] = ()  # the records that are read again, because the user allows it


@dataclass(frozen=True, kw_only=True)
class RenameFlow:
    """Continue with the checkpoint of a flow that had another name."""

    old_flow: str


Opening = Continue | Open | RenameFlow
