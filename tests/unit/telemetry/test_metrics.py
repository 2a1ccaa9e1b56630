"""What a scraper gets: names, labels and values, as Prometheus's own parser reads them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import struct
import subprocess
import threading
import urllib.request
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import ArgumentInvalidError, HeadraceError, StorageAccessError
from headrace.model import events
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.model.table_events import OperationProgressed
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowStatus, ViewStatus
from headrace.storage.layout import Storage
from headrace.telemetry.exposition import MetricsAddress, MetricsServer, own_memory
from headrace.telemetry.metrics import Metrics
from waiting import until

ORDERS, TOTALS = TableName("shop", "orders"), TableName("shop", "totals")
EXPECTATION = {"name": "positive", "dataset": "shop.orders", "passed": 5, "failed": 2, "action": "drop"}
FLOW = {"pipeline": "shop", "dataset": "shop.orders", "flow": "orders"}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMED = events.BatchTimed(
    update="u", flow="orders", dataset=ORDERS, batch=1, steps_ms={"write": 120}, jvm_ms={}
)


def snapshot() -> Snapshot:
    flow = FlowStatus(flow="orders", state="behind", checkpoint="c", batch=4, lag=1234, committed=AT)
    return Snapshot(
        pipeline="shop",
        storage=Storage.at("/lake", Path("/")).root,
        at=AT,
        broker="kafka:9092",
        silence="no answer",
        datasets=(
            DatasetStatus(
                dataset=ORDERS, kind="table", rows=1, files=2, size_bytes=9, changed=AT, flows=(flow,)
            ),
            DatasetStatus(dataset=TOTALS, kind="materialized_view", view=ViewStatus(state="up to date")),
        ),
    )  # fmt: skip


class Scraped:
    def __init__(self, metrics: Metrics) -> None:
        self.families = [*text_string_to_metric_families(metrics.text().decode())]
        self.samples = {
            (one.name, *sorted(one.labels.items())): one.value
            for family in self.families
            for one in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, *sorted(labels.items())))


def commit(**more: object) -> events.BatchCommitted:
    given = {"update": "u", "flow": "orders", "dataset": ORDERS, "batch": 4, "version": 5, "rows": 7}
    return events.BatchCommitted(**{**given, **more})  # type: ignore[arg-type]


def counted(*happened: Event) -> Scraped:
    metrics = Metrics(lambda: [snapshot()], own_memory)
    for event in happened:
        metrics.observe("shop", event)
    return Scraped(metrics)


def test_the_status_is_in_gauges() -> None:
    found = counted()
    assert found.value("headrace_flow_lag_records", **FLOW) == 1234
    assert found.value("headrace_flow_state", **FLOW, state="behind") == 1
    assert found.value("headrace_flow_state", **FLOW, state="failed") == 0
    assert found.value("headrace_flow_committed_timestamp_seconds", **FLOW) == AT.timestamp()
    view = {"pipeline": "shop", "dataset": "shop.totals", "flow": "shop.totals", "state": "up to date"}
    assert found.value("headrace_flow_state", **view) == 1
    assert found.value("headrace_table_files", pipeline="shop", dataset="shop.orders") == 2
    assert found.value("headrace_table_rows", pipeline="shop", dataset="shop.totals") is None
    assert found.value("headrace_broker_up", pipeline="shop") == 0
    assert found.value("headrace_status_up") == 1
    assert (found.value("headrace_memory_bytes", process="python") or 0) > 1_000_000


def test_batches_and_refreshes_are_counted() -> None:
    found = counted(
        commit(duration_s=0.2, quarantined=1, dropped=2, latency_s=(3.0, 1.0), expectations=(EXPECTATION,)),
        commit(duration_s=4.0, batch=5),
        events.ViewRefreshed(update="u", dataset=TOTALS, version=2, rows=3, duration_s=1.5),
    )
    assert found.value("headrace_rows_total", **FLOW, outcome="written") == 14
    assert found.value("headrace_rows_total", **FLOW, outcome="quarantined") == 1
    assert found.value("headrace_rows_total", **FLOW, outcome="dropped") == 2
    assert found.value("headrace_batch_duration_seconds_count", **FLOW) == 2
    assert found.value("headrace_batch_duration_seconds_bucket", **FLOW, le="0.25") == 1
    assert found.value("headrace_record_latency_seconds_sum", **FLOW) == 2
    labels = {"pipeline": "shop", "dataset": "shop.orders", "expectation": "positive"}
    assert found.value("headrace_expectation_rows_total", **labels, result="failed") == 2
    assert found.value("headrace_expectation_rows_total", **labels, result="passed") == 5
    view = {"pipeline": "shop", "dataset": "shop.totals", "flow": "shop.totals"}
    assert found.value("headrace_rows_total", **view, outcome="written") == 3


def test_failures_retries_and_operations_are_counted() -> None:
    error = {"code": "X", "summary": "x"}
    found = counted(
        events.FlowRetrying(update="u", flow="orders", dataset=ORDERS, error=error, attempt=1, wait_s=1.0),
        events.FlowFailed(update="u", flow="orders", dataset=ORDERS, error=error),
        events.UpdateFinished(update="u", outcome="failed", duration_s=1.0),
        TIMED,
        OperationProgressed(update="u", dataset=ORDERS, operation="MAINTENANCE", status="STARTED"),
        OperationProgressed(update="u", dataset=ORDERS, operation="MAINTENANCE", status="COMPLETED"),
    )  # fmt: skip
    assert found.value("headrace_flow_restarts_total", **FLOW) == 1
    assert found.value("headrace_flow_failures_total", **FLOW) == 1
    assert found.value("headrace_updates_total", pipeline="shop", outcome="failed") == 1
    assert found.value("headrace_batch_step_seconds_sum", **FLOW, step="write") == 0.12
    operation = {"pipeline": "shop", "dataset": "shop.orders", "operation": "maintenance"}
    assert found.value("headrace_operations_total", **operation, status="completed") == 1
    assert found.value("headrace_operations_total", **operation, status="started") is None


def test_names_follow_the_conventions() -> None:
    """A prefix, a base unit at the end, ``total`` for counters: https://prometheus.io/docs/practices/naming/"""
    found = counted(commit(duration_s=0.1))
    for family in found.families:
        assert re.fullmatch(r"headrace_[a-z_]+", family.name), family.name
        assert not re.search(r"_(ms|millis|minutes|kb|mb)$", family.name), family.name
        assert family.documentation.endswith("."), family.name
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name


