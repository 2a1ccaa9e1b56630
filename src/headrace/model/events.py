"""What happens in an update, as frozen facts: `run` emits them, `observe` keeps and shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from headrace.model.counts import RowChanges
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in one update."""

    update: str
    at: datetime = field(default_factory=_now)


@dataclass(frozen=True, kw_only=True)
class FlowEvent(Event):
    """Something that happened to one flow."""

    flow: str
    dataset: TableName


@dataclass(frozen=True, kw_only=True)
class ViewEvent(Event):
    """Something that happened to one materialized view."""

    dataset: TableName


@dataclass(frozen=True, kw_only=True)
class UpdateStarted(Event):
    pipeline: str
    mode: Literal["triggered", "continuous"]
    flows: tuple[str, ...]
    views: tuple[TableName, ...]


@dataclass(frozen=True, kw_only=True)
class UpdateFinished(Event):
    outcome: Literal["completed", "failed", "stopped"]
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class FlowStarted(FlowEvent):
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class BatchStarted(FlowEvent):
    batch: int


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What the sources of a flow hold beyond a batch; ``None`` where it is not known."""

    records: int | None = None
    size_bytes: int | None = None  # their bytes, or those of files; an estimate for Kafka


@dataclass(frozen=True, kw_only=True)
class BatchWork:
    """What Spark's tasks have used to compute and write a batch or a refresh."""

    executor_ms: int
    peak_memory_bytes: int  # the highest execution memory of a stage: the sum of the peaks of its tasks
    spilled_bytes: int  # bytes that tasks have written to disk because they did not fit into memory
    read_rows: int
    read_bytes: int


@dataclass(frozen=True, kw_only=True)
class BatchCommitted(FlowEvent):
    """A batch is in the table."""

    batch: int
    version: int
    rows: int
    duration_s: float  # from the start of the batch function to the end of the commit
    ranges: tuple[SourceRange, ...]
    lag: int | None = None  # records that the source holds beyond the batch; ``None`` where unknown
    lag_bytes: int | None = None  # their bytes, or those of files; ``None`` where unknown
    # Oldest and newest record's age at the commit, by the record's own timestamp; `None` where the table
    # keeps no timestamp.
    latency_s: tuple[float, float] | None = None
    quarantined: int = 0  # rows that went to the quarantine table
    dropped: int = 0
    # The passed and failed rows of each expectation, as the commit holds them.
    expectations: tuple[Mapping[str, Any], ...] = ()
    # The records that gave no row, by reason, as the commit holds them.
    bad_records: tuple[Mapping[str, Any], ...] = ()
    checkpoint: str = ""
    work: BatchWork | None = None  # what Spark's tasks have used; the event log finds it out
    changes: RowChanges | None = None  # what the accepted rows did, if they are change records
    without_index: str | None = None  # why the changes were applied without the index of the keys


@dataclass(frozen=True, kw_only=True)
class BatchReplayed(FlowEvent):
    """The table already held the batch, with equal ranges: nothing was written."""

    batch: int


@dataclass(frozen=True, kw_only=True)
class LateRowsDropped(FlowEvent):
    """A stateful query left out rows that came behind its watermark."""

    batch: int
    rows: int  # how many, as Spark counts them: an aggregation has merged some of them before


@dataclass(frozen=True, kw_only=True)
class SchemaDrifted(FlowEvent):
    """Records have fields that have no column."""

    batch: int
    fields: tuple[str, ...]
    added: bool  # whether they have become columns; else they are ignored
    number: int | None = None  # the number of the schema that has them, if they were added
    example: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FlowRetrying(FlowEvent):
    error: Mapping[str, Any]
    attempt: int
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class LookFailed(Event):
    """The storage did not answer; what was asked is not known, and is asked again. Nothing has ended."""

    flow: str | None  # the flow that has asked; ``None`` for the update itself
    what: str
    error: Mapping[str, Any]
    attempt: int
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class FlowReconnecting(FlowEvent):
    """No Kafka broker answers; the flow waits for one."""

    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FlowReconnected(FlowEvent):
    """A Kafka broker answers again."""


@dataclass(frozen=True, kw_only=True)
class FlowFailed(FlowEvent):
    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FlowFinished(FlowEvent):
    """The flow has ended without a failure."""

    outcome: Literal["drained", "stopped", "up to date"]
    rows: int
    batches: int


@dataclass(frozen=True, kw_only=True)
class FlowSkipped(FlowEvent):
    """The flow was not started: a table that it reads was never written, because its own flow failed."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class ViewRefreshing(ViewEvent):
    """The view is being computed; its readers still see what it was."""


@dataclass(frozen=True, kw_only=True)
class ViewRefreshed(ViewEvent):
    """The rows of the view were replaced; the counts are those of its commit."""

    version: int
    rows: int
    duration_s: float
    quarantined: int = 0
    dropped: int = 0
    expectations: tuple[Mapping[str, Any], ...] = ()
    work: BatchWork | None = None  # what Spark's tasks have used; the event log finds it out


@dataclass(frozen=True, kw_only=True)
class ViewUpToDate(ViewEvent):
    """The view was not computed: nothing that it reads has changed."""


@dataclass(frozen=True, kw_only=True)
class ViewFailed(ViewEvent):
    error: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ViewSkipped(ViewEvent):
    """The view was not refreshed: a table that it reads was never written, because its flow failed."""

    reason: str  # names the table and the flow that failed


@dataclass(frozen=True, kw_only=True)
class ForeignCommitSeen(Event):
    """Another writer committed to a table of ours."""

    dataset: TableName
    version: int
    operation: str
    engine: str
    undone: tuple[int, ...] = ()  # versions of the pipeline that a RESTORE has undone

    @property
    def remedy(self) -> str:
        """What was undone, and what to do; empty if nothing was."""
        if not self.undone:
            return ""
        first, last = self.undone[0], self.undone[-1]
        return (
            f"it has undone {len(self.undone)} commits of this pipeline, versions {first} to {last}; "
            f"bring them back: RESTORE .. TO VERSION AS OF {self.version - 1}, or read everything again: "
            f"headrace full-refresh {self.dataset.short}"
        )


@dataclass(frozen=True, kw_only=True)
class SnapshotSkipped(FlowEvent):
    """A snapshot of a source was not applied."""

    version: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DatasetChecked(FlowEvent):
    """A check of a whole dataset has ended, after a batch of the flow, or after the refresh of a view."""

    check: str
    passed: bool
    fact: str


Operation = Literal[
    "QUARANTINE_REPLAY",
    "QUARANTINE_DISCARD",
    "FULL_REFRESH",
    "RESET",
    "CHECKPOINT_REPAIR",
    "ERASE",
    "MAINTENANCE",
    "KEY_INDEX",
]
"""What a command or a flow does to a dataset, beside batches."""


@dataclass(frozen=True, kw_only=True)
class OperationProgressed(Event):
    """A command that changes a dataset has begun or ended."""

    dataset: TableName
    operation: Operation
    status: Literal["STARTED", "COMPLETED", "FAILED"]
    duration_s: float | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None  # why it failed, as `HeadraceError.to_dict` gives it


class Emitter(Protocol):
    """Takes events; called from several threads."""

    def __call__(self, event: Event) -> None: ...
