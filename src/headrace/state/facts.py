"""What `state.opening` decides by, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import SourceLocation
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position
from headrace.state.history import History
from headrace.state.identity import CheckpointIdentity, SourceIdentity

FENCED = 2**63 - 1
"""The batch number that no batch ever follows: what fences a checkpoint in its table."""

ListOrigin = tuple[str, int]
"""Whose lists name the files that were read: a checkpoint, and the index of a source in it."""

Reason = Literal["first", "resume-from-table", "new-checkpoint", "data-loss", "full-refresh", "renamed"]


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The target as it stands now.

    Args:
        table_id: Delta's id of the table.
        fresh: Whether this update created it.
        version: Its version now.
        folded: The last version that the flow's ledger holds of it; -1 if none.
        ledger_stale: Whether the ledger holds versions that were taken back by an older copy.
        checkpoints: The checkpoint that feeds it, by flow.
        transactions: Its SetTransactions: the last batch, by checkpoint.
        positions: Where the last commit of this flow's checkpoint ended, by source index;
            ``None`` where neither log nor ledger know.
        sources: Which sources that commit had read, by its own word.
        history: How far the sources of all the flow's checkpoints were read.
        rolled_back: Of which tables versions that were read are no more, and how that shows.
        unlisted: Reads of folders, by checkpoint and source index, of which the ledger does not hold
            all files.
        read_elsewhere: By source index, a file that the flow has read through another folder.
    """

    table_id: str
    fresh: bool
    checkpoints: Mapping[str, str]
    transactions: Mapping[str, int]
    positions: Mapping[int, Position] | None = None
    sources: tuple[SourceIdentity, ...] = ()
    version: int = -1
    folded: int = -1
    ledger_stale: bool = False
    rolled_back: Mapping[str, str] = field(default_factory=dict)
    unlisted: frozenset[ListOrigin] = frozenset()
    history: History = field(default_factory=History)
    read_elsewhere: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """The flow's newest checkpoint as it lies on disk."""

    identity: CheckpointIdentity
    last_planned: int
    last_finished: int
    positions: Mapping[int, Position]
    """Where what the table does not hold yet begins, by source index: a batch that was planned and
    not committed is still to be read."""


@dataclass(frozen=True, kw_only=True)
class KafkaFacts:
    """What the broker says of the topics of one source, by topic.

    Args:
        on_data_loss: The policy of this source alone; ``None`` takes the flow's.
    """

    ids: Mapping[str, str | None]
    earliest: Mapping[str, Mapping[int, int]]
    latest: Mapping[str, Mapping[int, int]]
    on_data_loss: OnDataLoss | None = None


@dataclass(frozen=True, kw_only=True)
class FlowFacts:
    """The flow as it is declared, and what the user asked for on the command line."""

    flow: str
    dataset: str
    location: SourceLocation
    declared_flows: frozenset[str]
    sources: tuple[SourceIdentity, ...]
    stateful: bool
    kafka: Mapping[int, KafkaFacts]
    on_data_loss: OnDataLoss = "refuse"
    resume: bool = False
    new_checkpoint: bool = False
    rename_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Go on with the checkpoint as it is."""

    identity: CheckpointIdentity


@dataclass(frozen=True, kw_only=True)
class Open:
    """Open a new checkpoint, and fence the old one in the same commit.

    Args:
        positions: Where it starts; ``None`` starts at the sources' beginning.
        lists: For each files source with a position, whose lists hold what was read.
        fences: The checkpoint that may never commit again.
        losses: What will never be read; written to the ledger first.
    """

    reason: Reason
    positions: Mapping[int, Position] | None = None
    lists: Mapping[int, ListOrigin] = field(default_factory=dict)
    fences: str | None = None
    losses: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RenameFlow:
    """Go on with the checkpoint of a flow that had another name."""

    old_flow: str


Opening = Continue | Open | RenameFlow
