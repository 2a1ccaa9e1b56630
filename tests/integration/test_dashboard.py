"""The dashboard over a storage that real runs have made: each page shows what the commands show."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
from confluent_kafka import Producer

from headrace.dashboard.app import DATA, PAGES
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.model.alerts import AlertRule, AlertSettings, WebhookTarget
from headrace.plan.explain import Explanation
from headrace.project.alerting import check_alerts
from headrace.project.last_results import keep_result
from headrace.project.pipeline import Pipeline
from landing import Site
from proof.ledger import create_topic
from waiting import until

SECRET = "hunter2-of-the-cluster"
SCRIPT = "<script>alert(1)</script>"
CODE = """
import headrace as hr
from pyspark.sql import functions as F

@hr.table(comment="Visits COMMENT")
@hr.expect_or_quarantine("positive SCRIPT", "id > 0")
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING, `<b>bold</b>` STRING")

@hr.table
def clicks():
    return hr.read_kafka("TOPIC", format="json", schema="id LONG, page STRING")

@hr.materialized_view
def pages():
    return spark.read.table("visits").groupBy("page").agg(F.count("*").alias("visits"))

@hr.temporary_view
def seen():
    return spark.readStream.table("visits")

@hr.table
@hr.expect_or_fail("no bad page SCRIPT", "page <> 'bad'")
def strict():
    return spark.readStream.table("seen")
