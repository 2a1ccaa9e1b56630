"""The event log of a run that was killed: the next run adds what is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logged_orders import counts_in_commits, counts_in_log, events, make_orders
from proof.driver import start
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")


def test_after_a_kill_the_next_run_completes_the_log_from_the_commits(make_shop: Callable[..., Shop]) -> None:
    orders = make_orders(make_shop)
    with start(orders, pause=("after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        driver.kill("both")
        driver.wait_until_gone()
    assert len(counts_in_commits(orders, "orders")) == 1
    assert counts_in_log(orders, "orders") == []
    orders.run_well()
    assert len(counts_in_commits(orders, "orders")) == 2
    assert counts_in_log(orders, "orders") == counts_in_commits(orders, "orders")
    killed, *_, second = (one for one in events(orders, flow="orders") if one.level == "METRICS")
    assert killed.update != second.update
    assert killed.update in {one.update for one in events(orders) if one.type == "create_update"}
