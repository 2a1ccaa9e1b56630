"""One process for a flow: who holds the lease, who may take it, who notices."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    LeaseLostError,
    LeaseUnreadableError,
    SecondDriverError,
    SourceLocation,
    StorageUnwritableError,
)
from headrace.state import lease as lease_module
from headrace.state.lease import EXPIRES_VARIABLE, HEARTBEATS, Heart, Lease, Observer, find_driver
from headrace.storage.layout import locate
from headrace.storage.local import LocalFiles
from headrace.storage.location import Location
from waiting import until


@pytest.fixture
def path(location: Location) -> Location:
    return location / "leases" / "default.sales.sales.json"


@pytest.fixture
def hearts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def heart(hearts: ExitStack) -> Heart:
    return hearts.enter_context(Heart())


@pytest.fixture
def other(hearts: ExitStack) -> Heart:
    """The heart of a second process."""
    return hearts.enter_context(Heart())


@pytest.fixture
def expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a heartbeat for half a second has ended."""
    monkeypatch.setenv(EXPIRES_VARIABLE, "0.5")


class Clock:
    """The clock of the leases. It goes on while somebody sleeps, and then the processes beat."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.hearts: list[Heart] = []
        self.later: list[Callable[[], object]] = []
        """What happens at the next sleeps, one after another."""

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 0.5)
        for heart in self.hearts:
            if not heart._stop.is_set():
                heart.beat()
        if self.later:
            self.later.pop(0)()


@pytest.fixture
def clock(heart: Heart, other: Heart, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.hearts += [heart, other]
    monkeypatch.setattr("headrace.state.lease.time", clock)
    return clock


def held(path: Location) -> dict[str, Any]:
    return dict(path.read_json())


def alter(path: Location, **changes: Any) -> None:
    path.replace_json({**held(path), **changes})


def beat_of(path: Location) -> Location:
    return path.parent / HEARTBEATS / f"{held(path)['process']}.json"


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def end(heart: Heart) -> None:
    """End a heart as a killed process does: it writes and removes nothing more."""
    heart._stop.set()
    assert heart._thread is not None
    heart._thread.join()


def test_a_lease_names_its_process_and_its_heartbeat_goes_on(
    path: Location, heart: Heart, expires: None
) -> None:
    lease = heart.acquire(path, "sales")
    found, first = held(path), beat_of(path).read_bytes()
    assert (found["owner"], found["pid"]) == (lease.owner, os.getpid())
    until(lambda: beat_of(path).read_bytes() != first, "the heart beats")
    lease.check("sales")
    assert held(path) == found, "no heartbeat writes the lease"


def test_a_second_process_is_refused(path: Location, heart: Heart, other: Heart) -> None:
    first = heart.acquire(path, "sales")
    with pytest.raises(SecondDriverError) as caught:
        other.acquire(path, "sales", SourceLocation("sales.py", 3))
    assert caught.value.params["pid"] == os.getpid()
    assert (str(caught.value.location), caught.value.facts[0]) == ("sales.py:3", f"its lease: {path}")
    first.check("sales")


def test_a_released_lease_is_free(path: Location, heart: Heart, other: Heart) -> None:
    lease = heart.acquire(path, "sales")
    beat = beat_of(path)
    heart.release(lease)
    assert not beat.exists()
    assert find_driver(path) is None
    other.acquire(path, "sales").check("sales")


def test_a_slow_release_leaves_the_lease_of_the_next_process(
    path: Location, hearts: ExitStack, other: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.is_local:
        return
    heart = hearts.enter_context(Heart())
    lease = heart.acquire(path, "sales")
    read, taken = lease_module._read, list[Lease]()

    def read_and_stall(location: Location) -> bytes | None:
        found = read(location)
        if not taken:
            monkeypatch.setattr(lease_module, "_read", read)
            alter(path, pid=dead_pid())
            taken.append(other.acquire(path, "sales"))
        return found

    monkeypatch.setattr(lease_module, "_read", read_and_stall)
    heart.release(lease)
    taken[0].check("sales")


def test_the_heart_beats_until_all_leases_are_released(
    path: Location, expires: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart, release, beats = Heart(), Lease.release, list[bool]()

    def look(self: Lease) -> None:
        beats.append(heart._thread is not None and heart._thread.is_alive())
        release(self)

    monkeypatch.setattr(Lease, "release", look)
    heart.acquire(path, "sales")
    heart.stop()
    assert beats == [True] and heart._thread is not None and not heart._thread.is_alive()


def test_all_leases_of_a_process_have_one_heartbeat(path: Location, heart: Heart) -> None:
    heart.acquire(path, "sales")
    more = [heart.acquire(path.parent / f"more{number}.json", "more") for number in range(3)]
    beats = path.parent / HEARTBEATS
    assert len(beats.list_files()) == 1
    for lease in more:
        heart.release(lease)
    assert len(beats.list_files()) == 1
    heart.stop()
    assert beats.list_files() == [] and find_driver(path) is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": dead_pid()}, id="its process has ended"),
        pytest.param({"started": 1}, id="its pid belongs to another process now"),
    ],
)
def test_the_lease_of_a_dead_process_of_this_boot_is_taken_at_once(
    path: Location, heart: Heart, other: Heart, changes: dict[str, Any]
) -> None:
    gone = heart.acquire(path, "sales")
    alter(path, **changes)
    began = time.monotonic()
    other.acquire(path, "sales").check("sales")
    assert time.monotonic() - began < 5.0
    with pytest.raises(LeaseLostError):
        gone.check("sales")


@pytest.mark.parametrize("clock_s", [-7 * 3600.0, 7 * 3600.0], ids=["behind", "ahead"])
def test_wall_clocks_that_differ_by_hours_give_no_lease_away(
    path: Location, heart: Heart, other: Heart, monkeypatch: pytest.MonkeyPatch, clock_s: float
) -> None:
    heart.acquire(path, "sales")
    here = time.time
    monkeypatch.setattr("time.time", lambda: here() + clock_s)
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    assert find_driver(path) is not None


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"boot": "another", "pid_namespace": "another"}, id="another machine"),
        pytest.param({"pid_namespace": "pid:[1]"}, id="another container of this machine"),
        pytest.param({"boot": None, "pid_namespace": ""}, id="a system that has no boot id"),
    ],
)
def test_a_process_elsewhere_holds_its_lease_until_its_heartbeat_stays_the_same(
    path: Location, heart: Heart, other: Heart, clock: Clock, elsewhere: dict[str, Any]
) -> None:
    heart.acquire(path, "sales")
    # Here, its process id is of no process: containers with one name have other ones.
    alter(path, pid=dead_pid(), **elsewhere)
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    found = find_driver(path)
    assert found is not None and found.is_certain and not found.is_here
    end(heart)
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    clock.sleep(path.files.silence_s)
    other.acquire(path, "sales").check("sales")


def test_a_stopped_process_of_this_machine_loses_its_lease(
    path: Location, heart: Heart, other: Heart, clock: Clock
) -> None:
    gone = heart.acquire(path, "sales")
    end(heart)
    clock.sleep(path.files.silence_s - 1)
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    clock.sleep(1)
    other.acquire(path, "sales")
    with pytest.raises(LeaseLostError):
        gone.check("sales")


def test_one_wait_is_enough_for_all_leases_of_a_process(
    path: Location, heart: Heart, other: Heart, clock: Clock
) -> None:
    paths = [path, *(path.parent / f"more{number}.json" for number in range(4))]
    for one in paths:
        heart.acquire(one, "sales")
        alter(one, boot="another")
    end(heart)
    began = clock.now
    for one in paths:
        other.acquire(one, "sales")
    assert 0.0 <= clock.now - began - path.files.silence_s < 1.0
    other.stop()
    assert (path.parent / HEARTBEATS).list_files() == [], "the heartbeat of the ended process is removed"


def test_a_process_without_a_heartbeat_file_is_not_taken_for_an_ended_one_at_once(
    path: Location, heart: Heart, other: Heart, clock: Clock
) -> None:
    heart.acquire(path, "sales")
    alter(path, process="f" * 32)
    found = find_driver(path)
    assert found is not None and not found.is_certain
    other.acquire(path, "sales")


@pytest.mark.parametrize("content", ["", "{half", "[]", '{"owner": "o"}', '{"owner": "o", "pid": null}'])
def test_an_unreadable_lease_is_not_free(path: Location, heart: Heart, content: str) -> None:
    path.replace(content)
    with pytest.raises(LeaseUnreadableError) as caught:
        heart.acquire(path, "sales", SourceLocation("sales.py", 3))
    assert path.remove_command in caught.value.remedies[1]
    assert str(caught.value.location) == "sales.py:3"
    found = find_driver(path)
    assert found is not None and (found.pid, found.is_certain) == (None, False)
    assert (path.parent / HEARTBEATS).list_files() == []
    path.delete()
    heart.acquire(path, "sales").check("sales")


def test_a_lease_of_an_earlier_version_is_its_own_heartbeat(
    path: Location, heart: Heart, clock: Clock
) -> None:
    old = {"owner": "o", "host": "h", "pid": os.getpid(), "started": 1.5, "heartbeat": 0.0}
    path.replace_json(old)
    clock.later += [lambda: None, lambda: path.replace_json({**old, "heartbeat": 2.0})]
    with pytest.raises(SecondDriverError):
        heart.acquire(path, "sales")
    assert clock.later == []
    clock.sleep(path.files.silence_s)
    heart.acquire(path, "sales").check("sales")


def test_the_time_to_expire_is_a_property_of_the_storage(
    path: Location, heart: Heart, other: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart.acquire(path, "sales")
    end(heart)
    file, silence_s = beat_of(path), path.files.silence_s
    assert silence_s == (20.0 if path.is_local else 60.0)
    file.replace_json({"beat": 9, "monotonic": time.monotonic() - silence_s + 5.0})
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    file.replace_json({"beat": 9, "monotonic": time.monotonic() - silence_s})
    other.acquire(path, "sales")


def test_a_process_that_lost_its_lease_leaves_the_new_one_alone(
    path: Location, heart: Heart, other: Heart
) -> None:
    gone = heart.acquire(path, "sales")
    alter(path, pid=dead_pid())
    other.acquire(path, "sales")
    after = held(path)
    heart.release(gone)
    heart.stop()
    assert held(path) == after


def test_a_lease_that_somebody_removed_is_lost(path: Location, heart: Heart) -> None:
    lease = heart.acquire(path, "sales")
    path.delete()
    with pytest.raises(LeaseLostError):
        lease.check("sales")


def test_of_many_processes_one_gets_the_lease_of_a_process_that_is_gone(
    path: Location, hearts: ExitStack
) -> None:
    def acquire(heart: Heart) -> Lease | None:
        try:
            return heart.acquire(path, "sales")
        except SecondDriverError:
            return None

    for _ in range(2):
        several = [hearts.enter_context(Heart()) for _ in range(16)]
        with ThreadPoolExecutor(8) as pool:
            assert sum(lease is not None for lease in pool.map(acquire, several)) == 1
        alter(path, pid=dead_pid())


def test_an_observer_tells_a_silent_process_from_an_ended_one(
    path: Location, heart: Heart, clock: Clock
) -> None:
    observer = Observer()
    assert observer.find(path) is None
    heart.acquire(path, "sales")
    alter(path, boot="another")
    found = observer.find(path)
    assert found is not None and (found.pid, found.is_certain) == (os.getpid(), True)
    end(heart)
    clock.sleep(path.files.silence_s - 1)
    assert observer.find(path) is not None
    clock.sleep(1)
    assert observer.find(path) is None


def test_an_observer_waits_once_for_the_heartbeats_of_several_processes(
    path: Location, hearts: ExitStack, clock: Clock
) -> None:
    paths = [path.parent / f"{number}.json" for number in range(5)]
    for one in paths:
        heart = hearts.enter_context(Heart())
        heart.acquire(one, "sales")
        alter(one, boot="another")
        end(heart)
    began = clock.now
    observer = Observer(paths)
    found = [observer.find(one) for one in paths]
    assert all(driver is not None and not driver.is_certain for driver in found)
    assert 0.0 <= clock.now - began - path.files.silence_s / 5 <= 1.0, "two heartbeats"


def test_a_heart_goes_on_after_a_heartbeat_or_a_release_has_failed(
    tmp_path: Path, expires: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = locate(tmp_path) / "leases" / "default.sales.sales.json"

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with Heart() as heart:
        heart.acquire(path, "sales")
        with monkeypatch.context() as broken:
            broken.setattr(LocalFiles, "replace", refuse)
            until(lambda: find_driver(path) is None, "the lease expires", limit_s=10.0)
        until(lambda: find_driver(path) is not None, "the heart beats again", limit_s=10.0)
        monkeypatch.setattr(LocalFiles, "delete", refuse)
    assert path.exists()


def test_a_lease_that_the_system_does_not_read_is_not_free(path: Location, heart: Heart) -> None:
    heart.acquire(path.parent / "other.json", "other")
    if path.is_local:
        Path(path.path).mkdir()
        with pytest.raises(LeaseUnreadableError, match="Is a directory"):
            heart.acquire(path, "sales")
        assert find_driver(path) is not None


def test_a_storage_that_cannot_be_written_is_named(tmp_path: Path, heart: Heart) -> None:
    (tmp_path / "leases").write_text("a file where the folder should be")
    with pytest.raises(StorageUnwritableError):
        heart.acquire(locate(tmp_path) / "leases" / "default.sales.sales.json", "sales")


def test_a_lease_of_a_dead_process_is_held_until_the_engine_has_ended_its_calls(
    path: Location, tmp_path: Path, heart: Heart, other: Heart
) -> None:
    heart.acquire(path, "sales")
    guard = tmp_path / "held"
    alter(path, pid=dead_pid(), guard=str(guard))
    with guard.open("w") as held_by_engine, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held_by_engine, fcntl.LOCK_EX)
        assert find_driver(path) is not None
        # Long without a heartbeat, as a commit can take.
        end(heart)
        beat_of(path).replace(json.dumps({"beat": 9, "monotonic": 0.0}))
        taking = pool.submit(other.acquire, path, "sales")
        with pytest.raises(TimeoutError):
            taking.result(0.2)
        fcntl.flock(held_by_engine, fcntl.LOCK_UN)
        assert taking.result(5).owner == held(path)["owner"]


def losing(answer: Callable[..., Any]) -> Callable[..., Any]:
    """A request of which the answer is lost, after the store has done it."""

    def request(*arguments: Any) -> Any:
        answer(*arguments)
        raise OSError(errno.EIO, "no answer")

    return request


@pytest.mark.parametrize("request_name", ["create", "swap"])
def test_a_lease_whose_answer_was_lost_is_taken_by_the_next_attempt(
    path: Location, heart: Heart, other: Heart, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    heart.acquire(path.parent / "more.json", "more")
    if request_name == "swap":
        other.acquire(path, "sales")
        alter(path, pid=dead_pid())
    kind = type(path.files)
    with monkeypatch.context() as patch:
        patch.setattr(kind, request_name, losing(getattr(kind, request_name)))
        with pytest.raises(StorageUnwritableError):
            heart.acquire(path, "sales")
    assert beat_of(path).exists(), "this process holds the lease, and it beats"
    with pytest.raises(SecondDriverError):
        other.acquire(path, "sales")
    lease = heart.acquire(path, "sales")
    lease.check("sales")
    with pytest.raises(SecondDriverError):
        heart.acquire(path, "sales")
    lease.check("sales")


def test_a_release_whose_answer_was_lost_takes_the_lease_from_no_later_round(
    path: Location, heart: Heart, other: Heart, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, kind = heart.acquire(path, "sales"), type(path.files)
    beat = beat_of(path)

    def stays(*_: Any) -> None:
        raise OSError(errno.EIO, "no answer")

    for request in (losing(kind.delete if path.is_local else kind.swap), stays):
        with monkeypatch.context() as patch:
            patch.setattr(kind, "delete" if path.is_local else "swap", request)
            assert not heart.release(lease)
        lease = heart.acquire(path, "sales")
        lease.check("sales")
        heart.check(path, "sales")
    assert heart.release(lease)
    assert not beat.exists(), "this process holds no lease any more"
    other.acquire(path, "sales")