"""


@dataclass(frozen=True)
class Shown:
    """A dashboard that is served, and the pipeline behind it."""

    dashboard: Dashboard
    site: Site
    topic: str
    update: str  # the last one, which has failed

    def get(self, path: str, **query: str) -> requests.Response:
        if path.startswith("@"):
            path = f"/p/site{path[1:]}"
        cookies = {f"headrace_{self.dashboard.port}": self.dashboard.token}
        url = f"http://127.0.0.1:{self.dashboard.port}{path}"
        return requests.get(url, params=query, cookies=cookies, timeout=30)

    def text(self, path: str, **query: str) -> str:
        """The text of a page, as a person reads it."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, (path, answer.text)
        shown = re.sub(r"<[^>]*>", " ", answer.text.rpartition("<main")[2])
        return " ".join(unescape(shown).split())

    def name(self, table: str) -> str:
        return f"{self.site.database}.{table}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, spark: object, bootstrap: str) -> Iterator[Shown]:
    root = tmp_path_factory.mktemp("dashboard")
    site, topic = Site(root / "site"), f"clicks-{root.name}"
    site.write_spec(kafka={"bootstrap.servers": bootstrap}, secrets={"shop.key": SECRET})
    site.write(CODE.replace("SCRIPT", SCRIPT).replace("TOPIC", topic).replace("COMMENT", SCRIPT))
    create_topic(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(6):
        value = json.dumps({"id": number, "page": SCRIPT}).encode()
        producer.produce(topic, value, key=b"<i>key</i>", headers={"from": b"<u>"}, partition=0)
    assert producer.flush(30) == 0
    site.put("a.json", {"id": 1, "page": SCRIPT}, {"id": -7, "page": "rejected-value-of-a-row"})
    site.run_well()
    site.put("b.json", {"id": 2, "page": "bad"})
    result = site.run()
    assert [one.code for one in result.errors] == ["EXPECTATION_FAILED"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(root / "cache"))
        patch.chdir(site.root)
        with Pipeline.load(site.root) as pipeline:
            keep_result(pipeline.settings, "proof", pipeline.verify().to_json())
            settings = pipeline.settings
        dashboard = Dashboard(settings, Address(port=0))
        with serving(dashboard):
            until(
                lambda: bool(dashboard.site.watcher.statuses and dashboard.site.watcher.health), "no status"
            )
            yield Shown(dashboard, site, topic, result.update)


def paths(shown: Shown) -> list[tuple[str, dict[str, str]]]:
    """An address of every page, fragment and file of data, with names that exist."""
    found = [("/", {})]
    event = re.search(r"event\?id=([0-9a-f]+)", shown.get("@/events").text)
    assert event is not None
    for path in [*(one[0] for one in PAGES), *(one[0] for one in DATA)]:
        query = {
            "/event": {"id": event[1]},
            "/facts": {"id": event[1]},
            "/update": {"id": shown.update},
            "/gantt.json": {"id": shown.update},
            "/commit": {"name": shown.name("visits"), "version": "1"},
            "/topic": {"name": shown.topic},
            "/records": {"name": shown.topic},
        }.get(path, {"name": shown.name("visits")})
        found.append((f"@{path or '/'}", query))
    return found


def test_the_pages_show_what_the_commands_show(shown: Shown) -> None:
    with Pipeline.load(shown.site.root) as pipeline:
        status = {one.dataset.name: one for one in pipeline.status().datasets}
        quality = pipeline.quality().datasets
    home = shown.text("/")
    assert "site failed" in home and f"Datasets {len(status)}" in home
    graph = {one["label"]: one for one in shown.get("@/graph.json").json()["nodes"]}
    # The pipeline has a schema of its own, which is its default.
    for name, one in status.items():
        assert graph[name]["rows"] == one.rows
    assert (graph["strict"]["state"], graph["strict"]["tone"]) == ("failed", "bad")
    assert graph["visits"]["rejected"] == sum(one.quarantined for one in quality) == 1
    edges = shown.get("@/graph.json").json()["edges"]
    assert [shown.name("visits"), shown.name("pages")] in edges
    assert [f"source kafka {shown.topic}", shown.name("clicks")] in edges


def test_a_dataset_shows_its_columns_code_batches_and_proof(shown: Shown) -> None:
    text = shown.text("@/dataset", name=shown.name("visits"))
    assert f"positive {SCRIPT}" in text and "quarantined" in text
    assert "<b>bold</b>" in text and "BIGINT" in text
    assert "visits.py:7" in text and "def visits():" in text and "@hr.expect_or_quarantine" in text
    assert "headrace quarantine replay visits" in text
    assert "rows in 2 files" in text  # of the proof
    series = shown.get("@/series.json", name=shown.name("visits")).json()
    assert series["rows"] == [1, 1] and series["rejected"] == [1, 0]
    assert all(one > 0 for one in series["steps"]["commit"])
    versions = list(series["version"])
    commit = shown.text("@/commit", name=shown.name("visits"), version=str(versions[0]))
    assert '"quarantined": 1' in commit


def test_an_error_shows_its_line_and_its_remedy(shown: Shown) -> None:
    text = shown.text("@/update", id=shown.update)
    assert "EXPECTATION_FAILED" in text and f"no bad page {SCRIPT}" in text
    assert "headrace explain EXPECTATION_FAILED" in text
    assert re.search(r"visits\.py:\d+", text) is not None
    assert '"page": "bad"' not in text
    facts = re.search(r"facts\?id=([0-9a-f]+)", shown.get("@/update", id=shown.update).text)
    assert facts is not None and '"page": "bad"' in shown.text("@/facts", id=facts[1])
    assert "pages up to date" in text  # a view that was refreshed
    bars = shown.get("@/gantt.json", id=shown.update).json()
    assert {"visits", "strict"} <= set(bars["flows"])
    assert [one["rows"] for one in bars["bars"] if one["flow"] == "visits"] == [1]
    first = re.findall(r"update\?id=([^\"&]+)", shown.get("@/updates").text)[-1]
    beside = shown.text("@/update", id=shown.update, **{"with": first})
    assert beside.count("Flows and views") == 2 and "completed" in beside


def test_events_can_be_filtered_and_each_leads_to_its_details(shown: Shown) -> None:
    everything, errors = shown.text("@/events"), shown.text("@/events", level="error")
    assert "has committed batch" in everything and "has committed batch" not in errors
    assert "EXPECTATION_FAILED" in errors
    batches = shown.text("@/events", level="metrics")
    assert "has committed batch" in batches and "is starting" in everything and "is starting" not in batches
    assert "No event matches." in shown.text("@/events", text="no such text")
    metrics = shown.get("@/events", dataset=shown.name("visits"), level="metrics", text="1 quarantined").text
    event = re.search(r"event\?id=([0-9a-f]+)", metrics)
    assert event is not None
    details = shown.text("@/event", id=event[1])
    assert '"num_output_rows": 1' in details and "Commit v" in details


def test_a_topic_shows_its_offsets_and_what_reads_it(shown: Shown) -> None:
    assert f"{shown.topic} 1 6 0" in shown.text("@/topics")
    text = shown.text("@/topic", name=shown.topic)
    assert "clicks is at" in text and "Lag 0" in text
    records = shown.text("@/records", name=shown.topic)
    assert "<i>key</i>" in records and "<u>" in records and SCRIPT in records
    assert shown.get("@/topic", name="another-topic").status_code == 404


def test_the_proof_shows_grades_and_ranges(shown: Shown) -> None:
    text = shown.text("@/proof")
    assert "proven" in text and "ranges" in text and "headrace verify" in text
    assert f"clicks {shown.topic}/0" in text and "0 \u2013 6" in text


def test_names_of_users_stay_text(shown: Shown) -> None:
    for path, query in paths(shown):
        answer = shown.get(path, **query)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            for tag in (SCRIPT, "<b>bold", "<i>key", "<u>"):
                assert tag not in answer.text, (path, tag)
            assert not re.search(
                r"<script(?! (defer )?src=\"/static/)|\son\w+=|style=|javascript:", answer.text
            )


def test_rows_appear_only_if_somebody_asks(shown: Shown) -> None:
    for path, query in paths(shown):
        text = shown.get(path, **query).text
        assert SECRET not in text, path
        asked = path in ("@/rows", "@/rejected", "@/records")
        assert asked or "rejected-value-of-a-row" not in text, path
        # The error of the update quotes the row that failed.
        assert path in ("@/rows", "@/facts") or "&#34;page&#34;: &#34;bad&#34;" not in text, path
    assert "rejected-value-of-a-row" in shown.text("@/rejected", name=shown.name("visits"))
    assert SCRIPT in shown.text("@/rows", name=shown.name("clicks"))


def test_the_spec_can_switch_off_rows(shown: Shown) -> None:
    settings = replace(shown.dashboard.settings, shows_rows=False)
    dashboard = Dashboard(settings, Address(port=0))
    with serving(dashboard):
        until(lambda: bool(dashboard.site.watcher.statuses), "no status")
        other = replace(shown, dashboard=dashboard)
        for path in ("@/rows", "@/rejected", "@/records", "@/facts"):
            name = shown.topic if path == "@/records" else shown.name("visits")
            answer = other.get(path, name=name)
            assert answer.status_code == 403 and "switched off" in answer.text
        assert "switched off the values of rows" in other.text("@/dataset", name=shown.name("visits"))


def test_a_file_outside_of_the_pipeline_is_never_shown(shown: Shown, tmp_path: Path) -> None:
    from headrace.dashboard.code import find_excerpt
    from headrace.dashboard.site import PipelineView

    view = PipelineView(shown.dashboard.site, "site")
    outside = tmp_path / "other.py"
    outside.write_text("PASSWORD = 'x'\n")
    for path in (str(outside), "/etc/passwd", "../../../../etc/passwd", "landing/a.json", "cache"):
        refused = find_excerpt(view, {"path": path, "line": 1})
        assert refused is not None and refused.lines == (), path
    shown_lines = find_excerpt(view, {"path": "visits.py", "line": 2})
    assert shown_lines is not None and shown_lines.lines


def test_a_page_learns_of_a_new_update_without_a_reload(shown: Shown) -> None:
    cookies = {f"headrace_{shown.dashboard.port}": shown.dashboard.token}
    before = shown.text("@/updates").count("20")
    url = f"http://127.0.0.1:{shown.dashboard.port}/live"
    with requests.get(url, cookies=cookies, stream=True, timeout=60) as answer:
        lines: Any = answer.iter_lines()
        assert next(lines) == b"event: changed"
        known = next(lines)
        shown.site.put("c.json", {"id": 3, "page": "good"})
        shown.site.run()
        assert any(line.startswith(b"data:") and line != known for line in lines)
    until(lambda: shown.text("@/updates").count("20") > before, "the page has no new update")


def test_the_graph_shows_what_a_plan_would_change(shown: Shown) -> None:
    before = (shown.site.root / "visits.py").read_text()
    more = "\n@hr.materialized_view\ndef best():\n    return spark.read.table('pages').limit(1)\n"
    (shown.site.root / "visits.py").write_text(before + more)
    with Pipeline.load(shown.site.root) as pipeline:
        keep_result(shown.dashboard.settings, "plan", Explanation(pipeline.plan()).to_json())
    (shown.site.root / "visits.py").write_text(before)
    found = shown.get("@/graph.json").json()
    signs = {one["label"]: one["sign"] for one in found["nodes"]}
    assert signs["best"] == "+" and signs["visits"] == ""
    assert [shown.name("pages"), shown.name("best")] in found["edges"]
    assert "would change is marked" in shown.text("@/")
    # What was planned before a run says nothing any more.
    shown.site.put("d.json", {"id": 4, "page": "good"})
    shown.site.run()
    until(lambda: "best" not in shown.get("@/graph.json").text, "the plan is still shown")


def test_the_first_page_shows_alerts(shown: Shown) -> None:
    away, rules = {"ops": WebhookTarget("http://127.0.0.1:9/")}, (AlertRule(on="flow_failed"),)
    settings = replace(shown.dashboard.settings, alerts=AlertSettings(targets=away, rules=rules))
    check_alerts(settings, "u")
    until(lambda: "strict has failed: [EXPECTATION_FAILED]" in shown.text("/"), "the alert is not shown")
    check_alerts(replace(settings, alerts=AlertSettings()), "u")
    until(lambda: "strict has failed" not in shown.text("/"), "the alert is still shown")


def test_a_scraper_gets_what_has_happened_since_its_first_visit(shown: Shown) -> None:
    def scrape(token: str, path: str = "/metrics") -> requests.Response:
        url = f"http://127.0.0.1:{shown.dashboard.port}{path}"
        return requests.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=30)

    name = shown.name("visits")
    written = f'headrace_rows_total{{dataset="{name}",flow="visits",outcome="written",pipeline="site"}}'
    assert scrape("wrong").status_code == 401
    first = scrape(shown.dashboard.token).text
    assert written not in first  # the batches before are not counted
    flow = f'dataset="{name}",flow="visits",pipeline="site"'
    assert f'headrace_flow_state{{{flow},state="up to date"}} 1.0' in first
    assert SECRET not in first and SCRIPT not in first
    shown.site.put("scraped.json", *({"id": id, "page": "good"} for id in (50, 51, -1)))
    shown.site.run()
    until(lambda: f"{written} 2.0" in scrape(shown.dashboard.token).text, "the rows are not counted")
    for metric in (
        'headrace_updates_total{outcome="failed",pipeline="site"} 1.0',
        "headrace_flow_failures_total{",
    ):
        until(lambda metric=metric: metric in scrape(shown.dashboard.token).text, f"no {metric}")  # type: ignore[misc]
    assert SCRIPT in scrape(shown.dashboard.token).text  # the name of an expectation
    assert scrape(shown.dashboard.token, "/").status_code == 401  # such a token opens no page


