"""OpenLineage's events of an update, from the events of the update itself. Needs `openlineage-python`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from typing import Any

from openlineage.client import facet_v2
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde

from headrace.lineage import facets
from headrace.lineage.naming import name_inputs
from headrace.model.event_forms import Event
from headrace.model.events import (
    NAMESPACE,
    BatchCommitted,
    Committed,
    FlowFailed,
    FlowFinished,
    FlowSkipped,
    FlowStarted,
    UpdateFinished,
    UpdateStarted,
    ViewFailed,
    ViewRefreshed,
    ViewRefreshing,
    ViewSkipped,
    ViewUpToDate,
)
from headrace.model.lineage import DatasetId
from headrace.model.project import LineageSettings, ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan.stages import Plan, PlannedFlow
from headrace.storage.table_log import added_bytes

_PRODUCER = f"urn:headrace:{version('headrace')}"
Sent = dict[str, Any]


@dataclass
class _FlowRun:
    """The run of a flow or a view in this update."""

    name: str
    planned: facets.Planned | None
    number: int  # how often it has begun in this update
    is_open: bool = True  # whether it has not ended
    rows: int = 0
    size: int | None = None
    has_written: bool = False
    quality: dict[str, tuple[int, int]] = field(default_factory=dict)
    read: dict[int, dict[DatasetId, None]] = field(default_factory=dict)  # by the index of the source
    sent: float = field(default_factory=time.monotonic)  # when its last event was sent


class LineageEvents:
    """Makes OpenLineage's events of the events of one update; serves one thread. `plan`: is ``None`` if the
    update has nothing to do."""

    def __init__(
        self, to: LineageSettings, settings: ProjectSettings, update: str, plan: Plan | None
    ) -> None:
        self._to, self._settings, self._update, self._plan = to, settings, update, plan
        planned: list[facets.Planned] = [] if plan is None else [*plan.flows, *plan.refreshes]
        self._planned: Mapping[str, facets.Planned] = {self._key(one): one for one in planned}
        self._runs: dict[str, _FlowRun] = {}
        self._is_open = self._is_continuous = False

    @staticmethod
    def _key(planned: facets.Planned) -> str:
        is_flow = isinstance(planned, PlannedFlow)
        return planned.flow.name if is_flow else str(planned.flow.target)

    def of(self, event: Event) -> Iterator[Sent]:
        """OpenLineage's events of an event of the update; none for most of them."""
        match event:
            case UpdateStarted():
                self._is_open, self._is_continuous = True, event.mode == "continuous"
                yield self._of_update(RunState.START, event.at)
            case FlowStarted():
                yield from self._begin(event.flow, event.at)
            case ViewRefreshing():
                yield from self._begin(str(event.dataset), event.at)
            case BatchCommitted():
                yield from self._count(event.flow, event)
            case ViewRefreshed():
                yield from self._count(str(event.dataset), event)
                if not self._is_continuous:
                    yield from self._end(str(event.dataset), RunState.COMPLETE, event.at)
            case ViewUpToDate() if not self._is_continuous:
                yield from self._end(str(event.dataset), RunState.COMPLETE, event.at)
            case FlowFinished():
                yield from self._end(event.flow, self._stopped(event.outcome == "stopped"), event.at)
            case FlowFailed():
                yield from self._fail(event.flow, event.at, event.error)
            case ViewFailed():
                yield from self._fail(str(event.dataset), event.at, event.error)
            case FlowSkipped():
                yield from self._end(event.flow, RunState.ABORT, event.at)
            case ViewSkipped():
                yield from self._end(str(event.dataset), RunState.ABORT, event.at)
            case UpdateFinished():
                yield from self.close(event.at, event.outcome)

    def close(self, at: datetime, outcome: str = "failed") -> Iterator[Sent]:
        """The last events; an update that an exception has ended has failed."""
        end = RunState.FAIL if outcome == "failed" else self._stopped(outcome == "stopped")
        for name, run in [*self._runs.items()]:
            if run.is_open:
                yield from self._end(name, RunState.ABORT if outcome == "failed" else end, at)
        if self._is_open:
            self._is_open = False
            yield self._of_update(end, at)

    def _stopped(self, is_stopped: bool) -> RunState:
        """How a run has ended. A continuous run always ends because somebody stops it."""
        return RunState.ABORT if is_stopped and not self._is_continuous else RunState.COMPLETE

    def _begin(self, name: str, at: datetime) -> Iterator[Sent]:
        run = self._runs.get(name)
        if run is None or not run.is_open:
            number = 1 if run is None else run.number + 1
            self._runs[name] = run = _FlowRun(name, self._planned.get(name), number)
            yield self._of_flow(run, RunState.START, at)

    def _fail(self, name: str, at: datetime, error: Mapping[str, Any]) -> Iterator[Sent]:
        """The end of a run, with the code of its error and the command that shows its text: a text can quote
        values of rows."""
        place = error.get("location") or {}
        where = f" at {place['path']}:{place['line']}" if place else ""
        text = f"`{name}` failed{where}; the whole error: headrace events --flow {name} --level error"
        yield from self._end(name, RunState.FAIL, at, facets.error_facets(str(error.get("code")), text))

    def _end(
        self, name: str, state: RunState, at: datetime, more: facets.Facets | None = None
    ) -> Iterator[Sent]:
        yield from self._begin(name, at)
        run = self._runs[name]
        run.is_open = False
        yield self._of_flow(run, state, at, more or {})

    def _count(self, name: str, event: Committed) -> Iterator[Sent]:
        yield from self._begin(name, event.at)
        run = self._runs[name]
        run.rows, run.has_written = run.rows + event.rows, True
        if (size := self._size(run, event)) is not None:
            run.size = (run.size or 0) + size
        for one in event.expectations:
            passed, failed = run.quality.get(one["name"], (0, 0))
            run.quality[one["name"]] = passed + one["passed"], failed + one["failed"]
        for read in event.ranges if isinstance(event, BatchCommitted) else ():
            self._note_read(run, read)
        if time.monotonic() - run.sent >= self._to.interval_s:
            run.sent = time.monotonic()
            yield self._of_flow(run, RunState.RUNNING, event.at)

    def _note_read(self, run: _FlowRun, read: SourceRange) -> None:
        """Keep the datasets that a range names: a pattern can find further topics."""
        for source in run.planned.sources if isinstance(run.planned, PlannedFlow) else ():
            if source.index == read.index and source.table is None:
                found = source.datasets(self._settings, read.identity)
                run.read.setdefault(read.index, {}).update(dict.fromkeys(found))

    def _size(self, run: _FlowRun, event: Committed) -> int | None:
        """The size of the files that a commit has added; ``None`` if it cannot be read."""
        if isinstance(run.planned, PlannedFlow) and run.planned.sink is not None:
            return None
        try:
            return added_bytes(self._settings.storage.table(event.dataset), event.version)
        except (OSError, ValueError):
            return None

    def _run_id(self, name: str = "", number: int = 0) -> str:
        parts = (str(self._settings.storage.root), self._settings.name, self._update, name, f"{number}")
        return str(uuid.uuid5(NAMESPACE, "/".join(parts)))

    def _of_update(self, state: RunState, at: datetime) -> Sent:
        job = Job(
            self._to.namespace, self._settings.name, facets.job_facets("UPDATE", streams=self._is_continuous)
        )
        return self._event(state, at, job, Run(self._run_id(), self._run_facets()))

    def _run_facets(self) -> facets.Facets:
        field = facet_v2.tags_run.TagsRunFacetFields(key="update", value=self._update, source="HEADRACE")
        return {**facets.engine_facets(), "tags": facet_v2.tags_run.TagsRunFacet(tags=[field])}

    def _of_flow(
        self, run: _FlowRun, state: RunState, at: datetime, more: facets.Facets | None = None
    ) -> Sent:
        parent = facet_v2.parent_run
        own: facets.Facets = {
            **self._run_facets(),
            **(more or {}),
            "parent": parent.ParentRunFacet(
                run=parent.Run(self._run_id()), job=parent.Job(self._to.namespace, self._settings.name)
            ),
        }
        name = f"{self._settings.name}.{run.name}"
        inputs, outputs, about = [], [], facets.job_facets("FLOW", streams=self._is_continuous)
        if run.planned is not None and self._plan is not None:
            names = name_inputs(run.planned, self._settings, run.read)
            inputs = facets.input_datasets(run.planned, self._plan, names)
            output = facets.output_dataset(run.planned, self._plan, names, run.quality)
            if run.has_written:
                output.outputFacets = facets.statistics(run.rows, run.size)
            outputs = [output]
            about = facets.flow_job_facets(run.planned, self._plan, streams=self._is_continuous)
        event_run = Run(self._run_id(run.name, run.number), own)
        return self._event(state, at, Job(self._to.namespace, name, about), event_run, inputs, outputs)

    def _event(
        self, state: RunState, at: datetime, job: Job, run: Run, inputs: Any = (), outputs: Any = ()
    ) -> Sent:
        event = RunEvent(
            eventTime=at.isoformat(),
            producer=_PRODUCER,
            run=run,
            job=job,
            eventType=state,
            inputs=[*inputs],
            outputs=[*outputs],
        )
        found: Sent = self._settings.redactor.data(_with_producer(Serde.to_dict(event)))
        return found


def _with_producer(value: Any) -> Any:
    """The event with our name in each facet, where the library has put its own."""
    match value:
        case dict():
            return {
                key: _PRODUCER if key == "_producer" else _with_producer(one) for key, one in value.items()
            }
        case list():
            return [*map(_with_producer, value)]
        case _:
            return value
