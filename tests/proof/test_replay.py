"""A replay that is killed between its commits, or that meets a running flow."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from headrace.errors import SecondDriverError
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import Point
from proof.driver import start
from proof.shop import Shop
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.table
{expectations}
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG")
"""
ODD = '@hr.expect_or_quarantine("even", "id % 2 = 0")'


@pytest.fixture
def rejected(shop: Shop) -> Shop:
    """A pipeline that has rejected the records 1 and 3, by an expectation that it no longer has."""
    shop.write(CODE.replace("{expectations}", ODD))
    shop.ledger.produce_values(shop.topic, [(json.dumps({"id": id}).encode(), 0) for id in range(5)])
    shop.run_well()
    shop.write(CODE.replace("{expectations}", ""))
    return shop


def states(shop: Shop) -> Counter[str]:
    """The rejected rows by state, as users see them."""
    with Pipeline.load(shop.root) as pipeline:
        return Counter(pipeline.quarantine.list(["orders"])[0].states)


def ids(shop: Shop) -> list[int]:
    with Pipeline.load(shop.root) as pipeline:
        return sorted(pipeline.read("orders").to_arrow().column("id").to_pylist())


def records(shop: Shop) -> str:
    (flow,) = shop.verify().datasets[0].flows
    return flow.grades[2].text


@pytest.mark.parametrize("point", ["replay-marked", "replay-committed"])
def test_a_replay_that_was_killed_is_finished_or_undone_by_the_next(rejected: Shop, point: Point) -> None:
    """Before, between and after its commits, the proof holds, and each record is in one place."""
    shop = rejected
    assert records(shop) == "5 read from Kafka = 3 in the table + 2 in quarantine"
    with start(shop, "orders", pause=(point, 0), verb=("quarantine", "replay")) as driver:
        driver.wait_at(point)
        driver.kill("both")
        driver.wait_until_gone()
    is_committed = point == "replay-committed"
    assert states(shop) == {"replayed" if is_committed else "replaying": 2}
    assert ids(shop) == ([0, 1, 2, 3, 4] if is_committed else [0, 2, 4])
    in_between = "5 in the table" if is_committed else "3 in the table + 2 in quarantine"
    assert records(shop) == f"5 read from Kafka = {in_between}"
    # A run in between changes nothing.
    shop.ledger.produce_values(shop.topic, [(b'{"id": 5}', 0)])
    shop.run_well()
    for expected in (0 if is_committed else 2, 0):
        with Pipeline.load(shop.root) as pipeline:
            assert pipeline.quarantine.replay("orders").replayed == expected
        assert states(shop) == {"replayed": 2}
        assert ids(shop) == [0, 1, 2, 3, 4, 5]
        assert records(shop) == "6 read from Kafka = 6 in the table"


def test_a_replay_is_refused_while_the_flow_runs(rejected: Shop) -> None:
    shop = rejected
    with shop.running():
        until(lambda: any(shop.storage.leases.glob("*.json")), "the flow runs")
        with Pipeline.load(shop.root) as pipeline, pytest.raises(SecondDriverError) as refused:
            pipeline.quarantine.replay("orders")
    assert "stop that process" in refused.value.remedies[0]
    assert states(shop) == {"quarantined": 2}
    assert ids(shop) == [0, 2, 4]
