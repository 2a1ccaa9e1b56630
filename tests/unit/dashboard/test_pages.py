"""Pages over an event log that two pipelines share: neither shows what is the other's."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import requests
from deltalake import DeltaTable, write_deltalake

from headrace.dashboard.graph import _recent
from headrace.dashboard.pipelines import rejected_today
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.dashboard.site import PipelineView, Site
from headrace.declare.spec import load_project
from headrace.model.event_forms import Row
from headrace.model.events import BatchCommitted, FlowFailed, UpdateFinished, UpdateStarted
from headrace.model.names import TableName
from headrace.observe.event_rows import Origin, RowBuilder
from headrace.observe.event_table import EventTable
from headrace.storage.layout import locate
from waiting import until

NOW = datetime.now(UTC)
SECRET, VALUE = "hunter2-of-the-cluster", "a-value-of-a-row"


def failed() -> list[Row]:
    """The rows of errors that quote a secret and a row, some with locations of another form."""
    builder = RowBuilder(Origin("shop", "lake", "update-of-shop"))
    places = (
        {"path": "a\0b.py", "line": 1},
        {"path": "a.py", "line": "1"},
        {"path": 1, "line": 1},
        "a.py",
        None,
    )
    errors: list[Any] = [
        {
            "code": f"CODE_{number}",
            "summary": f"no login with {SECRET}",
            "facts": [f"{VALUE} {SECRET}"],
            "remedies": [f"log in:   headrace run --set key={SECRET}", f"headrace run {SECRET}"],
            "params": {"row": VALUE, "login": SECRET},
            "location": place,
        }
        for number, place in enumerate(places)
    ]
    table = TableName("default", "table_of_shop")
    events = [
        FlowFailed(update="update-of-shop", flow="flow_of_shop", dataset=table, error=one, at=NOW)
        for one in errors
    ]
    rows = [row for one in events for row in builder.rows(one)]
    text = {"flow_progress": {"status": "FAILED", "error": f"only a text, {SECRET}"}}
    return [*rows, {**rows[0], "id": str(uuid.uuid4()), "details": json.dumps(text)}]


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
        settings.redactor.add(SECRET)
        rows = [*events_of("shop", 5, "completed"), *events_of("bank", 3, "failed"), *failed()]
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


@pytest.mark.parametrize("shows_rows", [True, False])
def test_no_page_has_a_secret_or_the_value_of_a_row(shared: SimpleNamespace, shows_rows: bool) -> None:
    settings = replace(shared.settings, shows_rows=shows_rows)
    dashboard = Dashboard(settings, Address(port=0), token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}/p/shop/"
        events = session.get(f"{home}events?level=error&token=t", timeout=10).text
        ids = set(re.findall(r"event\?id=([0-9a-f]+)", events))
        assert len(ids) == 6
        pages = ["events", "updates", "update?id=update-of-shop", "dataset?name=default.table_of_shop"]
        for path in [*pages, *(f"event?id={one}" for one in ids)]:
            answer = session.get(home + path, timeout=10)
            assert answer.status_code == 200, path
            assert SECRET not in answer.text and VALUE not in answer.text, path
        assert "headrace run ***" in session.get(f"{home}update?id=update-of-shop", timeout=10).text
        for one in ids:
            facts = session.get(f"{home}facts?id={one}", timeout=10)
            assert facts.status_code == (200 if shows_rows else 403)
            assert SECRET not in facts.text and (shows_rows or VALUE not in facts.text)


def test_figures_are_of_one_pipeline_and_failed_rows_of_24_hours(
    shared: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, now = TableName("default", "table_of_shop"), datetime.now(UTC)
    ages = {hours: timedelta(hours=hours) for hours in (23.99, 24.01)}
    for number, age in enumerate(ages.values()):
        for pipeline, rejected in (("shop", 10), ("other", 100)):
            one = BatchCommitted(
                update=f"old-{pipeline}",
                flow="old",
                dataset=table,
                batch=number,
                version=9 + number,
                rows=1,
                quarantined=rejected,
                checkpoint=pipeline,
                at=now if pipeline == "other" else now - age,
                latency_s=(float(rejected), float(rejected)),
            )
            rows = RowBuilder(Origin(pipeline, "lake", f"old-{pipeline}")).rows(one)
            EventTable(shared.settings.storage.events).append(rows)
    dashboard = Dashboard(shared.settings, Address(port=0), token="t")
    dashboard.site.index.sync()
    view = PipelineView(dashboard.site, "shop")
    dashboard._socket.close()
    assert rejected_today(view) == {"default.table_of_shop": 3 + 10}
    monkeypatch.setattr(PipelineView, "datasets", lambda self: {str(table): None})
    newest = _recent(view)[str(table)]
    assert newest["latency_s"] is None


def test_one_pipeline_alone_can_be_shown(shared: SimpleNamespace) -> None:
    dashboard = Dashboard(shared.settings, Address(port=0), "bank", token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}"
        text = session.get(f"{home}/?token=t", timeout=10).text
        assert "/p/bank/" in text and "/p/shop/" not in text
        assert session.get(f"{home}/p/shop/", timeout=10).status_code == 404


def test_pages_go_on_after_the_index_was_deleted_and_say_what_they_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: none.py}]\n")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    settings = load_project(tmp_path)
    counts = {"name": "an id", "dataset": "default.table_of_shop", "action": "drop", "passed": 1, "failed": 1}
    builder = RowBuilder(Origin("shop", "lake", "update-of-shop"))
    many = [
        BatchCommitted(
            update="update-of-shop",
            flow="flow_of_shop",
            dataset=TableName("default", "table_of_shop"),
            batch=number,
            version=number,
            rows=1,
            dropped=1,
            checkpoint="c",
            at=NOW,
            expectations=(counts,),
        )
        for number in range(1001)
    ]
    rows = [*events_of("shop", 5, "completed"), *(row for one in many for row in builder.rows(one))]
    EventTable(settings.storage.events).append([*rows, {**rows[0], "id": "odd"}])
    dashboard = Dashboard(settings, Address(port=0), token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}/p/shop/"
        session.get(f"{home}?token=t", timeout=10)
        for _ in range(2):
            until(
                lambda: "update-of-shop" in session.get(f"{home}updates", timeout=10).text,
                "no update is shown",
            )
            until(lambda: "are left out: 1." in session.get(home, timeout=10).text, "no count of odd events")
            shutil.rmtree(dashboard.site.index.folder)
        until(lambda: session.get(f"{home}updates", timeout=10).status_code == 200, "no page is shown")
        until(
            lambda: (
                "of the newest 1,000 batches"
                in session.get(f"{home}dataset?name=default.table_of_shop", timeout=10).text
            ),
            "the page does not say of which batches the counts are",
        )


def test_a_table_is_read_again_only_when_it_has_a_new_version(tmp_path: Path) -> None:
    """Pages ask at each change of the storage, several times a second."""
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    site = Site.of(load_project(_spec(tmp_path)))
    reads: list[int] = []

    def count() -> int:
        reads.append(DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows)
        return reads[-1]

    def ask() -> int:
        return site.read([locate(str(tmp_path / "t"))], ("rows",), count)

    assert (ask(), ask(), reads) == (1, 1, [1])
    write_deltalake(tmp_path / "t", pa.table({"id": [2]}), mode="append")
    assert (ask(), ask(), reads) == (2, 2, [1, 2])


def _spec(folder: Path) -> Path:
    (folder / "headrace.yml").write_text("name: shop\nstorage: ./lake\n")
    return folder / "headrace.yml"
