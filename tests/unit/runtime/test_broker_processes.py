"""The processes of an embedded broker, with a small program in place of Kafka."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.errors import BrokerRunningError, BrokerStartError
from headrace.runtime import broker as broker_module
from headrace.runtime.broker import Broker
from headrace.runtime.broker_record import NAME, BrokerRecord, ProcessId
from headrace.runtime.processes import start_detached
from waiting import until

SERVER = """
import re, socket, sys
port = re.search(r"PLAINTEXT://127.0.0.1:(\\d+)", open(sys.argv[-1]).read())[1]
server = socket.create_server(("127.0.0.1", int(port)))
while True:
    server.accept()
"""


@pytest.fixture(autouse=True)
def _no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_storage(properties: Path, log_file: Path) -> None:
        (properties.parent / "data").mkdir()
        (properties.parent / "data/meta.properties").touch()

    monkeypatch.setattr(broker_module, "java_command", lambda *_: [sys.executable, "-c", SERVER])
    monkeypatch.setattr(broker_module, "format_storage", format_storage)
    monkeypatch.setattr(broker_module, "_answers", lambda bootstrap: True)
    monkeypatch.delenv("HEADRACE_BROKER_IDLE", raising=False)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "own")
    yield broker
    broker.stop()


def recorded(broker: Broker) -> tuple[ProcessId, ProcessId]:
    """The processes of a running broker: its own, and its watcher."""
    record = BrokerRecord.load(broker.directory)
    assert record is not None and record.watcher is not None
    assert record.broker.find() is not None and record.watcher.find() is not None
    return record.broker, record.watcher


def test_a_stop_ends_the_broker_and_its_watcher(own: Broker) -> None:
    first = own.start()
    assert (own.directory / ".gitignore").read_text() == "*\n"
    processes = recorded(own)
    assert Broker(own.directory).start() == first
    assert recorded(own) == processes, "a second start finds it"
    status = own.status()
    assert (status.state, status.bootstrap, status.idle_minutes) == ("running", first, 30)
    assert own.stop()
    assert [one.find() for one in processes] == [None, None]
    assert not own.stop()
    assert own.start() == first, "its clients find it at the same port"


def test_a_killed_broker_takes_its_watcher_along(own: Broker) -> None:
    own.start()
    broker, watcher = recorded(own)
    psutil.Process(broker.pid).kill()
    until(lambda: watcher.find() is None, "the watcher has ended")


def test_the_next_command_replaces_a_killed_watcher(own: Broker) -> None:
    first = own.start()
    broker, watcher = recorded(own)
    psutil.Process(watcher.pid).kill()
    until(lambda: watcher.find() is None, "the watcher has ended")
    assert Broker(own.directory).start() == first
    again, second = recorded(own)
    assert again == broker and second != watcher
    assert own.status().idle_minutes == 30
    psutil.Process(broker.pid).kill()
    until(lambda: second.find() is None, "the new watcher has ended with the broker")


def test_a_broker_ends_after_its_idle_time_or_never(own: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BROKER_IDLE", "0.01")
    own.start()
    broker, watcher = recorded(own)
    until(lambda: broker.find() is None and watcher.find() is None, "both have ended")
    assert own.status().state == "stopped"
    monkeypatch.setenv("HEADRACE_BROKER_IDLE", "0")
    own.start()
    record = BrokerRecord.load(own.directory)
    assert record is not None and (record.watcher, own.status().idle_minutes) == (None, 0)


def test_a_copied_folder_has_a_broker_of_its_own(own: Broker, tmp_path: Path) -> None:
    first = own.start()
    copied = Broker(Path(shutil.copytree(own.directory, tmp_path / "copied")))
    assert (copied.status().state, copied.stop()) == ("stopped", False)
    own.stop()
    second = copied.start()
    try:
        assert second != first, "the port is that of the clients of the original"
        assert own.start() == first
        assert copied.stop()
        assert own.status().running
    finally:
        copied.stop()


def test_a_moved_folder_has_a_broker_of_its_own(own: Broker, tmp_path: Path) -> None:
    own.start()
    old = recorded(own)
    moved = Broker(own.directory.rename(tmp_path / "moved"))
    assert moved.status().state == "stopped"
    moved.start()
    try:
        assert [one.find() for one in old] == [None, None], "it would write to the old path"
        assert moved.status().running
        again = Broker(moved.directory.rename(tmp_path / "again"))
        assert again.stop(), "that of the old path"
        assert not again.stop()
    finally:
        moved.stop()


def test_a_link_to_a_folder_is_the_folder(own: Broker, tmp_path: Path) -> None:
    first = own.start()
    (tmp_path / "link").symlink_to(own.directory)
    assert Broker(tmp_path / "link").start() == first


def test_the_record_of_an_earlier_version_is_read(own: Broker) -> None:
    first = own.start()
    broker, watcher = recorded(own)
    psutil.Process(watcher.pid).kill()
    record = {"pid": broker.pid, "started": broker.started, "bootstrap": first}
    (own.directory / NAME).write_text(json.dumps(record))
    assert own.start() == first
    assert own.stop()


def test_two_processes_start_one_broker(own: Broker) -> None:
    code = (
        "import sys; from pathlib import Path; from headrace.runtime import broker as b;"
        " b.java_command = lambda *_: [sys.executable, '-c', sys.argv[2]];"
        " b.format_storage = lambda properties, log: None; b._answers = lambda bootstrap: True;"
        " print(b.Broker(Path(sys.argv[1])).start())"
    )
    command = [sys.executable, "-c", code, str(own.directory), SERVER]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {process.communicate()[0].strip() for process in both} == {own.status().bootstrap}


def test_a_folder_that_cannot_be_written_is_named(own: Broker, tmp_path: Path) -> None:
    own.directory.write_text("a file")
    for folder in (own.directory, own.directory / "below", tmp_path / "a,b"):
        with pytest.raises(BrokerStartError) as caught:
            Broker(folder).start()
        assert str(folder) in caught.value.facts[0]
        assert any("runtime: {broker: /" in remedy for remedy in caught.value.remedies)
    own.directory.unlink()


def test_a_program_that_ends_at_once_is_an_error_with_its_log(
    own: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    monkeypatch.setattr(broker_module, "start_detached", lambda *_: ended.pid)
    with pytest.raises(BrokerStartError, match="the embedded broker ended at once"):
        own.start()


def test_the_broker_of_another_user_is_named(own: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    own.start()
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "terminate", refuse)
        with pytest.raises(BrokerRunningError, match=f"the user {psutil.Process().username()}"):
            own.stop()
    assert own.status().running


def test_a_broker_goes_on_if_a_link_to_its_folder_is_changed(own: Broker, tmp_path: Path) -> None:
    own.directory.mkdir()
    (tmp_path / "new").mkdir()
    link = tmp_path / "link"
    link.symlink_to(own.directory)
    first = Broker(link).start()
    link.unlink()
    link.symlink_to(tmp_path / "new")
    record = BrokerRecord.load(own.directory)
    assert record is not None
    assert (record.folder, own.status().bootstrap) == (own.directory, first)
    assert Broker(link).status().state == "stopped"


def test_the_broker_of_a_container_that_shares_the_folder_is_left_alone(own: Broker) -> None:
    own.data.mkdir(parents=True)
    (own.data / "meta.properties").touch()
    BrokerRecord(broker=ProcessId(1, 0.0), bootstrap="127.0.0.1:1").save(own.directory)
    before = (own.directory / NAME).read_bytes()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(); input()"
    command = [sys.executable, "-c", code, str(own.data / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BrokerRunningError, match="another process has the data"):
            own.start()
        assert (own.directory / NAME).read_bytes() == before, "its watcher would end it"
        other.kill()
    own.start()


def test_a_detached_program_runs_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, kept = tmp_path / "project", tmp_path / "kept"
    project.mkdir()
    kept.mkdir()
    monkeypatch.chdir(project)
    code = "import os; open('where.new', 'w').write(os.getcwd()); os.rename('where.new', 'where')"

    def runs_in(folder: Path | None) -> Path:
        start_detached([sys.executable, "-c", code], tmp_path / "log", folder=folder)
        answer = (folder or project) / "where"
        until(answer.exists, "the answer of the program")
        return Path(answer.read_text())

    assert runs_in(kept) == kept
    assert runs_in(None) == project
