"""The counts of expectations, summed up from the event log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.model.events import BatchCommitted, ViewRefreshed
from headrace.model.names import TableName
from headrace.observe.event_log import EventLog
from headrace.observe.quality import SPANS
from headrace.project.pipeline import Pipeline

NOON = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
ORDERS = TableName("default", "orders")


def count(failed: int, name: str = "an id", action: str = "drop") -> dict[str, Any]:
    return {
        "name": name,
        "dataset": "default.orders",
        "action": action,
        "passed": 10 - failed,
        "failed": failed,
    }


def batch(number: int, *counts: dict[str, Any], dataset: TableName = ORDERS, **more: Any) -> BatchCommitted:
    facts = {
        "update": "u",
        "flow": dataset.name,
        "version": number,
        "rows": 8,
        "duration_s": 1.0,
        "ranges": (),
    }
    at = NOON + timedelta(minutes=number)
    return BatchCommitted(
        **{**facts, **more}, at=at, dataset=dataset, batch=number, expectations=counts, checkpoint="c"
    )


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: shop.py}]\n")
    pipeline = Pipeline.load(tmp_path)
    with EventLog(pipeline.settings.storage, "shop", "u") as log:
        log(batch(0, count(2), count(1, "positive", "quarantine"), dropped=1, quarantined=1))
        log(batch(1, count(0), count(0, "positive", "quarantine")))
        log(batch(20, count(10), count(0, "positive", "quarantine"), rows=0, dropped=10))
        log(batch(5, dataset=TableName("default", "raw")))
        log(
            ViewRefreshed(
                update="u",
                at=NOON,
                dataset=TableName("default", "gold"),
                version=1,
                rows=9,
                duration_s=1,
                dropped=1,
                expectations=({**count(1), "dataset": "default.gold"},),
            )
        )
    return pipeline


def test_counts_are_summed_for_each_expectation(pipeline: Pipeline) -> None:
    quality = pipeline.quality()
    assert [str(one.dataset) for one in quality.datasets] == ["default.gold", "default.orders"]
    orders = quality.datasets[1]
    assert (orders.accepted, orders.quarantined, orders.dropped) == (16, 1, 11)
    found = {one.name: (one.action, one.passed, one.failed) for one in orders.expectations}
    assert found == {"an id": ("drop", 18, 12), "positive": ("quarantine", 29, 1)}


def test_counts_are_divided_over_time(pipeline: Pipeline) -> None:
    (orders,) = pipeline.quality("orders").datasets
    spans = orders.expectations[0].over_time
    assert len(spans) == SPANS
    assert [(n, one.passed, one.failed) for n, one in enumerate(spans) if one.passed + one.failed] == [
        (0, 8, 2),
        (1, 10, 0),
        (SPANS - 1, 0, 10),
    ]
    assert (spans[0].start, spans[-1].end) == (NOON, NOON + timedelta(minutes=20))


def test_older_batches_can_be_left_out(pipeline: Pipeline) -> None:
    (orders,) = pipeline.quality(since=NOON + timedelta(minutes=1)).datasets
    assert orders.expectations[0].failed == 10
