"""The metrics of pipelines, for Prometheus: gauges of their status, and counts of their batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Summary,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from headrace.errors import HeadraceError, first_line
from headrace.model import events
from headrace.model.event_forms import Event
from headrace.model.table_events import OperationProgressed
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowState, FlowStatus, ViewState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_logger = logging.getLogger(__name__)

_FLOW = ("pipeline", "dataset", "flow")
_TABLE = ("pipeline", "dataset")
_STATES = tuple(dict.fromkeys((*get_args(FlowState), *get_args(ViewState))))
_BATCH_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LATENCY_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_LOOK_S = 5.0  # A status is at least this old before the next scrape reads it again,
_SHARE = 20  # and reading it takes at most this part of the time.


@dataclass(frozen=True, kw_only=True)
class CommittedRows:
    """A batch, or a refresh of a view, as it is counted."""

    pipeline: str
    dataset: str
    flow: str  # for a view, the name of the view
    rows: int
    quarantined: int = 0
    dropped: int = 0
    duration_s: float | None = None
    latency_s: float | None = None
    # Each has ``name``, ``passed_records`` and ``failed_records``, as in the event log.
    expectations: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, pipeline: str, event: events.BatchCommitted | events.ViewRefreshed) -> CommittedRows:
        batch = event if isinstance(event, events.BatchCommitted) else None
        return cls(
            pipeline=pipeline,
            dataset=str(event.dataset),
            flow=str(event.dataset) if batch is None else batch.flow,
            rows=event.rows,
            quarantined=event.quarantined,
            dropped=event.dropped,
            duration_s=event.duration_s,
            latency_s=None if batch is None else batch.mean_latency_s,
            expectations=event.build_details()["data_quality"].get("expectations", ()),
        )


class Metrics:
    """Counts what happens, and reads the status of pipelines when it is asked for its text. All labels are
    names of declarations, so that their number has a limit. Any thread may call it.

    Args:
        read_statuses: Returns the status of each pipeline.
        own_memory: Returns the memory of the processes of a run in bytes, by the kind of process.
    """

    def __init__(
        self,
        read_statuses: Callable[[], Iterable[Snapshot]],
        own_memory: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        # Else each counter has a second series with the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_Statuses(read_statuses, own_memory))

        def counter(name: str, text: str, labels: Sequence[str]) -> Counter:
            return Counter(name, text, labels, registry=self._registry)

        self._duration = Histogram(
            "headrace_batch_duration_seconds",
            "Time from the start of a batch, or of a refresh of a view, to the end of its commit.",
            _FLOW,
            buckets=_BATCH_S,
            registry=self._registry,
        )
        self._latency = Histogram(
            "headrace_record_latency_seconds",
            "Age of the records of a batch at its commit: the middle of its oldest and its newest record.",
            _FLOW,
            buckets=_LATENCY_S,
            registry=self._registry,
        )
        self._steps = Summary(
            "headrace_batch_step_seconds", "Time of each step of batches.", (*_FLOW, "step"),
            registry=self._registry,
        )  # fmt: skip
        self._rows = counter(
            "headrace_rows", "Rows of batches: written, quarantined or dropped.", (*_FLOW, "outcome")
        )
        self._expectations = counter(
            "headrace_expectation_rows", "Rows that passed or failed an expectation.",
            (*_TABLE, "expectation", "result"),
        )  # fmt: skip
        self._restarts = counter("headrace_flow_restarts", "Retries of a flow after an error.", _FLOW)
        self._failures = counter("headrace_flow_failures", "Flows and views that ended with an error.", _FLOW)
        self._updates = counter("headrace_updates", "Updates that have ended.", ("pipeline", "outcome"))
        self._operations = counter(
            "headrace_operations", "Maintenance and other operations on tables.",
            (*_TABLE, "operation", "status"),
        )  # fmt: skip

    def count_commit(self, done: CommittedRows) -> None:
        flow = (done.pipeline, done.dataset, done.flow)
        outcomes = {"written": done.rows, "quarantined": done.quarantined, "dropped": done.dropped}
        for outcome, rows in outcomes.items():
            self._rows.labels(*flow, outcome).inc(rows)
        if done.duration_s is not None:
            self._duration.labels(*flow).observe(done.duration_s)
        if done.latency_s is not None:
            self._latency.labels(*flow).observe(max(done.latency_s, 0.0))
        for one in done.expectations:
            for result in ("passed", "failed"):
                labels = (done.pipeline, done.dataset, one["name"], result)
                self._expectations.labels(*labels).inc(one[f"{result}_records"])

    def count_restart(self, pipeline: str, dataset: str, flow: str) -> None:
        self._restarts.labels(pipeline, dataset, flow).inc()

    def count_failure(self, pipeline: str, dataset: str, flow: str) -> None:
        self._failures.labels(pipeline, dataset, flow).inc()

    def count_update(self, pipeline: str, outcome: str) -> None:
        self._updates.labels(pipeline, outcome).inc()

    def count_operation(self, pipeline: str, dataset: str, operation: str, status: str) -> None:
        self._operations.labels(pipeline, dataset, operation.lower(), status.lower()).inc()

    def observe(self, pipeline: str, event: Event) -> None:
        """Count an event of an update that runs in this process."""
        match event:
            case events.BatchCommitted() | events.ViewRefreshed():
                self.count_commit(CommittedRows.of(pipeline, event))
            case events.BatchTimed():
                for step, ms in event.steps_ms.items():
                    labels = (pipeline, str(event.dataset), event.flow, step)
                    self._steps.labels(*labels).observe(ms / 1000)
            case events.FlowRetrying():
                self.count_restart(pipeline, str(event.dataset), event.flow)
            case events.FlowFailed():
                self.count_failure(pipeline, str(event.dataset), event.flow)
            case events.ViewFailed():
                self.count_failure(pipeline, str(event.dataset), str(event.dataset))
            case events.UpdateFinished():
                self.count_update(pipeline, event.outcome)
            case OperationProgressed() if event.status != "STARTED":
                self.count_operation(pipeline, str(event.dataset), event.operation, event.status)

    def text(self) -> bytes:
        """The metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


