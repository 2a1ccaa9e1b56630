"""Two drivers of one flow: the second is refused, and one that was away finds out, before it commits."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from headrace.model.names import TableName
from headrace.state.lease import EXPIRES_VARIABLE, HEARTBEATS
from proof.driver import start
from proof.shop import Shop
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")


def lease(shop: Shop) -> Path:
    return shop.storage.lease(TableName(shop.database, "bronze"), "bronze")


@pytest.mark.parametrize(
    ("barrier", "code"), [("lease", "LEASE_LOST"), ("commit", "BATCH_FENCED")], ids=["lease", "commit"]
)
def test_a_paused_driver_that_wakes_after_another_took_over_commits_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, barrier: str, code: str
) -> None:
    shop.produce(30)
    with start(shop, "--continuous", pause=("before-commit", 0)) as driver:
        driver.wait_at("before-commit")
        error = shop.refused()
        assert (error.code, error.params["pid"]) == ("SECOND_DRIVER", driver.process.pid)

        driver.process.send_signal(signal.SIGSTOP)
        mine = lease(shop).read_bytes()
        beat = lease(shop).parent / HEARTBEATS / f"{json.loads(mine)['process']}.json"
        beaten = json.loads(beat.read_bytes())["monotonic"]
        until(lambda: time.monotonic() - beaten > 1.0, "the heart of the paused driver stops")
        monkeypatch.setenv(EXPIRES_VARIABLE, "1")
        shop.run_well()
        shop.produce(30)
        shop.run_well()
        after = shop.versions()

        if barrier == "commit":
            # As if it had looked at its lease just before the pause: only the commit is left to stop it.
            lease(shop).write_bytes(mine)
        driver.go_on("before-commit")
        os.kill(driver.process.pid, signal.SIGCONT)
        assert driver.end() == 1
        assert code in driver.said()
    assert shop.versions() == after
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


def test_a_stop_is_acknowledged_while_a_batch_runs_and_a_second_one_aborts_the_batch(shop: Shop) -> None:
    shop.produce(30)
    with start(shop, "--continuous", pause=("before-commit", 0)) as driver:
        driver.wait_at("before-commit")
        driver.process.send_signal(signal.SIGTERM)
        until(lambda: "stopping after this batch" in driver.said(), "the signal is acknowledged")
        assert driver.process.poll() is None
        driver.process.send_signal(signal.SIGTERM)
        until(lambda: driver.process.poll() is not None, "it ends in the middle of the batch")
        assert (driver.end(), "aborting" in driver.said()) == (143, True), driver.said()
        driver.wait_until_gone()
    assert not [commit for commit in shop.versions().values() if commit > 1], "no batch was committed"
    shop.run_well()
    shop.check()


def test_a_stop_while_spark_starts_is_acknowledged_and_leaves_no_process(shop: Shop) -> None:
    shop.produce(30)
    with start(shop, "--continuous") as driver:
        until(lambda: driver.jvms() != [], "its JVM starts")
        jvm = driver.jvm
        driver.process.send_signal(signal.SIGTERM)
        until(lambda: "the update has not begun" in driver.said(), "the signal is acknowledged")
        assert driver.end() == 143, driver.said()
        until(lambda: not jvm.is_running(), "the JVM ends")
    assert "Traceback" not in driver.said(), driver.said()
    shop.run_well()
    shop.check()
