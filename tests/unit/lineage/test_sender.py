"""OpenLineage's events go to a real HTTP server or a file; a server that is down or slow delays nothing."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.declare.spec import load_project
from headrace.errors import HeadraceError
from headrace.lineage.sender import LineageSender, check_lineage
from headrace.model.event_forms import Event
from headrace.model.events import (
    BatchCommitted,
    FlowFailed,
    FlowFinished,
    FlowStarted,
    UpdateFinished,
    UpdateStarted,
    ViewRefreshed,
    ViewRefreshing,
    ViewUpToDate,
)
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.table_events import LineageFailed, LineageRestored
from hook_server import running_hook
from openlineage_events import last, parsed, states
from waiting import until

ORDERS, SECRET = TableName("default", "orders"), "hunter2-of-the-cluster"


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., ProjectSettings]:
    def load(**lineage: Any) -> ProjectSettings:
        (tmp_path / "headrace.yml").write_text(json.dumps({"name": "shop", "lineage": lineage}))
        found = load_project(tmp_path / "headrace.yml")
        found.redactor.add(SECRET)
        return found

    return load


def started(mode: Any = "triggered") -> UpdateStarted:
    return UpdateStarted(update="u1", pipeline="shop", mode=mode, flows=("orders",), views=())


def batch(number: int) -> BatchCommitted:
    return BatchCommitted(update="u1", flow="orders", dataset=ORDERS, batch=number, version=number, rows=5)


def finished(outcome: Any = "completed") -> UpdateFinished:
    return UpdateFinished(update="u1", outcome=outcome, duration_s=1.0)


FLOW_STARTED = FlowStarted(update="u1", flow="orders", dataset=ORDERS, checkpoint="c")
FLOW_FINISHED = FlowFinished(
    update="u1", flow="orders", dataset=ORDERS, outcome="up to date", rows=5, batches=1
)


def send(settings: ProjectSettings, *events: Event) -> list[Event]:
    """Send events as an update does; return what the sender itself has reported."""
    reported: list[Event] = []
    assert settings.lineage is not None
    with LineageSender(settings.lineage, settings, "u1", None, reported.append) as sender:
        for one in events:
            sender(one)
    return reported


def test_runs_of_an_update_and_its_flows(settings: Callable[..., ProjectSettings], tmp_path: Path) -> None:
    view = ViewRefreshing(update="u1", dataset=TableName("default", "view"))
    up_to_date = ViewUpToDate(update="u1", dataset=TableName("default", "view"))
    found = settings(file="events/lineage.jsonl", namespace="prod")
    send(found, started(), FLOW_STARTED, batch(0), FLOW_FINISHED, view, up_to_date, finished())
    events = parsed((tmp_path / "events" / "lineage.jsonl").read_text().splitlines())
    assert states(events) == {
        "shop": ["START", "COMPLETE"],
        "shop.orders": ["START", "COMPLETE"],
        "shop.default.view": ["START", "COMPLETE"],
    }
    assert {one["job"]["namespace"] for one in events} == {"prod"}
    update = last(events, "shop")
    parents = [one["run"]["facets"]["parent"] for one in events if "." in one["job"]["name"]]
    assert {one["run"]["runId"] for one in parents} == {update["run"]["runId"]}
    assert {(one["job"]["namespace"], one["job"]["name"]) for one in parents} == {("prod", "shop")}


def test_refreshes_of_a_view(settings: Callable[..., ProjectSettings], tmp_path: Path) -> None:
    """A triggered update refreshes a view once; in a continuous one, all refreshes are one run."""
    view = TableName("default", "view")
    refresh = [
        ViewRefreshing(update="u1", dataset=view),
        ViewRefreshed(update="u1", dataset=view, version=1, rows=3, duration_s=0.1),
    ]
    send(settings(file="once.jsonl"), started(), *refresh, FLOW_STARTED, FLOW_FINISHED, finished())
    events = parsed((tmp_path / "once.jsonl").read_text().splitlines())
    found = [(one["job"]["name"], one["eventType"]) for one in events]
    assert found.index(("shop.default.view", "COMPLETE")) < found.index(("shop.orders", "START"))
    send(settings(file="often.jsonl"), started("continuous"), *refresh, *refresh, finished("stopped"))
    events = parsed((tmp_path / "often.jsonl").read_text().splitlines())
    assert states(events)["shop.default.view"] == ["START", "COMPLETE"]


def test_a_flow_that_fails_has_a_code_and_neither_text_nor_secret(
    settings: Callable[..., ProjectSettings], tmp_path: Path
) -> None:
    error = {
        "code": "QUERY_FAILED",
        "summary": f"the value 'Ada Lovelace' of {SECRET} cannot be cast",
        "location": {"path": f"{SECRET}.py", "line": 3},
    }
    failed = FlowFailed(update="u1", flow="orders", dataset=ORDERS, error=error)
    send(settings(file="lineage.jsonl"), started(), FLOW_STARTED, failed, finished("failed"))
    text = (tmp_path / "lineage.jsonl").read_text()
    assert "Lovelace" not in text and SECRET not in text and "***.py:3" in text
    events = parsed(text.splitlines())
    assert states(events) == {"shop": ["START", "FAIL"], "shop.orders": ["START", "FAIL"]}
    message = last(events, "shop.orders")["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("[QUERY_FAILED]")


@pytest.mark.parametrize(
    ("mode", "outcome", "ends"),
    [("triggered", "stopped", "ABORT"), ("continuous", "stopped", "COMPLETE"), ("triggered", None, "FAIL")],
)
def test_how_runs_end(
    settings: Callable[..., ProjectSettings], tmp_path: Path, mode: Any, outcome: Any, ends: str
) -> None:
    """Without an outcome, an exception has ended the update."""
    events: list[Event] = [started(mode), FLOW_STARTED]
    send(settings(file="lineage.jsonl"), *events, *([finished(outcome)] if outcome else []))
    found = states(parsed((tmp_path / "lineage.jsonl").read_text().splitlines()))
    assert found == {"shop": ["START", ends], "shop.orders": ["START", ends if outcome else "ABORT"]}


def test_events_of_a_running_flow_come_at_bounded_intervals(
    settings: Callable[..., ProjectSettings], tmp_path: Path
) -> None:
    many = [batch(number) for number in range(50)]
    send(settings(file="all.jsonl", interval=0), started(), *many, finished())
    assert (
        states(parsed((tmp_path / "all.jsonl").read_text().splitlines()))["shop.orders"].count("RUNNING")
        == 50
    )
    send(settings(file="few.jsonl", interval="1 hour"), started(), *many, finished())
    found = parsed((tmp_path / "few.jsonl").read_text().splitlines())
    assert states(found)["shop.orders"] == ["START", "COMPLETE"]


def test_a_server_that_is_down_is_reported_once(settings: Callable[..., ProjectSettings]) -> None:
    began = time.monotonic()
    found = settings(url="http://127.0.0.1:1", api_key="the-key-of-the-server")
    (failed,) = send(found, started(), FLOW_STARTED, batch(0), FLOW_FINISHED, finished())
    assert isinstance(failed, LineageFailed)
    assert failed.target == "http://127.0.0.1:1" and "the-key" not in str(failed)
    assert time.monotonic() - began < 30


def test_a_slow_server_takes_no_time_from_a_flow(settings: Callable[..., ProjectSettings]) -> None:
    may_answer = threading.Event()
    with running_hook() as hook:

        def answer(request: object) -> int:
            may_answer.wait(60)
            return 200

        hook.answer = answer
        found = settings(url=hook.url)
        assert found.lineage is not None
        began = time.monotonic()
        with LineageSender(found.lineage, found, "u1", None, lambda event: None) as sender:
            for number in range(20_000):
                sender(batch(number))
            closing = time.monotonic()
            assert closing - began < 10
        # One attempt alone takes five seconds.
        assert time.monotonic() - closing < 7
        may_answer.set()


def test_nothing_is_lost_when_a_server_comes_back(settings: Callable[..., ProjectSettings]) -> None:
    reported: list[Event] = []
    with running_hook() as hook:
        hook.answer = lambda request: 500 if len(hook.refused) < 2 else 200
        found = settings(url=hook.url, api_key="the-key-of-the-server")
        assert found.lineage is not None
        with LineageSender(found.lineage, found, "u1", None, reported.append) as sender:
            sender(started())
            until(lambda: len(hook.refused) == 2, "the second attempt")
            sender(FLOW_STARTED)
            until(lambda: len(hook.taken) == 2, "the events of both")
            sender(FLOW_FINISHED)
            sender(finished())
        events = parsed(one.body for one in hook.taken)
        assert {one.headers["authorization"] for one in hook.taken} == {"Bearer the-key-of-the-server"}
    assert states(events) == {"shop": ["START", "COMPLETE"], "shop.orders": ["START", "COMPLETE"]}
    assert [type(one) for one in reported] == [LineageFailed, LineageRestored]


def test_a_missing_package_names_the_extra(
    settings: Callable[..., ProjectSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_lineage(settings(file="lineage.jsonl"))
    monkeypatch.setitem(sys.modules, "openlineage", None)
    with pytest.raises(HeadraceError) as caught:
        check_lineage(settings(file="lineage.jsonl"))
    assert caught.value.code == "PACKAGE_MISSING"
    assert caught.value.remedies[0] == "pip install 'headrace[lineage]'"
    assert caught.value.location is not None