def test_the_graph_has_temporary_views(shown: Shown) -> None:
    found = shown.get("@/graph.json").json()
    (view,) = (one for one in found["nodes"] if one["label"] == "seen")
    assert (view["kind"], view["link"]) == ("temporary view", None)
    edges = [edge for edge in found["edges"] if shown.name("strict") in edge or view["id"] in edge]
    assert sorted(edges) == [[view["id"], shown.name("strict")], [shown.name("visits"), view["id"]]]


def test_quoted_names_lead_to_their_pages(shown: Shown) -> None:
    for name in ("visits", "clicks", "pages", "strict"):
        link = f"/p/site/dataset?name={quote(shown.name(name), safe='')}"
        assert link in shown.get("@/").text


# -- in a real browser

AXE = Path(__file__).parents[1] / "browser/axe.min.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browsing = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@contextmanager
def opened(browser: Any, shown: Shown, **settings: Any) -> Iterator[Any]:
    """A page that has opened the link. A script that fails, or that a policy blocks, fails the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    page, complaints = context.new_page(), []
    page.set_default_timeout(20_000)
    page.on("console", lambda one: complaints.append(one.text) if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda one: complaints.append(str(one)))
    page.goto(shown.dashboard.link)
    page.wait_for_selector('[data-live-state="live"]')
    assert "token" not in page.url
    yield page
    assert complaints == []
    context.close()


def go(page: Any, shown: Shown, path: str) -> None:
    page.goto(f"http://127.0.0.1:{shown.dashboard.port}/p/site{path}")
    page.wait_for_selector('[data-live-state="live"]')


@browsing
def test_a_person_follows_an_error_to_its_line_and_finds_a_rejected_row(shown: Shown, browser: Any) -> None:
    with opened(browser, shown) as page:
        page.click(".card .dot.bad")
        line = page.inner_text(".error .line.here")
        assert "strict" in line or "expect_or_fail" in line
        page.keyboard.press("g")
        page.wait_for_selector("#graph svg .node")
        page.keyboard.press("/")
        page.wait_for_selector("dialog[open]")
        page.keyboard.type("visi")
        page.wait_for_selector("dialog li a")
        page.keyboard.press("Enter")
        page.wait_for_selector(".u-wrap canvas")
        assert "rejected-value-of-a-row" not in page.content()
        page.click("#quarantine button[hx-get]")
        page.wait_for_selector("#rejected-rows td")
        assert "rejected-value-of-a-row" in page.inner_text("#rejected-rows")
        page.click("text=Show sample rows")
        page.wait_for_selector(".sample th:has-text('<b>bold</b>')")


@browsing
def test_a_person_watches_a_run(shown: Shown, browser: Any) -> None:
    with opened(browser, shown) as page:
        go(page, shown, "/")
        page.wait_for_selector("#graph svg .node")
        before = page.inner_text("#graph-table tr:has-text('visits') .num")
        shown.site.put("watched.json", *({"id": number, "page": "watched"} for number in range(100, 140)))
        shown.site.run()
        page.wait_for_function(
            "before => [...document.querySelectorAll('#graph-table tr')].some(row => "
            "row.innerText.startsWith('visits') && row.querySelector('.num').innerText !== before)",
            arg=before,
        )
        page.wait_for_selector(".edge.flowing", state="attached")


@browsing
def test_pages_are_accessible_and_readable_at_any_width(shown: Shown, browser: Any) -> None:
    names = [
        "/",
        f"/dataset?name={shown.name('visits')}",
        f"/update?id={shown.update}",
        "/updates",
        "/events",
        "/topics",
        f"/topic?name={shown.topic}",
        "/proof",
        f"/commit?name={shown.name('visits')}&version=1",
    ]
    # The policy of a page would block the script of the check, and not a page's own.
    with opened(browser, shown, bypass_csp=True) as page:
        page.add_init_script(path=AXE)
        for path in names:
            page.set_viewport_size({"width": 1280, "height": 900})
            go(page, shown, path)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 24)"
                assert dark == (scheme == "dark")
                found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
                grave = [one for one in found if one["impact"] in ("serious", "critical")]
                assert [(one["id"], one["nodes"][0]["html"]) for one in grave] == [], (path, scheme)
            for width in (360, 2560):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