class _Statuses:
    """Gauges of the status of pipelines, which is read when somebody asks."""

    def __init__(
        self, read: Callable[[], Iterable[Snapshot]], own_memory: Callable[[], Mapping[str, int]] | None
    ) -> None:
        self._read = read
        self._own_memory = own_memory
        self._lock = threading.Lock()
        self._newest: tuple[Snapshot, ...] = ()
        self._due = 0.0
        self._works = False

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            self._look()
            gauges = _Gauges()
            for snapshot in self._newest:
                gauges.add_pipeline(snapshot)
            up = GaugeMetricFamily("headrace_status_up", "Whether the status could be read the last time.")
            up.add_metric((), float(self._works))
        info = InfoMetricFamily("headrace_build", "The version of Headrace.")
        info.add_metric((), {"version": version("headrace")})
        yield from (info, up, *gauges.families.values())
        if self._own_memory is not None:
            memory = GaugeMetricFamily(
                "headrace_memory_bytes", "Resident memory of the run's processes.", labels=("process",)
            )
            for process, size in self._own_memory().items():
                memory.add_metric((process,), size)
            yield memory

    def describe(self) -> Iterable[Metric]:
        """No names: the registry would read a status to learn them."""
        return ()

    def _look(self) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        try:
            self._newest, self._works = tuple(self._read()), True
        except (HeadraceError, OSError, ValueError) as error:
            _logger.warning("the status cannot be read: %s", first_line(error))
            self._works = False
        ended = time.monotonic()
        self._due = ended + max(_LOOK_S, _SHARE * (ended - began))


_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "headrace_flow_lag_records": ("Records or files in the sources beyond the last batch.", _FLOW),
    "headrace_flow_lag_bytes": ("The size of the files beyond the last batch.", _FLOW),
    "headrace_flow_state": ("1 for the state of a flow or view, 0 for the others.", (*_FLOW, "state")),
    "headrace_flow_committed_timestamp_seconds": ("When the last batch was committed.", _FLOW),
    "headrace_flow_late_rows": ("Rows that came behind the watermark, since the checkpoint began.", _FLOW),
    "headrace_table_rows": ("Rows of a table.", _TABLE),
    "headrace_table_files": ("Data files of a table.", _TABLE),
    "headrace_table_size_bytes": ("The size of these files.", _TABLE),
    "headrace_table_version": ("The newest version of a table.", _TABLE),
    "headrace_table_changed_timestamp_seconds": ("When rows were last added or removed.", _TABLE),
    "headrace_table_readable": ("0 if the log of a table cannot be read.", _TABLE),
    "headrace_broker_up": ("0 if the broker did not answer the last time.", ("pipeline",)),
}


class _Gauges:
    def __init__(self) -> None:
        self.families = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()
        }

    def add_pipeline(self, snapshot: Snapshot) -> None:
        pipeline = snapshot.pipeline
        if snapshot.broker is not None:
            self._set("broker_up", (pipeline,), float(snapshot.silence is None))
        for one in snapshot.datasets:
            self._add_dataset((pipeline, str(one.dataset)), one)

    def _add_dataset(self, labels: tuple[str, str], one: DatasetStatus) -> None:
        self._set("table_rows", labels, one.rows)
        self._set("table_files", labels, one.files)
        self._set("table_size_bytes", labels, one.size_bytes)
        self._set("table_version", labels, one.version)
        self._set("table_changed_timestamp_seconds", labels, _seconds(one.changed))
        self._set("table_readable", labels, float(one.problem is None))
        for flow in one.flows:
            self._add_flow((*labels, flow.flow), flow)
        if one.view is not None:
            self._set_state((*labels, str(one.dataset)), one.view.state)

    def _add_flow(self, labels: tuple[str, str, str], flow: FlowStatus) -> None:
        self._set("flow_lag_records", labels, flow.lag)
        self._set("flow_lag_bytes", labels, flow.lag_bytes)
        self._set("flow_committed_timestamp_seconds", labels, _seconds(flow.committed))
        self._set("flow_late_rows", labels, flow.late)
        self._set_state(labels, flow.state)

    def _set_state(self, labels: tuple[str, str, str], state: str) -> None:
        for one in _STATES:
            self._set("flow_state", (*labels, one), float(one == state))

    def _set(self, name: str, labels: tuple[str, ...], value: float | None) -> None:
        """Add a sample; an unknown value has none."""
        if value is not None:
            self.families[f"headrace_{name}"].add_metric(labels, value)


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
