"""Traces for OpenTelemetry: a span for an update, its flows, their batches, and the steps of each batch."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import PackageMissingError
from headrace.model import events
from headrace.model.event_forms import Emitter, Event, FlowEvent, headline
from headrace.runtime.extras import needing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_logger = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_STEPS = ("offsets", "planning", "turn", "checks", "write", "commit", "report", "marks")
"""The steps of a batch in their order."""
_CLOSE_S = 5.0  # how long the end of an update waits for a collector
_KEPT = 1_000  # commits whose steps are not reported yet


def tracing() -> AbstractContextManager[Emitter | None]:
    """What sends the trace of an update; it gives ``None`` if the variables of OpenTelemetry ask for none."""
    if not any(map(os.environ.get, _ENDPOINTS)) or _is_off():
        return nullcontext()
    try:
        with needing("a trace", "traces"):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except PackageMissingError as error:
        # Other programs of this machine can have asked for traces.
        _logger.warning("no traces are sent: %s; %s", error.headline, error.remedies[0])
        return nullcontext()
    protocol = os.environ.get(_PROTOCOLS[1]) or os.environ.get(_PROTOCOLS[0]) or _PROTOCOL
    if protocol != _PROTOCOL:
        _logger.warning(
            "no traces are sent: the variables of OpenTelemetry choose the protocol %s, but Headrace has "
            "only http/protobuf; set %s=http/protobuf, and the endpoint for HTTP, often port 4318",
            protocol, _PROTOCOLS[1],
        )  # fmt: skip
        return nullcontext()
    service = os.environ.get("OTEL_SERVICE_NAME", "headrace")
    resource = Resource.create({"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


def _is_off() -> bool:
    return (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    )


class Traces:
    """Turns the events of one update into spans. Several threads may call it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace")
        self._lock = threading.Lock()
        self._update: Span | None = None
        self._is_continuous = False
        self._flows: dict[str, Span] = {}
        self._commits: dict[tuple[str, int], events.BatchCommitted] = {}

    def __enter__(self) -> Traces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            for span in (*self._flows.values(), *([] if self._update is None else [self._update])):
                _end(span, None if error is None else type(error).__name__)
        # The end of the exporter waits longer than it was told, for each batch of spans.
        closing = threading.Thread(target=self._provider.shutdown, name="headrace-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            _logger.warning("the last spans may be missing: the collector did not answer in %g s", _CLOSE_S)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._follow(event)

    def _follow(self, event: Event) -> None:
        match event:
            case events.UpdateStarted():
                self._start_update(event)
            case events.UpdateFinished() if self._update is not None:
                _end(self._update, "failed" if event.outcome == "failed" else None, event.at)
                self._update = None
            case events.FlowStarted():
                self._flow(event.flow, event)
            case events.FlowFinished():
                self._end_flow(event.flow, event.at)
            case events.FlowFailed():
                self._add_error(f"failure {event.flow}", event)
                self._end_flow(event.flow, event.at, event.error)
            case events.FlowRetrying():
                self._add_error(f"retry {event.flow}", event)
            case events.BatchCommitted():
                self._commits[event.flow, event.batch] = event
                while len(self._commits) > _KEPT:
                    del self._commits[next(iter(self._commits))]
            case events.BatchTimed():
                self._add_batch(event)
            case events.ViewRefreshed():
                self._add_refresh(event)
            case events.ViewFailed():
                known = {"headrace.dataset": str(event.dataset)}
                _end(self._span(f"refresh {event.dataset}", event.at, known), event.error, event.at)

    def _start_update(self, event: events.UpdateStarted) -> None:
        self._is_continuous = event.mode == "continuous"
        known = {
            "headrace.pipeline": event.pipeline,
            "headrace.update": event.update,
            "headrace.mode": event.mode,
        }
        self._update = self._span(f"update {event.pipeline}", event.at, known)
        if self._is_continuous:
            # Its batches link to it while it runs: a collector has to have it by then.
            self._update.end(_ns(event.at))

    def _flow(self, name: str, event: FlowEvent) -> Span:
        """The span of a flow in this update."""
        found = self._flows.get(name)
        if found is None:
            known = {"headrace.flow": name, "headrace.dataset": str(event.dataset)}
            found = self._flows[name] = self._span(f"flow {name}", event.at, known)
            if self._is_continuous:
                found.end(_ns(event.at))
        return found

    def _end_flow(self, name: str, at: datetime, error: Mapping[str, Any] | None = None) -> None:
        if (span := self._flows.pop(name, None)) is not None:
            _end(span, error, at)

    def _add_error(self, name: str, event: events.FlowFailed | events.FlowRetrying) -> None:
        known = {"headrace.flow": event.flow, "headrace.dataset": str(event.dataset)}
        span = self._span(name, event.at, known, self._flow(event.flow, event))
        _end(span, event.error, event.at)

    def _add_batch(self, event: events.BatchTimed) -> None:
        commit = self._commits.pop((event.flow, event.batch), None)
        known: dict[str, Any] = {
            "headrace.flow": event.flow,
            "headrace.dataset": str(event.dataset),
            "headrace.batch": event.batch,
        }
        if commit is not None:
            known |= {"headrace.rows": commit.rows, "headrace.version": commit.version}
            known |= {"headrace.rejected_rows": commit.quarantined + commit.dropped}
        known |= {f"headrace.jvm.{name}_ms": ms for name, ms in event.jvm_ms.items()}
        began = event.at - timedelta(seconds=event.total_s)
        parent = self._flow(event.flow, event)
        span = self._span(f"batch {event.flow}", began, known, parent)
        for step in sorted(event.steps_ms, key=_order):
            part = self._span(step, began, {}, span, is_part=True)
            began += timedelta(milliseconds=event.steps_ms[step])
            part.end(_ns(began))
        span.end(_ns(event.at))

    def _add_refresh(self, event: events.ViewRefreshed) -> None:
        known = {"headrace.dataset": str(event.dataset), "headrace.version": event.version}
        known |= {"headrace.rows": event.rows, "headrace.strategy": event.strategy}
        began = event.at - timedelta(seconds=event.duration_s or 0.0)
        self._span(f"refresh {event.dataset}", began, known).end(_ns(event.at))

    def _span(
        self,
        name: str,
        began: datetime,
        attributes: Mapping[str, Any],
        parent: Span | None = None,
        *,
        is_part: bool = False,
    ) -> Span:
        """A span under its parent, or under the update. A continuous update only has links to it: a trace of
        days could not be shown. `is_part`: whether it belongs to its parent in any case."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, set_span_in_context

        above = parent or self._update
        is_child = above is not None and (is_part or not self._is_continuous)
        return self._tracer.start_span(
            name,
            context=set_span_in_context(above) if above is not None and is_child else Context(),
            links=[Link(above.get_span_context())] if above is not None and not is_child else [],
            attributes=attributes,
            start_time=_ns(began),
        )


def _order(step: str) -> int:
    return _STEPS.index(step) if step in _STEPS else len(_STEPS)


def _end(span: Span, error: Mapping[str, Any] | str | None, at: datetime | None = None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if not span.is_recording():
        return  # That of a continuous update ends when it begins.
    if error is not None:
        text = error if isinstance(error, str) else headline(error)
        span.set_status(Status(StatusCode.ERROR, text))
        if not isinstance(error, str):
            span.set_attributes(_error(error))
    span.end(None if at is None else _ns(at))


def _error(error: Mapping[str, Any]) -> dict[str, str]:
    return {"error.type": str(error.get("code")), "exception.message": headline(error)}


def _ns(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1_000
