"""What happens to tables, beside batches and refreshes: checks, commands, maintenance, other writers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from headrace.model.event_forms import Event, FlowEvent, Level, TableEvent, headline
from headrace.model.names import TableName


class ForeignCommitSeen(TableEvent, log_type="foreign_commit", level="WARN", is_notable=True):
    """Another writer committed to a table of ours."""

    message = "Another writer has committed version {version} of '{dataset}'. {remedy}"
    line = "v{version} was committed by another writer: {operation}, {engine}; {remedy}"

    version: int
    operation: str
    engine: str
    undone: tuple[int, ...] = ()  # versions of the pipeline that a RESTORE has undone

    @property
    def remedy(self) -> str:
        """The undone commits and the remedy; empty if no commit was undone."""
        if not self.undone:
            return ""
        first, last = self.undone[0], self.undone[-1]
        return (
            f"it has undone {len(self.undone)} commits of this pipeline, versions {first} to {last}; "
            f"bring them back: RESTORE .. TO VERSION AS OF {self.version - 1}, or read everything again: "
            f"headrace full-refresh {self.dataset.short}"
        )

    def build_details(self) -> dict[str, Any]:
        found = {"version": self.version, "operation": self.operation, "engine": self.engine}
        return found | ({"undone": list(self.undone)} if self.undone else {})


class SnapshotSkipped(FlowEvent, log_type="snapshot", level="WARN", is_notable=True):
    """A snapshot of a source was not applied."""

    details = "snapshot reason"
    message = "Flow '{flow}' has skipped the snapshot {snapshot}: {reason}."
    line = "skipped the snapshot {snapshot}: {reason}"

    snapshot: str  # its version
    reason: str


class DatasetChecked(FlowEvent, log_type="dataset_check", is_notable=True):
    """A check of a whole dataset has ended, after a batch of the flow, or after the refresh of a view."""

    details = "check passed fact"
    message = "Check '{check}' of '{dataset}' has {outcome}: {fact}."
    line = "check `{check}` failed: {fact}"  # not shown if it has passed

    check: str
    passed: bool
    fact: str

    @property
    def severity(self) -> Level:
        return "INFO" if self.passed else "WARN"

    @property
    def subject(self) -> TableName:
        return self.dataset

    @property
    def outcome(self) -> str:
        return "passed" if self.passed else "failed"


Operation = Literal[
    "QUARANTINE_REPLAY", "QUARANTINE_DISCARD", "FULL_REFRESH", "RESET",
    "CHECKPOINT_REPAIR", "ERASE", "MAINTENANCE", "KEY_INDEX",
]  # fmt: skip
"""An operation of a command or a flow on a dataset, other than a batch."""


class OperationProgressed(TableEvent, log_type="operation_progress"):
    """A command that changes a dataset has begun or ended."""

    message = "{operation} of '{dataset}' has {state_word}{end}"

    operation: Operation
    status: Literal["STARTED", "COMPLETED", "FAILED"]
    duration_s: float | None = None
    outcome: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None  # why it failed, as `HeadraceError.to_dict` gives it

    @property
    def severity(self) -> Level:
        return "INFO" if self.error is None else "ERROR"

    @property
    def state_word(self) -> str:
        return self.status.lower()

    @property
    def end(self) -> str:
        return "." if self.error is None else f": {headline(self.error)}"

    def build_details(self) -> dict[str, Any]:
        duration_ms = None if self.duration_s is None else round(self.duration_s * 1000)
        more = {"duration_ms": duration_ms, "error": self.error}
        known = {key: value for key, value in more.items() if value is not None}
        return {"type": self.operation, "status": self.status, **self.outcome, **known}


class EventsLost(Event, log_type="maintenance"):
    """Memory could not hold the events of a storage that could not be written."""

    details = "lost_events"
    message = "{lost_events} events are missing here: the storage could not be written."

    lost_events: int


class LineageFailed(Event, log_type="lineage", level="WARN", is_notable=True):
    """The events of the run cannot be sent to the server of lineage; the run goes on."""

    details = "state=failed target reason"
    message = "OpenLineage events cannot be sent to {target}: {reason}"
    line = "OpenLineage events cannot be sent to {target}: {reason}; the run goes on"

    target: str  # the URL or the file
    reason: str


class LineageRestored(Event, log_type="lineage", is_notable=True):
    """The events of the run are sent to the server of lineage again."""

    details = "state=restored target lost"
    message = "OpenLineage events are sent to {target} again; {lost} were lost."
    line = "OpenLineage events are sent to {target} again; {lost} were lost"

    target: str
    lost: int  # events that were left out because too many waited
