"""What a notebook shows of the values that the library returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from lake import HandFlow, Lake

from headrace.errors import RefusedError
from headrace.model.names import TableName
from headrace.model.texts import html_table
from headrace.observe.read import Rows
from headrace.project.pipeline import Pipeline
from headrace.run.reporting import FlowResult
from headrace.run.schedule import RunResult
from headrace.run.views import ViewResult
from headrace.storage.layout import locate


@pytest.fixture
def flow(tmp_path: Path) -> HandFlow:
    (tmp_path / "headrace.yml").write_text("name: shop\nkafka: {bootstrap.servers: 127.0.0.1:9}\n")
    flow = Lake(tmp_path / "lake").table().flow()
    flow.append({0: (0, 10)})
    return flow


def test_a_pipeline_and_what_it_returns_are_short(flow: HandFlow, tmp_path: Path) -> None:
    pipeline = Pipeline.load(tmp_path)
    assert repr(pipeline) == f"<Pipeline shop: profile dev, storage {tmp_path}/lake>"
    status = pipeline.status()
    assert repr(status) == "<Snapshot of shop: 1 unknown>"
    assert repr(status.datasets) == "(<DatasetStatus default.bronze: unknown>,)"
    assert repr(status.datasets[0].flows) == "(<FlowStatus bronze: unknown, lag unknown>,)"
    for shown, texts in (
        (pipeline, ["&lt;Pipeline shop"]),
        (status, ["<td", ">bronze<", ">unknown<", ">10<", "lag unknown: no Kafka broker answers"]),
        (pipeline.verify(), ["shop: proven", "ranges ✓", "records -"]),
        (pipeline.read("bronze"), ["bronze v2", ">id<"]),
    ):
        html = shown._repr_html_()
        assert [text for text in texts if text not in html] == [], html
    assert repr(pipeline.quality()) == "<Quality of shop: 0 datasets, 0 failed rows>"
    (health,) = pipeline.table_health()
    assert repr(health).startswith("<TableHealth bronze: 1 file")


def test_a_result_shows_flows_views_and_errors_with_their_remedies() -> None:
    error = RefusedError("no <topic>", remedies=["headrace reset orders"])
    flow = FlowResult(flow="orders", outcome="up to date", rows=1_200, batches=3, commits=3, duration_s=1.5)
    failed = FlowResult(flow="other", outcome="failed", error=error)
    view = ViewResult(dataset=TableName("default", "gold"), outcome="refreshed", rows=7)
    result = RunResult(update="u", outcome="failed", flows=(flow, failed), views=(view,), duration_s=2.0)
    assert repr(flow) == "<FlowResult orders: up to date, +1,200 rows>"
    html = result._repr_html_()
    for text in (
        "failed in 2.0 s",
        ">1,200<",
        ">refreshed<",
        "no &lt;topic&gt;",
        "help: headrace reset orders",
    ):
        assert text in html, text


def test_rows_are_escaped_and_the_first_ones_are_shown() -> None:
    arrow = pa.table({"id": list(range(60)), "name": ["<b>"] * 60})
    rows = Rows(table="t", path=locate("/t"), version=3, arrow=arrow, types=("long", "string"))
    html = rows._repr_html_()
    assert html.count("<tr>") == 51
    assert "&lt;b&gt;" in html and "<b>t v3</b>" in html and "and 10 more rows" in html
    assert "limit" in replace(rows, is_cut=True)._repr_html_()
    assert html_table("t", ("a",), ()) == "<div><b>t</b></div>"
