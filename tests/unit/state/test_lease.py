"""One driver for a flow: who holds the lease, who may take it, who notices."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.errors import LeaseLostError, SecondDriverError, StorageUnwritableError
from headrace.state.lease import EXPIRES_S, EXPIRES_VARIABLE, Heart, Lease, find_driver
from headrace.storage.locate import locate
from headrace.storage.location import Location
from waiting import until


@pytest.fixture
def path(location: Location) -> Location:
    return location / "leases" / "default.sales.sales.json"


def held(path: Location) -> dict[str, Any]:
    return dict(path.read_json())


def alter(path: Location, **changes: Any) -> None:
    path.replace_json({**held(path), **changes})


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_lease_says_who_holds_it(path: Location) -> None:
    lease = Lease.acquire(path, "sales")
    said = held(path)
    assert (said["owner"], said["pid"]) == (lease.owner, os.getpid())
    assert said["started"] == psutil.Process().create_time()
    assert time.time() - said["heartbeat"] < EXPIRES_S
    lease.check("sales")


def test_a_second_driver_is_refused(path: Location) -> None:
    first = Lease.acquire(path, "sales")
    with pytest.raises(SecondDriverError) as caught:
        Lease.acquire(path, "sales")
    assert caught.value.params["pid"] == os.getpid()
    first.check("sales")


def test_a_released_lease_is_free(path: Location) -> None:
    Lease.acquire(path, "sales").release()
    assert not path.exists()
    Lease.acquire(path, "sales")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": dead_pid()}, id="its process has ended"),
        pytest.param({"started": 0.0}, id="its pid belongs to another process now"),
        pytest.param({"heartbeat": time.time() - 2 * EXPIRES_S}, id="its heart has stopped"),
        pytest.param({"host": "elsewhere", "heartbeat": 0.0}, id="its machine is gone"),
        pytest.param({"pid": None}, id="it has no pid"),
        pytest.param({"heartbeat": None}, id="it has no heartbeat"),
    ],
)
def test_the_lease_of_a_driver_that_is_gone_is_taken_over(path: Location, changes: dict[str, Any]) -> None:
    gone = Lease.acquire(path, "sales")
    alter(path, **changes)
    lease = Lease.acquire(path, "sales")
    lease.check("sales")
    with pytest.raises(LeaseLostError):
        gone.check("sales")


@pytest.mark.parametrize("content", ["", "{half", "[]"])
def test_a_lease_that_cannot_be_read_is_nobody_s(path: Location, content: str) -> None:
    path.replace(content)
    Lease.acquire(path, "sales").check("sales")


def test_a_driver_on_another_machine_is_trusted_as_long_as_it_beats(path: Location) -> None:
    Lease.acquire(path, "sales")
    alter(path, host="elsewhere", pid=dead_pid())
    with pytest.raises(SecondDriverError):
        Lease.acquire(path, "sales")


def test_a_lease_that_a_clock_jump_keeps_names_the_file_to_remove(path: Location) -> None:
    Lease.acquire(path, "sales")
    alter(path, host="elsewhere", heartbeat=time.time() + 3600)
    with pytest.raises(SecondDriverError) as caught:
        Lease.acquire(path, "sales")
    assert f"remove {path}" in caught.value.remedies[-1]
    path.delete()
    Lease.acquire(path, "sales").check("sales")


def test_the_time_to_expire_can_be_set(path: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    Lease.acquire(path, "sales")
    alter(path, heartbeat=time.time() - 5.0)
    with pytest.raises(SecondDriverError):
        Lease.acquire(path, "sales")
    monkeypatch.setenv(EXPIRES_VARIABLE, "3")
    Lease.acquire(path, "sales")


def test_a_driver_that_lost_its_lease_leaves_the_new_one_alone(path: Location) -> None:
    gone = Lease.acquire(path, "sales")
    alter(path, heartbeat=0.0)
    Lease.acquire(path, "sales")
    after = held(path)
    gone.beat()
    gone.release()
    assert held(path) == after


def test_a_lease_that_somebody_removed_is_lost(path: Location) -> None:
    lease = Lease.acquire(path, "sales")
    path.delete()
    with pytest.raises(LeaseLostError):
        lease.check("sales")


def test_a_heart_beats_from_its_own_thread_until_the_lease_is_released(path: Location) -> None:
    heart = Heart(interval_s=0.01)
    lease = heart.acquire(path, "sales")
    alter(path, heartbeat=0.0)
    until(lambda: held(path)["heartbeat"] != 0.0, "the heart beats")
    heart.release(lease)
    assert not path.exists()
    heart.stop()


def test_a_heart_that_stops_gives_all_its_leases_back(path: Location) -> None:
    heart = Heart(interval_s=0.01)
    heart.acquire(path, "sales")
    heart.stop()
    assert not path.exists()


def test_of_many_drivers_one_gets_the_lease_of_a_driver_that_is_gone(path: Location) -> None:
    def acquire(number: int) -> bool:
        try:
            Lease.acquire(path, "sales")
        except SecondDriverError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(acquire, range(16))).count(True) == 1
        alter(path, heartbeat=0.0)
        assert list(pool.map(acquire, range(16))).count(True) == 1


def test_a_lease_names_its_live_driver(path: Location) -> None:
    assert find_driver(path) is None
    Lease.acquire(path, "sales")
    driver = find_driver(path)
    assert driver is not None
    assert driver.pid == os.getpid()
    alter(path, pid=dead_pid())
    assert find_driver(path) is None


def test_a_storage_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file where the folder should be")
    with pytest.raises(StorageUnwritableError):
        Lease.acquire(locate(tmp_path) / "leases" / "default.sales.sales.json", "sales")


def test_a_lease_of_a_dead_driver_is_held_until_the_engine_has_ended_its_calls(
    path: Location, tmp_path: Path
) -> None:
    Lease.acquire(path, "sales")
    guard = tmp_path / "held"
    alter(path, pid=dead_pid(), guard=str(guard))
    with guard.open("w") as held_by_engine, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held_by_engine, fcntl.LOCK_EX)
        assert find_driver(path) is not None
        # Long without a heartbeat, as a commit can take.
        alter(path, heartbeat=time.time() - 10 * EXPIRES_S)
        taking = pool.submit(Lease.acquire, path, "sales")
        with pytest.raises(TimeoutError):
            taking.result(0.2)
        fcntl.flock(held_by_engine, fcntl.LOCK_UN)
        assert taking.result(5).owner == held(path)["owner"]
