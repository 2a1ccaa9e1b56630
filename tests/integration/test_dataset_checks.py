"""Checks of whole datasets after batches and refreshes: they warn, or stop the flow."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.model.events import BatchCommitted, FlowFailed
from headrace.model.table_events import DatasetChecked
from headrace.project.pipeline import Pipeline
from headrace.run import checks, stop
from proof.shop import Shop
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr
from headrace import spark

@hr.table
@hr.expect_unique("id")
@hr.expect_fresh("at", within="1 hour")
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, at TIMESTAMP")

@hr.materialized_view
@hr.expect_unique(["id"], fail=True)
@hr.expect_row_count(like="orders", fail=True)
def copied():
    return spark.read.table("orders").select("id"){distinct}
"""


@pytest.fixture
def orders(make_shop: Callable[..., Shop]) -> Shop:
    shop = make_shop(partitions=1)
    shop.write(CODE.replace("{distinct}", ""))
    return shop


def produce(shop: Shop, *ids: int, at: str = "2020-01-01T00:00:00Z") -> None:
    records = [json.dumps({"id": number, "at": at}).encode() for number in ids]
    shop.ledger.produce_values(shop.topic, [(record, 0) for record in records])


def checked(shop: Shop) -> dict[tuple[str, str], tuple[bool, str]]:
    """The outcomes of the checks in the last run."""
    found = [event for event in shop.events if isinstance(event, DatasetChecked)]
    shop.events.clear()
    return {(event.dataset.name, event.check): (event.passed, event.fact) for event in found}


def test_checks_of_whole_datasets_warn_or_stop(orders: Shop) -> None:
    produce(orders, 1, 2, at="2999-01-01T00:00:00Z")
    orders.run_well()
    assert {key: passed for key, (passed, _) in checked(orders).items()} == {
        ("orders", "unique id"): True,
        ("orders", "at within 3600 s"): True,
        ("copied", "unique id"): True,
        ("copied", "as many rows as orders"): True,
    }
    produce(orders, 2)
    (error,) = orders.run().errors
    assert (error.code, error.params["checks"]) == ("DATASET_CHECK_FAILED", ["unique id"])
    assert error.location is not None and error.location.line == 12
    outcomes = checked(orders)
    expected = (False, '1 key is in several rows (2 rows), such as {"id":2}')
    assert outcomes["orders", "unique id"] == outcomes["copied", "unique id"] == expected
    assert outcomes["copied", "as many rows as orders"] == (True, "it has 3 rows, orders has 3")
    assert [one.outcome for one in orders.run().views] == ["failed"], "what failed fails again"
    orders.write(CODE.replace("{distinct}", ".distinct()"))
    (error,) = orders.run().errors
    assert error.facts[0] == "it has 2 rows, orders has 3"
    with Pipeline.load(orders.root) as pipeline:
        found = [one for one in pipeline.events(level="warn") if one.type == "dataset_check"]
    assert found[0].details["fact"] == expected[1]


STRICT = """
import headrace as hr

@hr.table
@hr.expect_unique("id", fail=True)
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, at TIMESTAMP", max_offsets_per_trigger=1)
"""


def test_a_table_is_checked_at_intervals_and_after_its_last_batch(orders: Shop) -> None:
    """The checks read the whole table, so eight batches within a minute have at most two rounds."""
    orders.write(STRICT)
    produce(orders, *range(8))
    orders.run_well()
    batches = [event for event in orders.events if isinstance(event, BatchCommitted)]
    rounds = [event for event in orders.events if isinstance(event, DatasetChecked)]
    assert len(batches) == 8
    assert 1 <= len(rounds) <= 2
    produce(orders, 8, 3)
    (error,) = orders.run().errors
    assert error.code == "DATASET_CHECK_FAILED", "the last batch is checked"
    # Without a new record, too.
    (error,) = orders.run().errors
    assert error.facts[0] == '1 key is in several rows (2 rows), such as {"id":3}'
    orders.write(STRICT.replace(", fail=True", ""))
    orders.run_well()


def test_a_check_that_fails_ends_a_continuous_flow(
    orders: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first check can run before the second batch; the next one would be after a minute.
    monkeypatch.setattr(checks, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(checks, "_SHARE", 1e9)
    orders.write(STRICT)
    produce(orders, 1, 1)
    with orders.running():
        until(lambda: bool(orders.happened(FlowFailed)), "the check stops the flow")
        assert not spark.streams.active, "its query does not go on"


def test_a_stop_cancels_a_check_and_the_next_run_repeats_it(
    orders: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def endless(*_: Any) -> Any:
        begun.set()
        return spark.range(10**15).selectExpr("sum(hash(id))").collect()

    orders.write(STRICT)
    produce(orders, 1)
    with monkeypatch.context() as patch:
        patch.setattr(checks, "run_check", endless)
        patch.setattr(stop, "_GRACE_S", 0.0)
        with orders.running():
            until(begun.is_set, "the check runs")
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), "its job has ended")
    assert not orders.happened(FlowFailed) and not orders.happened(DatasetChecked)
    orders.run_well()
    assert [event.passed for event in orders.happened(DatasetChecked)] == [True]  # type: ignore[attr-defined]


def test_a_table_without_recent_values_is_not_fresh(orders: Shop) -> None:
    produce(orders, 1)
    orders.run_well()
    passed, fact = checked(orders)["orders", "at within 3600 s"]
    assert (passed, fact) == (False, "the newest at is 2020-01-01 00:00:00")


def test_plan_refuses_checks_of_unknown_columns_and_tables(orders: Shop) -> None:
    orders.write(CODE.replace("{distinct}", "").replace('unique("id")', 'unique("ident")'))
    assert orders.foreseen() == ["COLUMN_NOT_FOUND"]
    orders.write(CODE.replace("{distinct}", "").replace('like="orders"', 'like="raw"'))
    assert orders.foreseen() == ["EXPECTATION_INVALID"]
