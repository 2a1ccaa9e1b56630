"""What happens to updates, flows and views: `run` emits these events, `observe` keeps and shows them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from headrace.model.counts import RowChanges
from headrace.model.event_forms import Event, FlowEvent, Level, TableEvent
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.model.texts import counted

NAMESPACE = uuid.UUID("6f0f3c5e-6d0c-4b53-9d6b-1f6f1f0a7a11")
"""The namespace of ids that are the same each time."""

_BATCH_METRICS = (
    *("num_upserted_rows", "num_deleted_rows"),
    *("backlog_records", "backlog_bytes", "backlog_seconds", "latency_seconds"),
)


class ViewEvent(TableEvent):
    technique: ClassVar[str | None] = None  # how the view is brought up to date, if this event decides it


class _Failed(Event, level="ERROR", is_notable=True, state="failed"):
    details = "status=FAILED error"
    message = "Flow '{subject}' failed: {error}"
    line = "failed: {error}"

    error: Mapping[str, Any]


class _Skipped(Event, level="WARN", is_notable=True, state="skipped"):
    details = "status=SKIPPED reason"
    message = "Flow '{subject}' was skipped: {reason}."
    line = "skipped: {reason}"

    reason: str  # names the table that was not written or opened, and the flow that failed


class UpdateStarted(Event, log_type="create_update"):
    message = "Update {update} of pipeline '{pipeline}' was created."
    line = "{flows:flow}, {views:view}, {mode}"

    pipeline: str
    mode: Literal["triggered", "continuous"]
    flows: tuple[str, ...]
    views: tuple[TableName, ...]

    @property
    def subject(self) -> str:
        return self.pipeline

    def build_details(self) -> dict[str, Any]:
        return {"cause": "RUN", "mode": self.mode.upper()}


class UpdateFinished(Event, log_type="update_progress"):
    details = "state={final_state} duration_ms"
    message = "Update {update} {verb} {outcome}."
    line = "{outcome} in {duration_s:duration}"

    outcome: Literal["completed", "failed", "stopped"]
    duration_s: float

    @property
    def severity(self) -> Level:
        return "ERROR" if self.outcome == "failed" else "INFO"

    @property
    def verb(self) -> str:
        return "has" if self.outcome == "failed" else "is"

    @property
    def final_state(self) -> str:
        return "CANCELED" if self.outcome == "stopped" else self.outcome.upper()

    @property
    def duration_ms(self) -> int:
        return round(self.duration_s * 1000)


class FlowStarted(FlowEvent, state="starting"):
    details = "status=STARTING checkpoint"
    message = "Flow '{flow}' is starting."

    checkpoint: str


class BatchStarted(FlowEvent, level="DEBUG", state="running"):
    batch: int


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The unread data in the sources of a flow after a batch; ``None`` where it is not known."""

    records: int | None = None
    size_bytes: int | None = None  # their bytes, or those of files; an estimate for Kafka


