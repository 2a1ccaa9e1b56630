"""Pages over an event log that two pipelines share: neither shows what is the other's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.model.event_forms import Row
from headrace.model.events import BatchCommitted, UpdateFinished, UpdateStarted
from headrace.model.names import TableName
from headrace.observe.event_rows import Origin, RowBuilder
from headrace.observe.event_table import EventTable
from waiting import until

NOW = datetime.now(UTC)


def events_of(pipeline: str, minutes: int, outcome: Any) -> list[Row]:
    """The rows of an update with one batch; its plan is recorded as the newest."""
    update, table = f"update-of-{pipeline}", TableName("default", f"table_of_{pipeline}")
    builder = RowBuilder(Origin(pipeline, "lake", update))
    at = NOW - timedelta(minutes=minutes)
    flow = f"flow_of_{pipeline}"
    started = UpdateStarted(
        update=update, pipeline=pipeline, mode="triggered", flows=(flow,), views=(), at=at
    )
    batch = BatchCommitted(
        update=update,
        flow=flow,
        dataset=table,
        batch=0,
        version=1,
        rows=7,
        quarantined=3,
        checkpoint="c",
        at=at,
    )
    finished = UpdateFinished(update=update, outcome=outcome, duration_s=4.0, at=at + timedelta(seconds=4))
    rows = [row for one in (started, batch, finished) for row in builder.rows(one)]
    definition = {"dataset_type": "STREAMING_TABLE", "comment": None, "expectations": []}
    defined = builder._row(
        started, "dataset_definition", definition, "defined", dataset_name=str(table), flow_name=None
    )
    return [*rows, defined]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    root = tmp_path_factory.mktemp("shared")
    (root / "headrace.yml").write_text("name: shop\nlibraries: [{file: none.py}]\n")
    with pytest.MonkeyPatch.context() as patch, requests.Session() as session:
        patch.setenv("HEADRACE_CACHE", str(root / "cache"))
        settings = load_project(root)
        rows = [*events_of("shop", 5, "completed"), *events_of("bank", 3, "failed")]
        EventTable(settings.storage.events).append(rows)
        dashboard = Dashboard(settings, Address(port=0), token="t")
        with serving(dashboard):
            home = f"http://127.0.0.1:{dashboard.port}"
            session.get(f"{home}/?token=t", timeout=10)
            until(lambda: dashboard.site.index.progress.done == 1, "the index was not made")
            until(lambda: "bank" in dashboard.site.watcher.statuses, "no status of the other pipeline")
            yield SimpleNamespace(get=lambda path: session.get(home + path, timeout=10), settings=settings)


def test_the_first_page_has_both_pipelines(shared: SimpleNamespace) -> None:
    text = shared.get("/").text
    assert re.findall(r'<h2><a href="/p/(\w+)/">', text) == ["bank", "shop"]
    assert 'class="dot bad" href="/p/bank/update?id=update-of-bank"' in text
    assert 'class="dot good" href="/p/shop/update?id=update-of-shop"' in text


@pytest.mark.parametrize(("own", "other"), [("shop", "bank"), ("bank", "shop")])
def test_no_page_shows_what_is_of_the_other_pipeline(shared: SimpleNamespace, own: str, other: str) -> None:
    pages = ("", "updates", "events", "topics", "proof", "graph.json", f"update?id=update-of-{own}")
    for path in (*pages, f"dataset?name=default.table_of_{own}", f"gantt.json?id=update-of-{own}"):
        answer = shared.get(f"/p/{own}/{path}")
        assert answer.status_code == 200, path
        assert f"table_of_{other}" not in answer.text and f"update-of-{other}" not in answer.text, path
    for path in (f"dataset?name=default.table_of_{other}", f"update?id=update-of-{other}"):
        assert shared.get(f"/p/{own}/{path}").status_code == 404, path
    event = re.search(r"event\?id=([0-9a-f]+)", shared.get(f"/p/{other}/events").text)
    assert event is not None
    assert shared.get(f"/p/{own}/event?id={event[1]}").status_code == 404


def test_the_figures_of_an_update_are_those_of_its_batches(shared: SimpleNamespace) -> None:
    update = shared.get("/p/shop/update?id=update-of-shop").text
    line = re.search(r"<tr><th scope=\"row\"><a[^>]*>flow_of_shop.*?</tr>", update)
    assert line is not None
    assert re.findall(r"class=\"num[^\"]*\">(?:<a[^>]*>)?([^<]+)", line[0])[:3] == ["1", "7", "3"]
    nodes = shared.get("/p/shop/graph.json").json()["nodes"]
    assert [(one["label"], one["rejected"]) for one in nodes] == [("table_of_shop", 3)]


def test_one_pipeline_alone_can_be_shown(shared: SimpleNamespace) -> None:
    dashboard = Dashboard(shared.settings, Address(port=0), "bank", token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}"
        text = session.get(f"{home}/?token=t", timeout=10).text
        assert "/p/bank/" in text and "/p/shop/" not in text
        assert session.get(f"{home}/p/shop/", timeout=10).status_code == 404
