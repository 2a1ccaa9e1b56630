"""SIGKILL of the real process during its first start: what is half done is done again."""

from __future__ import annotations

from functools import partial

import pytest

from proof.driver import start
from proof.fixtures import MORE_ON_S3
from proof.shop import Shop
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")


@MORE_ON_S3
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.thorough)])
def test_kills_during_the_first_start_leave_nothing_half_done(shop: Shop, every: int) -> None:
    """Each start meets what the kill before left behind, and is killed one step later itself."""
    log, checkpoints = shop.table("bronze") / "_delta_log", shop.checkpoints()

    def has(name: str) -> bool:
        """Whether a checkpoint has a file. One that a kill has left unfinished is replaced by another."""
        return checkpoints.is_dir() and any((one / name).exists() for one in checkpoints.iterdir())

    steps = (
        shop.lake.root.exists,
        shop.storage.leases.exists,
        log.parent.exists,
        (log / f"{0:020d}.json").exists,
        checkpoints.exists,
        *(partial(has, name) for name in ("headrace.json", "metadata", "offsets/0")),
    )[1::every]
    shop.produce(30)
    kills = 0
    for number, is_reached in enumerate(steps):
        if is_reached():
            continue
        with start(shop) as driver:
            process = driver.process
            until(
                lambda is_reached=is_reached, process=process: is_reached() or process.poll() is not None,
                f"step {number} is reached",
            )
            assert process.poll() is None, driver.said()
            driver.kill("both")
            driver.wait_until_gone()
        assert not has("commits/0"), "the kill came after the first batch"
        kills += 1
    assert kills >= 2
    shop.produce(30)
    shop.run_well()
    shop.check()