class Committed(Event, level="METRICS"):
    """The commit of a batch or a refresh. The event log can also make this event from the commit itself."""

    message = "Flow '{subject}' has committed {what} to '{dataset}': {counts_text}."

    dataset: TableName
    version: int
    rows: int  # rows that were added to the dataset, or change records that were applied to it
    duration_s: float | None = (
        None  # for a batch, from the start of the batch function to the end of the commit
    )
    quarantined: int = 0  # rows that went to the quarantine table
    dropped: int = 0
    # The passed and failed rows of each expectation, as the commit holds them.
    expectations: tuple[Mapping[str, Any], ...] = ()
    # The records that gave no row, by reason, as the commit holds them.
    bad_records: tuple[Mapping[str, Any], ...] = ()

    @property
    def what(self) -> str:
        return "a refresh"

    @property
    def key(self) -> tuple[str | int, ...]:
        """The key of the commit; with the version, it identifies the commit in its table."""
        return (self.update,)

    @property
    def row_id(self) -> str:
        """The id of its row in the event log. It is the same each time, so no batch gets a second row."""
        return str(uuid.uuid5(NAMESPACE, "/".join(map(str, (self.dataset, *self.key, self.version)))))

    @property
    def counts_text(self) -> str:
        counts = {"quarantined": self.quarantined, "dropped": self.dropped}
        return ", ".join([f"{self.rows:,} rows", *(f"{n:,} {name}" for name, n in counts.items() if n)])

    def metrics(self) -> dict[str, Any]:
        return {
            "num_output_rows": self.rows,
            **dict.fromkeys(_BATCH_METRICS),
            "duration_ms": None if self.duration_s is None else round(self.duration_s * 1000),
        }

    def build_details(self) -> dict[str, Any]:
        quality: dict[str, Any] = {
            "dropped_records": self.dropped,
            "quarantined_records": self.quarantined,
            "expectations": [
                {
                    "name": one["name"],
                    "dataset": one["dataset"],
                    "passed_records": one["passed"],
                    "failed_records": one["failed"],
                    "action": one["action"],
                }
                for one in self.expectations
            ],
            "bad_records": [*map(dict, self.bad_records)],
        }
        return {
            "status": "COMPLETED" if isinstance(self, ViewRefreshed) else "RUNNING",
            "metrics": self.metrics(),
            "data_quality": {key: value for key, value in quality.items() if value != []},
            "commit": {"version": self.version},
        }


class BatchCommitted(Committed, FlowEvent, state="running"):
    """A batch is in the table."""

    batch: int
    ranges: tuple[SourceRange, ...] = ()
    lag: int | None = None  # records that the source holds beyond the batch; ``None`` where unknown
    lag_bytes: int | None = None  # their bytes, or those of files; ``None`` where unknown
    # Oldest and newest record's age at the commit, by the record's own timestamp; `None` where the table
    # keeps no timestamp.
    latency_s: tuple[float, float] | None = None
    checkpoint: str = ""
    changes: RowChanges | None = None  # what the accepted rows did, if they are change records
    without_index: str | None = None  # why the changes were applied without the index of the keys

    @property
    def mean_latency_s(self) -> float | None:
        """The middle of the ages of its oldest and its newest record."""
        return None if self.latency_s is None else sum(self.latency_s) / 2

    @property
    def what(self) -> str:
        return f"batch {self.batch}"

    @property
    def key(self) -> tuple[str | int, ...]:
        return self.checkpoint, self.batch

    def metrics(self) -> dict[str, Any]:
        newest_s = None if self.latency_s is None else self.latency_s[1]
        did = self.changes
        return super().metrics() | {
            "num_upserted_rows": None if did is None else did.inserted + did.updated,
            "num_deleted_rows": None if did is None else did.deleted + did.truncated,
            "backlog_records": self.lag,
            "backlog_bytes": self.lag_bytes,
            "backlog_seconds": 0.0 if self.lag == 0 else newest_s,
            "latency_seconds": self.mean_latency_s,
        }


class BatchReplayed(FlowEvent, is_notable=True, state="running"):
    """The table already held the batch, with equal ranges: nothing was written."""

    details = "status=RUNNING replayed"
    message = "Batch {batch} of flow '{flow}' was in the table already."
    line = "batch {batch} is already in the table; it was not written again"

    replayed: ClassVar[bool] = True
    batch: int


class BatchTimed(FlowEvent, log_type="batch_steps", level="DEBUG"):
    """How long each step of a batch took, in milliseconds."""

    details = "batch steps_ms jvm_ms"
    message = "Batch {batch} of flow '{flow}' took {total_s:duration}."

    batch: int
    # ``offsets``: asking the sources, and Spark's offset log; ``planning``: the query; ``turn``: a compaction
    # that the batch waits for; ``checks``: lease, ranges and the fence; ``write``: the job, with the rejected
    # rows; ``commit``; ``report``: events, lag and notes for maintenance; ``marks``: Spark's commit log.
    steps_ms: Mapping[str, int]
    # Since the batch before: pauses of the collector (``gc``), and the work of the ``compiler``.
    jvm_ms: Mapping[str, int]

    @property
    def total_s(self) -> float:
        return sum(self.steps_ms.values()) / 1000


