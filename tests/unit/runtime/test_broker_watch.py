"""A broker that no program uses ends by itself; nothing else ends it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.broker_record import BrokerRecord, ProcessId
from headrace.runtime.broker_watch import VARIABLE, Watch, idle_minutes, keeping_alive, note_use
from waiting import DEADLINE_S, until

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(server.accept())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[psutil.Process, int]]:
    """A process that stands for the broker, with its port, and its record in the folder."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        record(tmp_path / "broker", process.pid)
        yield psutil.Process(process.pid), port
        process.kill()


def record(folder: Path, pid: int) -> None:
    folder.mkdir(exist_ok=True)
    BrokerRecord(broker=ProcessId.of(pid), bootstrap="127.0.0.1:1").save(folder)


def settled(folder: Path, server: tuple[psutil.Process, int], idle_s: float = 60) -> Watch:
    """A watch that knows of no use."""
    watch = Watch(folder, *server, idle_s)
    watch.is_used()
    assert not watch.is_used()
    return watch


def test_what_uses_a_broker(tmp_path: Path, server: tuple[psutil.Process, int]) -> None:
    folder = tmp_path / "broker"
    watch = settled(folder, server)
    with socket.create_connection(("127.0.0.1", server[1])):
        until(watch.is_used, "a client is connected")
    until(lambda: not watch.is_used(), "the client has gone")
    with keeping_alive(KafkaConnection({"bootstrap.servers": "127.0.0.1:1"}, broker=folder)):
        watch.is_used()
        assert watch.is_used(), "a run that only sends, and has nothing to send"
    assert not watch.is_used()
    note_use(folder)
    assert watch.is_used(), "a command has asked for its address"
    assert not watch.is_used()


def test_a_run_keeps_its_broker_on_nfs(
    tmp_path: Path, server: tuple[psutil.Process, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def as_nfs(file: IO[Any], operation: int) -> None:
        access = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if access == (os.O_RDONLY if operation & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    watch = settled(tmp_path / "broker", server)
    with keeping_alive(KafkaConnection({"bootstrap.servers": "127.0.0.1:1"}, broker=tmp_path / "broker")):
        watch.is_used()
        assert watch.is_used()


def test_an_idle_broker_is_ended(tmp_path: Path, server: tuple[psutil.Process, int]) -> None:
    settled(tmp_path / "broker", server, 0.2).run()
    assert not server[0].is_running() or server[0].status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("where", ["moved", "deleted", "taken"])
def test_a_broker_whose_folder_has_gone_is_ended(
    tmp_path: Path, server: tuple[psutil.Process, int], where: str
) -> None:
    folder = tmp_path / "broker"
    watch = settled(folder, server, 1)
    found = BrokerRecord.load(folder)
    assert found is not None and found.belongs_to(folder) and not found.is_abandoned
    if where == "taken":
        record(folder, psutil.Process().pid)
    elif where == "deleted":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "moved")
        moved = BrokerRecord.load(tmp_path / "moved")
        assert moved is not None and not moved.belongs_to(tmp_path / "moved")
    assert found.is_abandoned
    with socket.create_connection(("127.0.0.1", server[1])):
        watch.run()
    assert not server[0].is_running() or server[0].status() == psutil.STATUS_ZOMBIE


def test_a_watch_ends_with_its_broker(tmp_path: Path, server: tuple[psutil.Process, int]) -> None:
    watching = threading.Thread(target=settled(tmp_path / "broker", server).run, daemon=True)
    watching.start()
    server[0].kill()
    watching.join(DEADLINE_S)
    assert not watching.is_alive()


@pytest.mark.parametrize(("text", "minutes"), [(None, 30), ("", 30), ("0", 0), ("1.5", 1.5)])
def test_the_idle_time_is_the_users(
    monkeypatch: pytest.MonkeyPatch, text: str | None, minutes: float
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    assert idle_minutes() == minutes
    for wrong in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(HeadraceError, match=f"{VARIABLE}={wrong}"):
            idle_minutes()
