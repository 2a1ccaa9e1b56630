"""Metrics that a run serves while it works, and the trace that it sends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark.sql import SparkSession

from headrace.cli.main import run
from headrace.cli.metrics import serving_metrics
from headrace.cli.output import TextOutput
from headrace.project.pipeline import Pipeline
from hook_server import running_hook
from landing import Site


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    site = Site(tmp_path / "site")
    site.write_spec(metrics={"token": "t0ken"})
    return site


def test_a_run_serves_its_metrics(site: Site) -> None:
    output = TextOutput(stdout=io.StringIO(), stderr=io.StringIO())
    site.put("a.json", {"id": 1}, {"id": 2})
    with Pipeline.load(site.root) as pipeline:
        with serving_metrics(output, pipeline.settings, "127.0.0.1:0") as count:
            said = output.stderr.getvalue()
            assert said.startswith("Metrics  http://127.0.0.1:")
            assert requests.get(said.split()[1], timeout=30).status_code == 401
            assert pipeline.run(emit=count).outcome == "completed"
            given = {"Authorization": "Bearer t0ken"}
            text = requests.get(said.split()[1], headers=given, timeout=30).text
        flow = f'dataset="{site.name()}",flow="visits",pipeline="site"'
        rows = f'dataset="{site.name()}",flow="visits",outcome="written",pipeline="site"'
        assert f"headrace_rows_total{{{rows}}} 2.0" in text
        assert f"headrace_batch_duration_seconds_count{{{flow}}} 1.0" in text
        assert f"headrace_flow_lag_records{{{flow}}} 0.0" in text
        assert 'headrace_memory_bytes{process="jvm"}' in text
        assert 'headrace_updates_total{outcome="completed",pipeline="site"} 1.0' in text


def test_the_option_serves_them(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.put("a.json", {"id": 1})
    project = ["--project", str(site.root)]
    assert run(["run", "--metrics", ":0", *project]) == 0
    assert "Metrics  http://127.0.0.1:" in capsys.readouterr().err
    assert run(["run", "--metrics", ":0", "--json", *project]) == 0
    first, *_ = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["note"].startswith("metrics: http://127.0.0.1:")
    assert run(["run", "--metrics", "lake:ninety", *project]) != 0
    assert "headrace run --continuous --metrics :9400" in capsys.readouterr().err


def test_a_run_sends_its_trace(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.put("a.json", {"id": 1}, {"id": 2})
    with running_hook() as hook:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", hook.url)
        site.run_well()
    spans = {
        span.name: span
        for one in hook.taken
        for resource in ExportTraceServiceRequest.FromString(one.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert {"update site", "flow visits", "batch visits", "write", "commit"} <= {*spans}
    assert len({span.trace_id for span in spans.values()}) == 1
    assert spans["batch visits"].parent_span_id == spans["flow visits"].span_id


def test_a_collector_that_is_away_fails_no_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    site.put("a.json", {"id": 1})
    site.run_well()
    assert site.ids() == [1]