class FlowIdle(FlowEvent):
    """The flow waits for new records; the event log finds it out."""

    details = "status=IDLE"
    message = "Flow '{flow}' waits for new records."


class LateRowsDropped(FlowEvent, log_type="loss", level="WARN"):
    """A stateful query left out rows that came behind its watermark."""

    details = "reason rows batch"
    message = "Flow '{flow}' dropped {rows} late rows (older than the watermark)."
    line = "batch {batch}: dropped {rows} late rows (older than the watermark)"

    reason: ClassVar[str] = "older than the watermark"
    batch: int
    rows: int  # how many, as Spark counts them: an aggregation has merged some of them before


class SchemaDrifted(FlowEvent, log_type="drift"):
    """Records have fields that have no column."""

    message = "Fields of the records of '{flow}' {became}: {fields}."
    line = "batch {batch}: {found}"

    batch: int
    fields: tuple[str, ...]
    added: bool  # whether they have become columns; else they are ignored
    number: int | None = None  # the number of the schema that has them, if they were added
    example: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Level:
        return "INFO" if self.added else "WARN"

    @property
    def became(self) -> str:
        return "became columns" if self.added else "have no column"

    @property
    def found(self) -> str:
        names = ", ".join(self.fields)
        if self.added:
            return f"new columns {names}; the batch is read again"
        return f"records have fields without a column: {names}"

    def build_details(self) -> dict[str, Any]:
        found = {"fields": list(self.fields), "added": self.added, "schema": self.number}
        return found | {"example": dict(self.example), "batch": self.batch}


class FlowRetrying(FlowEvent, log_type="retry", level="WARN", is_notable=True, state="retrying"):
    details = "state=retrying attempt wait_seconds={wait_s} error"
    message = "Flow '{flow}' is retried: {error}"
    line = "retrying in {wait_s:duration} (attempt {attempt}): {error}"

    error: Mapping[str, Any]
    attempt: int
    wait_s: float


class LookFailed(Event, log_type="storage", level="WARN", is_notable=True):
    """The storage did not answer; the same request is repeated. Nothing has ended."""

    details = "look={what} attempt wait_s"
    message = "The storage did not answer ({what}): {error}"
    line = "the storage did not answer; looks again in {wait_s:.0f} s: {what}"

    flow: str | None  # the flow that sent the request; ``None`` for the update itself
    what: str
    error: Mapping[str, Any]
    attempt: int
    wait_s: float

    @property
    def subject(self) -> str:
        return self.flow or ""


class FlowReconnecting(FlowEvent, log_type="retry", level="WARN", is_notable=True):
    """No Kafka broker answers; the flow waits for one."""

    details = "state=reconnecting error"
    message = "Flow '{flow}' waits for a broker: {error}"
    line = "reconnecting: {error}; {help}"

    error: Mapping[str, Any]

    @property
    def help(self) -> str:
        fact = next(iter(self.error.get("facts") or ()), "")
        return f"{fact}   help: `{next(iter(self.error.get('remedies') or ()), 'headrace doctor')}`"


class FlowReconnected(FlowEvent, log_type="retry", is_notable=True):
    """A Kafka broker answers again."""

    details = "state=reconnected"
    message = "Flow '{flow}' has a broker again."
    line = "the broker answers again"


