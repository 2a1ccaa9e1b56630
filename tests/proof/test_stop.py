"""SIGTERM of the real process: the batch ends whole, and the next start goes on behind it."""

from __future__ import annotations

import signal

import pytest

from checked_json import read_json
from proof.driver import start
from proof.lakes import FolderWatch
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")


def test_a_sigterm_inside_a_commit_lets_the_batch_end_whole(shop: Shop) -> None:
    shop.write(limit=30)
    shop.produce(90)
    with start(shop, "--continuous", "--json", pause=("before-commit", 1)) as driver:
        driver.wait_at("before-commit")
        watch = FolderWatch(shop.table("bronze") / "_delta_log")
        name = f"{shop.versions()['bronze'] + 1:020d}.json"
        driver.go_on("before-commit")
        # Delta writes a commit into a file with this name in its own, and renames it.
        watch.wait_for(name.encode())
        driver.process.send_signal(signal.SIGTERM)
        watch.close()
        assert driver.end() == 143, driver.said()
    assert read_json("run", driver.said().splitlines()[-1])[0]["result"]["outcome"] == "stopped"
    held = len(shop.bronze())
    assert held in (60, 90)
    assert (shop.checkpoint() / "commits" / str(held // 30 - 1)).exists()
    shop.produce(30)
    shop.run_well()
    shop.check()
