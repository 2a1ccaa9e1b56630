"""OpenLineage's events of real runs, to a file and to a real HTTP server."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from checked_json import read_json
from headrace.cli.main import run
from headrace.project.pipeline import Pipeline
from headrace.run.stop import StopSignal
from hook_server import running_hook
from landing import Site
from openlineage_events import Sent, last, parsed, sources_of, states
from waiting import until

CODE = """
import headrace as hr
from pyspark.sql import functions as F
from headrace import spark

@hr.table(comment="visits of pages")
@hr.expect_or_drop("an id", "id IS NOT NULL")
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.table
def clicks():
    rows = hr.read_kafka("TOPIC", format="json", schema="page STRING, secret STRING")
    return rows.select(F.upper("page").alias("page"))

@hr.materialized_view
def pages():
    visits = spark.read.table("visits")
    return visits.groupBy("page").agg(F.count("*").alias("n"), F.max("id").alias("newest"))

hr.create_sink("out", "parquet", {"path": "out"})

@hr.append_flow(target="out")
def send():
    return spark.readStream.table("visits").select("page")
"""
KEY = "a-key-of-the-server"


@pytest.fixture
def open_site(site: Site, bootstrap: str, topic: Callable[..., str], produce: Callable[..., None]) -> Any:
    """Gives a pipeline that reads files and a topic, with a spec for lineage."""
    name = topic()
    produce(name, b'{"page": "a", "secret": "s"}', b'{"page": "b"}')

    def build(**lineage: Any) -> Site:
        site.write_spec(kafka={"bootstrap.servers": bootstrap}, lineage=lineage)
        site.write(CODE.replace("TOPIC", name))
        (site.landing / "1.json").write_text(
            '{"id": 1, "page": "x"}\n{"id": 2, "page": "y"}\n{"page": "z"}\n'
        )
        return site

    build.topic = name  # type: ignore[attr-defined]
    return build


def run_it(site: Site, *more: str) -> int:
    return run(["run", "--project", str(site.root), *more])


def check_run(events: list[Sent], site: Site, topic: str, bootstrap: str) -> None:
    """Check the events of a first run of the pipeline."""
    assert states(events) == {
        "site": ["START", "COMPLETE"],
        **{f"site.{one}": ["START", "COMPLETE"] for one in ("visits", "clicks", "send")},
        f"site.{site.database}.pages": ["START", "COMPLETE"],
    }
    tables = f"{site.root}/lake/tables/{site.database}"
    visits = last(events, "site.visits")
    assert [(one["namespace"], one["name"]) for one in visits["inputs"]] == [("file", f"{site.root}/landing")]
    (table,) = visits["outputs"]
    assert (table["namespace"], table["name"]) == ("file", f"{tables}/visits")
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert table["outputFacets"]["outputStatistics"]["size"] > 0
    assert {one["name"]: one["type"] for one in table["facets"]["schema"]["fields"]}["id"] == "BIGINT"
    assert table["facets"]["documentation"]["description"] == "visits of pages"
    assert sources_of(table["facets"]["columnLineage"])["page"] == {"landing.page TRANSFORMATION"}
    (assertion,) = table["facets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["success"]) == ("an id", False)
    assert assertion["params"] == {"passed": 2, "failed": 1}
    assert visits["job"]["facets"]["sourceCodeLocation"]["url"].startswith(f"file://{site.root}/visits.py#L")
    assert visits["job"]["facets"]["jobType"]["integration"] == "HEADRACE"
    parent = last(events, "site")
    assert visits["run"]["facets"]["parent"]["run"]["runId"] == parent["run"]["runId"]
    assert visits["run"]["facets"]["processing_engine"]["name"] == "spark"
    clicks = last(events, "site.clicks")
    assert [(one["namespace"], one["name"]) for one in clicks["inputs"]] == [(f"kafka://{bootstrap}", topic)]
    assert sources_of(clicks["outputs"][0]["facets"]["columnLineage"]) == {
        "page": {f"{topic}.value.page TRANSFORMATION"}
    }
    pages = last(events, f"site.{site.database}.pages")["outputs"][0]["facets"]["columnLineage"]
    assert sources_of(pages) == {"page": {"visits.page IDENTITY"}, "newest": {"visits.id AGGREGATION"}}
    assert [one["field"] for one in pages["dataset"]] == ["page"]
    (out,) = last(events, "site.send")["outputs"]
    assert (out["namespace"], out["name"]) == ("file", f"{site.root}/out")


def check_recorded(site: Site, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the run has recorded the lineage, for a command without Spark."""
    capsys.readouterr()
    assert run(["lineage", "pages.newest", "--json", "--project", str(site.root)]) == 0
    (found,) = read_json("lineage", capsys.readouterr().out)
    assert found["recorded"] == "run"
    upstream = {(one["from"]["column"], one["way"], one["to"]["column"]) for one in found["upstream"]}
    assert upstream == {
        ("id", "aggregation", "newest"),
        ("page", "group_by", None),
        ("id", "transformation", "id"),
        ("page", "transformation", "page"),
    }
    assert run(["lineage", topic, "--json", "--project", str(site.root)]) == 0
    (found,) = read_json("lineage", capsys.readouterr().out)
    assert [one["to"]["column"] for one in found["downstream"]] == ["page"]