class ExecutorsRequested(Event, log_type="cluster", is_notable=True):
    """A continuous run on a cluster asks for another number of executors."""

    details = "before after reason"
    message = "The run wants {after:executor} instead of {before}: {reason}."
    line = "wants {after:executor} instead of {before}: {reason}"

    before: int
    after: int
    reason: str

    @property
    def subject(self) -> str:
        return "cluster"


class FlowFailed(_Failed, FlowEvent): ...


class FlowFinished(FlowEvent):
    details = "status={final_status} outcome batches"
    message = "Flow '{flow}' is {outcome}{work}."
    line = "{outcome}{work}"

    outcome: Literal["up to date", "stopped"]
    rows: int
    batches: int

    @property
    def final_status(self) -> str:
        return "STOPPED" if self.outcome == "stopped" else "COMPLETED"

    @property
    def work(self) -> str:
        if not self.batches:
            return ""
        return f": {counted(self.rows, 'row')} in {counted(self.batches, 'batch')}"


class FlowSkipped(_Skipped, FlowEvent):
    """The flow was not started: a table that it reads was never written, or could not be opened."""


_TECHNIQUES: Mapping[str, str] = {
    "full": "COMPLETE_RECOMPUTE",
    "append": "APPEND_ONLY",
    "merge": "GROUP_AGGREGATE",
    "keys": "ROW_BASED",
}


class ViewRefreshing(ViewEvent, level="DEBUG", state="running"):
    """The view is being computed; its readers still see the old rows."""

    details = "status=RUNNING"
    message = "Flow '{dataset}' is running."


class ViewRefreshed(Committed, ViewEvent, state="up to date"):
    """The rows of the view were replaced, or those that changed; the counts are those of its commit."""

    line = "refreshed{way}: {rows:row}  took {duration_s:duration}  v{version}"

    # ``full`` computes the whole view, ``append``, ``merge`` and ``keys`` only what has changed.
    strategy: Literal["full", "append", "merge", "keys"] = "full"
    # Why the whole view was computed, if its policy does not say so: as Databricks names it, and as text.
    code: str | None = None
    reason: str | None = None
    # For an increment: the rows that the tables have gained and lost (``changed``), the ``bytes`` of their
    # files, the ``keys`` that were computed again, and the rows ``added`` to the view and ``removed``.
    change: Mapping[str, int] | None = None

    def build_details(self) -> dict[str, Any]:
        change = dict(self.change or {})
        refresh = {"strategy": self.strategy, "code": self.code, "reason": self.reason, "change": change}
        return {**super().build_details(), "refresh": refresh}

    @property
    def way(self) -> str:
        return "" if self.strategy == "full" else f" by {self.strategy}"

    @property
    def technique(self) -> str:  # type: ignore[override]
        return _TECHNIQUES[self.strategy]


class ViewUpToDate(ViewEvent, state="up to date"):
    """The view was not computed: nothing that it reads has changed."""

    details = "status=COMPLETED outcome={state}"
    message = "Flow '{dataset}' is up to date: nothing that it reads has changed."
    line = "up to date"
    technique = "NO_OP"


class ViewFailed(_Failed, ViewEvent): ...


class ViewSkipped(_Skipped, ViewEvent):
    """The view was not refreshed: a table that it reads was never written, or could not be opened."""


class AlertFired(Event, log_type="alert", level="WARN", is_notable=True):
    """A rule of the spec has found something wrong; its targets are told."""

    details = "state=firing alert about text remedy"
    message = "Alert '{alert}' has begun: {text}."
    line = "alert: {text}; help: `{remedy}`"

    alert: str  # the condition of the rule, such as ``lag``
    about: str  # the flow, the table, or what else it is about
    text: str
    remedy: str


class AlertEnded(Event, log_type="alert", is_notable=True):
    details = "state=ended alert about text lasted_s"
    message = "Alert '{alert}' has ended after {lasted_s:duration}: {text}."
    line = "alert over after {lasted_s:duration}: {text}"

    alert: str
    about: str
    text: str  # the trouble that is over
    lasted_s: float