def test_labels_are_quoted() -> None:
    name = 'a "b"\n\\c'
    expectation = {"name": name, "dataset": "shop.orders", "passed": 1, "failed": 0, "action": "warn"}
    found = counted(commit(expectations=(expectation,)))
    labels = {"pipeline": "shop", "dataset": "shop.orders", "expectation": name, "result": "passed"}
    assert found.value("headrace_expectation_rows_total", **labels) == 1


def test_a_storage_that_cannot_be_read_is_a_metric_and_no_failure() -> None:
    def fail() -> Iterable[Snapshot]:
        raise StorageAccessError("it is away")

    metrics = Metrics(fail)
    metrics.observe("shop", commit())
    found = Scraped(metrics)
    assert found.value("headrace_status_up") == 0
    assert found.value("headrace_rows_total", **FLOW, outcome="written") == 7


def test_a_status_is_not_read_for_each_scrape() -> None:
    reads: list[int] = []

    def read() -> Iterable[Snapshot]:
        reads.append(1)
        return [snapshot()]

    metrics = Metrics(read)
    for _ in range(5):
        metrics.text()
    assert len(reads) == 1


# -- the server


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_the_server_asks_for_the_token() -> None:
    server = MetricsServer(Metrics(list), MetricsAddress.parse(":0"), token="s3cret")
    with server.serving():
        assert get(server.url)[0] == 401
        assert get(server.url, Authorization="Bearer other")[0] == 401
        assert get(server.url, Authorization="Basic s3cret")[0] == 401
        status, text = get(server.url, Authorization="Bearer s3cret")
        assert status == 200 and "headrace_build_info" in text
        assert get(server.url.replace("/metrics", "/"), Authorization="Bearer s3cret")[0] == 404
        assert get(server.url, Host="evil.example", Authorization="Bearer s3cret")[0] == 421


