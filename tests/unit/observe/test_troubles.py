"""The troubles of a pipeline, and which of them cannot be judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.model.names import TableName
from headrace.observe.snapshot import Snapshot
from headrace.observe.status import DatasetStatus, FlowStatus, ViewStatus
from headrace.observe.troubles import Limits, find_troubles
from headrace.state.lease import Driver
from headrace.storage.layout import Storage

HERE = Driver(pid=1, host="here")
NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
ORDERS = TableName("default", "orders")


def look(*, kind: str = "streaming_table", orphaned: bool = False, **facts: Any) -> Snapshot:
    dataset = DatasetStatus(dataset=ORDERS, kind=kind, orphaned=orphaned, **facts)
    root = Storage.at("/lake").root
    return Snapshot(pipeline="shop", storage=root, datasets=(dataset,), at=NOW, silence="no broker answers")


def flow(**facts: Any) -> Snapshot:
    kind = facts.pop("kind", "streaming_table")
    return look(kind=kind, flows=(FlowStatus(flow="orders", checkpoint=None, **facts),))


def texts(snapshot: Snapshot, **limits: Any) -> list[tuple[str, bool]]:
    return [(one.text, one.is_unknown) for one in find_troubles(snapshot, Limits(**limits))]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"state": "running", "driver": HERE}, []),
        ({"state": "reconnecting", "driver": HERE, "error": {"code": "X", "summary": "gone"}}, []),
        ({"state": "up to date"}, []),
        ({"state": "unknown"}, []),
        ({"state": "unknown", "driver": HERE}, ["its process does not answer: pid 1 on here"]),
        ({"state": "failed", "error": {"code": "X", "summary": "gone"}}, ["failed: [X] gone"]),
        ({"state": "skipped", "reason": "bronze has failed"}, ["skipped: bronze has failed"]),
        ({"state": "stopped"}, ["stopped"]),
        ({"state": "failed", "orphaned": True}, []),
    ],
)
def test_a_flow_that_has_to_be_started_again_is_a_trouble(facts: dict[str, Any], expected: list[str]) -> None:
    assert texts(flow(**facts)) == [(text, False) for text in expected]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"lag": 1000}, []),
        ({"lag": 1001}, [("1,001 records behind (limit 1,000)", False)]),
        ({"lag": 1001, "lag_bytes": 7}, [("1,001 files behind (limit 1,000)", False)]),
        ({"lag": 5, "behind_s": 90.0}, [("lag unknown: 5 records or more, 90 s behind", True)]),
        ({"lag": None}, [("lag unknown: no broker answers", True)]),
        ({"lag": None, "batch": None}, [("lag unknown: it has no batch yet", True)]),
    ],
)
def test_a_lag_above_its_limit(facts: dict[str, Any], expected: list[tuple[str, bool]]) -> None:
    found = flow(**{"state": "running", "driver": HERE, "batch": 4, **facts})
    assert texts(found, lag=1000) == expected
    assert texts(found) == []


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"changed": NOW - timedelta(minutes=15)}, []),
        ({"changed": NOW - timedelta(minutes=16)}, [("has not changed for 16 min (limit 15 min)", False)]),
        ({}, [("it is not known when its rows last changed", True)]),
        ({"kind": "sink"}, []),
    ],
)
def test_a_table_that_has_not_changed_for_too_long(
    facts: dict[str, Any], expected: list[tuple[str, bool]]
) -> None:
    assert texts(look(**facts), age_s=900) == expected
    assert texts(look(**facts)) == []


def test_views() -> None:
    assert texts(look(view=ViewStatus(state="behind"))) == []
    failed = ViewStatus(state="failed", error={"code": "X", "summary": "gone"})
    assert texts(look(view=failed)) == [("failed: [X] gone", False)]
    assert texts(look(view=failed, orphaned=True)) == []
    assert texts(look(problem="no log")) == [("cannot be read: no log", False)]
