"""The spans of an update, as an OpenTelemetry collector gets them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.model import events
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.telemetry.traces import Traces, tracing

ORDERS, TOTALS = TableName("shop", "orders"), TableName("shop", "totals")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STEPS = {"marks": 10, "offsets": 20, "write": 60, "commit": 30}


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def traced(*happened: Event) -> dict[str, ReadableSpan]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Traces(provider) as follow:
        for event in happened:
            follow(event)
        spans: Sequence[ReadableSpan] = exporter.get_finished_spans()
    spans = exporter.get_finished_spans()
    assert len({one.name for one in spans}) == len(spans)
    return {one.name: one for one in spans}


def update(mode: Literal["triggered", "continuous"], *between: Event) -> list[Event]:
    began = events.UpdateStarted(
        update="u", at=AT, pipeline="shop", mode=mode, flows=("orders",), views=(TOTALS,)
    )
    ended = events.UpdateFinished(update="u", at=after(10), outcome="completed", duration_s=10.0)
    return [began, *between, ended]


def batch() -> Iterator[Event]:
    flow = {"update": "u", "flow": "orders", "dataset": ORDERS}
    yield events.FlowStarted(**flow, at=after(1), checkpoint="c")
    yield events.BatchCommitted(**flow, at=after(2), batch=3, version=4, rows=7, quarantined=2)
    yield events.BatchTimed(**flow, at=after(2), batch=3, steps_ms=STEPS, jvm_ms={"gc": 5})
    yield events.FlowFinished(**flow, at=after(3), outcome="up to date", rows=7, batches=1)


def milliseconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e6


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_triggered_update_is_one_trace() -> None:
    refreshed = events.ViewRefreshed(
        update="u", at=after(5), dataset=TOTALS, version=2, rows=3, duration_s=1.5, strategy="merge"
    )
    found = traced(*update("triggered", *batch(), refreshed))
    root, flow, one = found["update shop"], found["flow orders"], found["batch orders"]
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    assert root.parent is None and milliseconds(root) == 10_000
    assert root.context and flow.context and one.context
    assert parent(flow) == root.context.span_id and milliseconds(flow) == 2000
    assert parent(one) == flow.context.span_id and milliseconds(one) == 120
    assert dict(one.attributes or {}) == {
        "headrace.flow": "orders", "headrace.dataset": "shop.orders", "headrace.batch": 3, "headrace.rows": 7,
        "headrace.version": 4, "headrace.rejected_rows": 2, "headrace.jvm.gc_ms": 5,
    }  # fmt: skip
    steps = [span for span in found.values() if parent(span) == one.context.span_id]
    steps.sort(key=lambda span: span.start_time or 0)
    assert [(span.name, milliseconds(span)) for span in steps] == [
        ("offsets", 20), ("write", 60), ("commit", 30), ("marks", 10),
    ]  # fmt: skip
    assert [before.end_time for before in steps[:-1]] == [later.start_time for later in steps[1:]]
    assert steps[0].start_time == one.start_time and steps[-1].end_time == one.end_time
    view = found["refresh shop.totals"]
    assert parent(view) == root.context.span_id and milliseconds(view) == 1500
    assert (view.attributes or {})["headrace.strategy"] == "merge"


def test_each_batch_of_a_continuous_update_is_a_trace() -> None:
    found = traced(*update("continuous", *batch()))
    one, root = found["batch orders"], found["update shop"]
    assert one.context and root.context
    assert one.parent is None and one.context.trace_id != root.context.trace_id
    flow = found["flow orders"]
    assert flow.context and [link.context.span_id for link in one.links] == [flow.context.span_id]
    assert [link.context.span_id for link in flow.links] == [root.context.span_id]
    assert parent(found["write"]) == one.context.span_id


def test_errors_are_named_by_their_code() -> None:
    error = {"code": "RECORD_UNPARSEABLE", "summary": "a record is no JSON"}
    flow = {"update": "u", "flow": "orders", "dataset": ORDERS, "error": error}
    for mode in ("triggered", "continuous"):
        retried = events.FlowRetrying(**flow, at=after(1), attempt=1, wait_s=1.0)
        failed = events.FlowFailed(**flow, at=after(2))
        found = traced(*update(mode, retried, failed))  # type: ignore[arg-type]
        for name in ("retry orders", "failure orders"):
            assert not found[name].status.is_ok, (mode, name)
            assert (found[name].attributes or {})["error.type"] == "RECORD_UNPARSEABLE"
        assert found["flow orders"].status.is_ok == (mode == "continuous")


def test_an_update_that_breaks_off_has_its_spans() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.raises(KeyboardInterrupt), Traces(provider) as follow:
        for event in update("triggered", *batch())[:3]:
            follow(event)
        raise KeyboardInterrupt
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert {*found} == {"update shop", "flow orders"}
    assert not found["update shop"].status.is_ok


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_sent_unless_asked(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with tracing() as follow:
        assert follow is None


def test_a_collector_that_hangs_delays_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.telemetry.traces._CLOSE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        with tracing() as follow:
            assert follow is not None
            for event in update("triggered", *batch()):
                follow(event)
            began = time.monotonic()
        assert time.monotonic() - began < 3


def test_a_span_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    traced(*update("continuous", *batch()))
    assert "ended span" not in caplog.text


def test_another_protocol_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with tracing() as follow:
        assert follow is None
    assert (
        "the protocol grpc" in caplog.text
        and "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in caplog.text
    )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setattr("headrace.telemetry.traces._CLOSE_S", 0.0)
    with tracing() as follow:
        assert follow is not None