def test_a_token_of_other_letters_and_odd_bytes() -> None:
    server = MetricsServer(Metrics(lambda: [snapshot()]), MetricsAddress.parse("0"), "t\u00f6ken\u00e0")
    with server.serving():
        address = urlsplit(server.url)

        def status(token: bytes) -> bytes:
            with socket.create_connection((address.hostname, address.port), 30) as client:
                head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                client.sendall(head + token + b"\r\n\r\n")
                return client.makefile("rb").readline().split()[1]

        assert status("t\u00f6ken\u00e0".encode()) == b"200"
        assert status(b"\xff\xfe\x00") == status("t\u00f6ken".encode()) == b"401"


def test_a_scraper_that_goes_away_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    def read() -> list[Snapshot]:
        asked.set()
        gone.wait(30)
        return [snapshot()]

    gone = threading.Event()
    server = MetricsServer(Metrics(read), MetricsAddress.parse("0"))
    with server.serving():
        address = urlsplit(server.url)
        client = socket.create_connection((address.hostname, address.port), 30)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.wait(30)
        client.close()
        gone.set()
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            assert answer.status == 200
        until(lambda: not [one for one in threading.enumerate() if "process_request" in one.name], "no end")
    assert capsys.readouterr().err == ""


def test_the_server_listens_on_this_machine_unless_told() -> None:
    assert MetricsAddress.parse(":9400") == MetricsAddress.parse("9400") == MetricsAddress("127.0.0.1", 9400)
    assert MetricsAddress.parse("0.0.0.0:9400") == MetricsAddress("0.0.0.0", 9400)
    assert MetricsAddress.parse("[::1]:9400") == MetricsAddress("::1", 9400)


@pytest.mark.parametrize("text", ["", "x", ":70000", "http://a:1", "a b:1"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ArgumentInvalidError, match="is not an address"):
        MetricsAddress.parse(text)


def test_a_port_that_is_taken_is_an_error() -> None:
    server = MetricsServer(Metrics(list), MetricsAddress.parse(":0"))
    with server.serving(), pytest.raises(HeadraceError, match="cannot be served"):
        MetricsServer(Metrics(list), MetricsAddress("127.0.0.1", int(server.url.split(":")[2].split("/")[0])))


# -- what is delivered for Grafana and Prometheus

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_delivered_dashboard_and_rules_ask_for_metrics_that_exist() -> None:
    error = {"code": "X", "summary": "x"}
    found = counted(
        commit(duration_s=0.1, latency_s=(2.0, 1.0), expectations=(EXPECTATION,)),
        events.FlowRetrying(update="u", flow="orders", dataset=ORDERS, error=error, attempt=1, wait_s=1.0),
        TIMED,
    )
    names = {name for name, *_ in found.samples}
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"][0]["rules"]
    targets = [target for panel in panels for target in panel["targets"]]
    asked = [one["expr"] for one in (*targets, *rules)]
    assert len(asked) > 20
    for expression in asked:
        for name in re.findall(r"headrace_\w+", expression):
            assert name in names, expression
    boxes = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"]) for y in [box["y"]]]
    assert len(cells) == len({*cells}) and all(x < 24 for x, _ in cells)
    # A label of a legend or a text is one that the metric has.
    labels = {label for _, *pairs in found.samples for label, _ in pairs}
    texts = [one["legendFormat"] for one in targets]
    for name in re.findall(r"\{\{(\w+)\}\}", " ".join(texts)):
        assert name in labels, name


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_rules_and_the_metrics() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", DEPLOY / "prometheus-rules.yml"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    metrics = Metrics(lambda: [snapshot()], own_memory)
    metrics.observe("shop", commit(duration_s=0.1, latency_s=(2.0, 1.0)))
    linted = subprocess.run(["promtool", "check", "metrics"], input=metrics.text(), capture_output=True)
    assert linted.stderr.decode() == ""
