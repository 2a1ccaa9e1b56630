"""A driver that is killed while it refreshes views by what has changed, and two drivers that do so at once:
each change is applied once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import Point
from headrace.state.lease import EXPIRES_VARIABLE, VIEW
from headrace.storage.layout import locate
from headrace.storage.table_log import newest_commits
from integration.test_view_refreshes import VIEWS, check_views
from proof.driver import Driver, Victim, start
from proof.shop import BRONZE, SILVER, Shop
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS: tuple[tuple[str, Point, Victim], ...] = (
    ("sums", "before-commit", "both"),
    ("ranked", "after-commit", "jvm"),
    ("large", "before-commit", "python"),
    ("sums", "after-commit", "both"),
)


def refreshed(shop: Shop, view: str) -> Any:
    """The newest refresh of a view."""
    commits = newest_commits(locate(shop.table(view)))
    return next(one.metadata for one in commits if one.refreshes_view)


def is_up_to_date(shop: Shop, view: str) -> bool:
    """Whether the view has the newest rows of the table that it reads."""
    (seen,) = refreshed(shop, view)["inputs"].values()
    return bool(seen["version"] == shop.versions()["silver"])


def check(shop: Shop, spark: SparkSession) -> None:
    check_views(shop, spark)
    with Pipeline.load(shop.root) as pipeline:
        proof = pipeline.recompute(pipeline.verify())
    assert proof.proven, proof.to_json()


def test_a_kill_within_a_refresh_loses_and_doubles_no_change(shop: Shop, spark: SparkSession) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(40)
    shop.run_well()
    for view, point, victim in KILLS:
        shop.produce(20)
        with start(shop, pause=(f"{view}/{point}", 0)) as driver:
            driver.wait_at(point)
            before = shop.versions()
            assert is_up_to_date(shop, view) == (point == "after-commit"), "the kill comes at another moment"
            assert point == "before-commit" or "increment" in refreshed(shop, view)
            driver.kill(victim)
            driver.wait_until_gone()
        assert shop.versions() == before, "something went on to commit after the kill"
    # The last kill comes while Delta writes the commit of the increment.
    shop.produce(20)
    log = shop.table("sums") / "_delta_log"
    with start(shop, pause=("sums/before-commit", 0)) as driver:
        driver.wait_at("before-commit")
        name = f"{shop.versions()['sums'] + 1:020d}.json"
        with shop.lake.writing(log / name) as wait:
            driver.go_on("before-commit")
            wait()
            driver.kill("both")
            driver.wait_until_gone()
    shop.run_well()
    check(shop, spark)
    shop.produce(20)
    shop.run_well()
    assert refreshed(shop, "sums")["increment"]["strategy"] == "merge"
    check(shop, spark)


def take_over(shop: Shop, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh the views while the driver stands still and loses its leases."""
    driver.stand_still()
    monkeypatch.setenv(EXPIRES_VARIABLE, "1")
    stopped = time.monotonic()
    until(lambda: time.monotonic() - stopped > 1.5, "its leases have expired")
    shop.run_well()
    assert "increment" in refreshed(shop, "sums")


def test_a_driver_that_wakes_at_the_start_of_a_refresh_takes_no_view_back(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compute the whole view at the versions of the tables that it knows."""
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(40)
    shop.run_well()
    shop.produce(20)
    with start(shop, pause=("sums/batch-start", 0)) as driver:
        driver.wait_at("batch-start")
        shop.produce(20)
        take_over(shop, driver, monkeypatch)
        after = shop.versions()["sums"]
        driver.go_on("batch-start")
        driver.wake()
        driver.end()
    assert shop.versions()["sums"] == after, driver.said()
    assert is_up_to_date(shop, "sums")
    check(shop, spark)


def test_a_driver_that_wakes_within_a_refresh_applies_no_change_twice(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(40)
    shop.run_well()
    shop.produce(20)
    with start(shop, pause=("sums/before-commit", 0)) as driver:
        driver.wait_at("before-commit")
        assert not is_up_to_date(shop, "sums")
        lease = shop.storage.lease(TableName(shop.database, "sums"), VIEW)
        mine = lease.read_bytes()
        take_over(shop, driver, monkeypatch)
        after = shop.versions()["sums"]
        # As if it had looked at its lease just before: only the commit is left to stop it.
        lease.write_bytes(mine)
        driver.go_on("before-commit")
        driver.wake()
        driver.end()
    assert shop.versions()["sums"] == after, driver.said()
    check(shop, spark)
    shop.produce(20)
    shop.run_well()
    check(shop, spark)