def test_events_in_a_file(open_site: Any, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    site = open_site(file="lineage.jsonl")
    assert run_it(site) == 0
    file = site.root / "lineage.jsonl"
    events = parsed(file.read_text().splitlines())
    check_run(events, site, open_site.topic, bootstrap)
    check_recorded(site, open_site.topic, capsys)
    assert run_it(site) == 0
    second = parsed(file.read_text().splitlines())[len(events) :]
    assert states(second)["site"] == ["START", "COMPLETE"]
    ids = {one["run"]["runId"] for one in events}
    assert ids.isdisjoint(one["run"]["runId"] for one in second)


def test_events_at_a_server_with_a_key(open_site: Any, bootstrap: str) -> None:
    with running_hook() as hook:
        site = open_site(url=hook.url, api_key=KEY)
        assert run_it(site) == 0
    check_run(parsed(one.body for one in hook.taken), site, open_site.topic, bootstrap)
    assert {one.headers["authorization"] for one in hook.taken} == {f"Bearer {KEY}"}


def test_a_failure_has_its_code_and_no_value_of_a_row(open_site: Any) -> None:
    site = open_site(file="lineage.jsonl")
    code = (site.root / "visits.py").read_text().replace('F.max("id")', 'F.max(F.expr("CAST(page AS INT)"))')
    (site.root / "visits.py").write_text(code)
    assert run_it(site) == 1
    text = (site.root / "lineage.jsonl").read_text()
    events = parsed(text.splitlines())
    pages = last(events, f"site.{site.database}.pages")
    assert pages["eventType"] == "FAIL"
    message = pages["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("[") and "headrace events" in message
    assert "'x'" not in text and "'y'" not in text
    assert states(events)["site"] == ["START", "FAIL"]


def logged(site: Site) -> list[Any]:
    with Pipeline.load(site.root) as pipeline:
        return [one for one in pipeline.events() if one.type == "lineage"]


def test_a_server_that_is_down_delays_no_run(open_site: Any) -> None:
    site = open_site(url="http://127.0.0.1:1/lineage", api_key=KEY)
    assert run_it(site) == 0
    (warning,) = logged(site)
    assert (warning.level, warning.details["state"]) == ("WARN", "failed")
    assert KEY not in json.dumps([one.to_json() for one in logged(site)])


def test_a_continuous_run_and_a_server_that_comes_back(open_site: Any) -> None:
    stop, numbers = StopSignal(), itertools.count(10)
    with running_hook() as hook:
        hook.answer = lambda request: 200 if len(hook.refused) > 1 else 500
        site = open_site(url=hook.url, interval="1 second")

        def is_running() -> bool:
            """Write a file for the next batch, and look whether the server was told that the flow runs."""
            number = next(numbers)
            if number % 50:
                return False
            (site.landing / f"{number}.json").write_text(f'{{"id": {number}, "page": "p"}}\n')
            return any(json.loads(one.body)["eventType"] == "RUNNING" for one in hook.taken)

        def go() -> None:
            with Pipeline.load(site.root) as pipeline:
                pipeline.run(continuous=True, stop=stop)

        thread = threading.Thread(target=go)
        thread.start()
        try:
            until(is_running, "an event of a flow that runs")
        finally:
            stop.request()
            thread.join()
    events = parsed(one.body for one in hook.taken)
    running = [one for one in events if one["eventType"] == "RUNNING"]
    assert running[-1]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    found = states(events)
    assert found["site"] == ["START", "COMPLETE"] and found["site.visits"][-1] == "COMPLETE"
    assert [one.details["state"] for one in logged(site)] == ["failed", "restored"]
