"""SIGKILL of the real process, at each point of the protocol: nothing lost, nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucket_path import open_table
from headrace.run.failpoints import Point
from proof.driver import Victim, start
from proof.fixtures import MORE_ON_S3, ON_BOTH
from proof.shop import BRONZE, SILVER, Shop
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")
HELD: tuple[Point, ...] = ("after-commit", "after-batch")
"""Where the table already holds the batch."""


def numbers(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()


def assert_fired(shop: Shop, batch: int, flow: str = "bronze") -> None:
    """The fault came in the middle: Spark had planned the batch, and had not finished it."""
    checkpoint = shop.checkpoint(flow)
    assert batch in numbers(checkpoint / "offsets")
    assert batch not in numbers(checkpoint / "commits")


@ON_BOTH
@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(("both", "python", "jvm", "python", "jvm"), id="in turn"),
        *(pytest.param((one,) * 5, id=one, marks=pytest.mark.thorough) for one in ("python", "jvm", "both")),
    ],
)
def test_a_kill_at_any_point_loses_and_doubles_nothing(shop: Shop, victims: tuple[Victim, ...]) -> None:
    """Each start replays what the kill before left behind, and is killed at the next point itself."""
    for batch, (point, victim) in enumerate(zip(POINTS, victims, strict=False)):
        shop.produce(30)
        with start(shop, pause=(point, batch)) as driver:
            driver.wait_at(point)
            before = shop.versions()
            driver.kill(victim)
            driver.wait_until_gone()
        assert_fired(shop, batch)
        assert shop.versions() == before, "something went on to commit after the kill"
        held = len(shop.bronze())
        assert held == 30 * (batch + (point in HELD))
        if victim == "jvm":
            assert "DRIVER_LOST" in driver.said()
    for batch in range(len(POINTS), len(POINTS) + 5):
        shop.produce(30)
        if is_killed_within_the_commit(shop, batch, victims[-1]):
            break
    else:
        pytest.fail("no kill came between the writing and the naming of the table's next version")
    shop.produce(30)
    shop.run_well()
    shop.check()


def is_killed_within_the_commit(shop: Shop, batch: int, victim: Victim) -> bool:
    """Kill while the table's next version is being written.

    Returns:
        Whether the kill came first: on a local disk the version is not there; in a bucket it comes after the
        kill.
    """
    log = shop.table("bronze") / "_delta_log"
    with start(shop, pause=("before-commit", batch)) as driver:
        driver.wait_at("before-commit")
        name = f"{shop.versions()['bronze'] + 1:020d}.json"
        with shop.lake.writing(log / name) as wait:
            driver.go_on("before-commit")
            wait()
            driver.kill(victim)
            driver.wait_until_gone()
            has_begun = shop.lake.has_begun(log / name)
    assert_fired(shop, batch)
    return has_begun


@MORE_ON_S3
def test_a_kill_in_any_layer_loses_and_doubles_nothing(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    with start(shop, "--continuous", pause=("silver/before-commit", 1)) as driver:
        first = shop.checkpoints("silver") / "0001" / "commits" / "0"
        until(first.exists, "silver's first batch ends")
        shop.produce(30)
        driver.wait_at("before-commit")
        driver.kill("python")
        driver.wait_until_gone()
    assert_fired(shop, 1, "silver")

    log = shop.table("gold") / "_delta_log"
    with start(shop, "--continuous") as driver:
        until(lambda: sales_in_gold(shop) == 60, "gold counts all sales")
        with shop.lake.writing(log / f"{shop.versions()['gold'] + 1:020d}.json") as wait:
            shop.produce(30)
            wait()
            driver.kill("jvm")
            driver.wait_until_gone()
    assert sales_in_gold(shop) >= 60
    shop.run_well()
    shop.check(silver=True)


def sales_in_gold(shop: Shop) -> int:
    if shop.versions().get("gold", -1) < 0:
        return 0
    return sum(open_table(shop.table("gold")).to_pyarrow_table()["n"].to_pylist())
