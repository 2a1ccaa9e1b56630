"""Which commands share an engine, and what a process finds in the place of one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil
import pytest

from headrace.model.secrets import Redactor
from headrace.runtime import session
from headrace.runtime.engine import client, server
from headrace.runtime.engine.client import NoEngineError, find_engines, stop_engines
from headrace.runtime.engine.record import (
    EngineChoice,
    EngineRecord,
    Wire,
    choose_engine,
    load_record,
    record_path,
)
from headrace.runtime.engine.server import is_over_when_idle
from headrace.runtime.session import RunningSpark
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def engine_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE_DIR", str(tmp_path / "engines"))
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    for name in ("CI", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)


def choose(**settings: str) -> EngineChoice:
    found = choose_engine(settings, None, None, None)
    assert found is not None
    return found


def test_only_a_command_with_a_local_master_uses_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine({}, "local[2]", None, None) is not None
    assert choose_engine({}, "yarn", None, None) is None
    assert choose_engine({"spark.master": "local-cluster[1,1,1024]"}, None, None, None) is None
    assert choose_engine({"spark.sql.catalogImplementation": "hive"}, None, None, None) is None
    for name, value in (("HEADRACE_ENGINE", "off"), ("CI", "true"), ("PYSPARK_GATEWAY_PORT", "4")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert choose_engine({}, None, None, None) is None


def test_settings_of_a_session_share_an_engine_and_those_of_the_jvm_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = choose()
    for setting in ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled", "spark.sql.catalog.mine"):
        sessions = choose(**{setting: "3"})
        assert sessions.key == usual.key
        assert sessions.overrides == {setting: "3"}
    others = {
        choose(**{"spark.jars": "a.jar"}).key,
        choose(**{"spark.sql.warehouse.dir": "somewhere"}).key,
        choose(**{"spark.hadoop.fs.s3a.secret.key": "x"}).key,
        choose_engine({}, None, "3g", None).key,  # type: ignore[union-attr]
        choose_engine({}, None, None, Redactor(["hunter22"])).key,  # type: ignore[union-attr]
    }
    with monkeypatch.context() as patch:
        patch.setenv("AWS_PROFILE", "other")
        others.add(choose().key)
    with contextlib.chdir(tmp_path):
        others.add(choose().key)
    with monkeypatch.context() as patch:
        patch.setenv("SOMETHING", "else")
        assert choose().key == usual.key
    assert len(others - {usual.key}) == 7


def record(choice: EngineChoice, path: Path, version: str | None = None) -> EngineRecord:
    from importlib.metadata import version as version_of

    made = EngineRecord(
        key=choice.key,
        version=version or version_of("headrace"),
        pid=os.getpid(),
        jvm_pid=os.getpid(),
        socket=str(path),
        secret="s",
        log="spark.log",
    )
    made.save()
    return made


def test_a_record_is_for_its_user_alone(tmp_path: Path) -> None:
    made = record(choose(), tmp_path / "socket")
    path = record_path(made.key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert load_record(made.key) == made
    path.chmod(0o644)
    assert load_record(made.key) is None


def nothing() -> None:
    pass


@contextlib.contextmanager
def listening(path: Path, answer: bytes | None, *, stays: bool = False) -> Iterator[None]:
    """Something that is no engine."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    accepted = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                accepted.append(connection)
                if answer is not None:
                    connection.recv(1 << 16)
                    connection.sendall(answer)
                    if not stays:
                        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for one in accepted:
            one.close()


def test_a_dead_engine_and_one_of_another_version_are_replaced(tmp_path: Path) -> None:
    choice = choose()
    stale = record(choice, tmp_path / "gone")
    assert client._try(stale, choice, nothing) is None
    assert load_record(choice.key) is None
    with listening(tmp_path / "socket", b""):
        assert client._try(record(choice, tmp_path / "socket", "0.0.1"), choice, nothing) is None


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"", b"[]\n"])
def test_another_program_at_the_socket_of_an_engine_is_left_alone(tmp_path: Path, answer: bytes) -> None:
    """It is found in seconds, once: the record is removed, and an engine is started."""
    choice = choose()
    with listening(tmp_path / "socket", answer):
        found = record(choice, tmp_path / "socket")
        began = time.monotonic()
        assert client._try(found, choice, nothing) is None
        assert time.monotonic() - began < 5
        assert load_record(choice.key) is None
        assert find_engines() == []
        assert stop_engines() == 0


def test_an_engine_that_does_not_answer_is_not_used_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_REQUEST_S", 0.1)
    choice = choose()
    with listening(tmp_path / "socket", None):
        found = record(choice, tmp_path / "socket")
        with pytest.raises(NoEngineError, match="engine stop"):
            client._try(found, choice, nothing)
        assert stop_engines() == 0
    assert load_record(choice.key) is None


def test_a_command_says_why_it_could_not_use_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(tmp_path / "socket", b'{"ok": false, "reason": "the engine has no session left"}\n'):
        record(choose(), tmp_path / "socket")
        assert session._attach(session.SparkRequest("mine", {})) is None
    monkeypatch.setenv("HEADRACE_ENGINE", "off")
    assert session._attach(session.SparkRequest("mine", {})) is None, "nothing is to be said about this"
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert "the engine has no session left" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_ENGINE_DIR", str(tmp_path / "file" / "engines"))
    assert session._attach(session.SparkRequest("mine", {})) is None
    assert "Not a directory" in caplog.text
    assert find_engines() == []


def test_a_log_folder_that_cannot_be_written_costs_only_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_LOGS", str(tmp_path / "file" / "logs"))
    with pytest.raises(NoEngineError):
        client.attach(choose(), nothing)


def test_a_command_does_not_wait_long_for_the_start_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_OTHER_START_S", 0.1)
    choice = choose()
    with client._one_starter(choice.key), pytest.raises(NoEngineError, match="another process"):
        client.attach(choice, nothing)


def test_an_engine_that_ends_is_replaced(tmp_path: Path) -> None:
    choice = choose()
    with listening(tmp_path / "socket", b'{"ok": false, "is_ending": true, "reason": "it ends"}\n'):
        assert client._try(record(choice, tmp_path / "socket"), choice, nothing) is None


def test_an_engine_that_opens_no_session_is_not_used_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SESSION_S", 0.1)
    choice = choose()
    with (
        listening(tmp_path / "socket", b'{"ok": true}\n', stays=True),
        pytest.raises(NoEngineError, match="engine stop"),
    ):
        client._try(record(choice, tmp_path / "socket"), choice, nothing)


@pytest.mark.parametrize("is_other", [True, False])
def test_only_the_process_of_the_recorded_engine_is_killed(tmp_path: Path, is_other: bool) -> None:
    """A process id can mean another program by now, even an engine with other settings."""
    choice = choose()
    last = "other.start" if is_other else f"{choice.key}.1.start"
    program = [sys.executable, "-c", "import time; time.sleep(600)"]
    process = subprocess.Popen([*program, f"{client.__package__}.server", last])
    try:
        found = replace(record(choice, tmp_path / "socket"), pid=process.pid)
        # Until it has replaced the copy of this process, its words are those of this process.
        until(lambda: psutil.Process(process.pid).cmdline()[-1:] == [last], "it has started")
        found.save()
        assert stop_engines() == (0 if is_other else 1), "also one that does not answer is counted"
        assert (process.poll() is None) == is_other
        assert load_record(choice.key) is None
    finally:
        process.kill()
        process.wait()


def test_messages_that_arrive_together_are_read_one_by_one() -> None:
    one, other = socket.socketpair()
    with contextlib.closing(Wire(one)) as sender, contextlib.closing(Wire(other)) as receiver:
        sender.send(number=1)
        sender.send(number=2)
        assert [receiver.receive(), receiver.receive()] == [{"number": 1}, {"number": 2}]


def test_an_idle_engine_ends_after_its_time_or_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1 << 30

    def ends(idle_s: float, free: float = 8.0, *, is_lost: bool = False) -> bool:
        return is_over_when_idle(idle_s, int(free * gigabyte), 16 * gigabyte, is_lost=is_lost)

    assert not ends(14 * 60) and ends(16 * 60)
    assert ends(3, free=0.6) and not ends(3, free=0.7), "below 4 % of the memory"
    assert ends(3, is_lost=True), "another process has removed its record"
    assert not ends(1, free=0.1), "it waits a moment for the next command of a script"
    monkeypatch.setenv("HEADRACE_ENGINE_IDLE", "0.5")
    assert ends(31) and not ends(29)


def test_the_start_up_cache_is_made_once_when_the_engine_has_rested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a minute of a core, which the next command of a script would lack."""
    made: list[str] = []
    looked = threading.Event()
    monkeypatch.setattr(server, "ensure_jars", lambda name: [])
    monkeypatch.setattr(server, "find_shared_state", lambda spark: "")
    monkeypatch.setattr(server.aot, "make_later", lambda java, jars: made.append("cache"))

    def look(spark: object) -> float:
        looked.set()
        return 0.0

    monkeypatch.setattr(server, "used_heap", look)
    running = RunningSpark(cast("SparkSession", None), owned=True, log_file=tmp_path, jvm_pid=os.getpid())
    engine = server.EngineServer(running, "key")
    engine.record.save()
    try:
        assert not engine._is_over()
        assert not looked.is_set(), "no command has used it"
        for _ in range(2):
            with engine._registered(os.getpid(), "headrace plan"):
                pass
            assert not engine._is_over()
            assert not looked.is_set(), "the next command may come at once"
            engine._last_use -= 6
            assert not engine._is_over()
            assert looked.wait(10)
            looked.clear()
        assert made == ["cache"]
        assert engine._stop_if_idle()
        assert engine._is_over()
    finally:
        engine._listener.close()
        engine._scratch.remove()


def test_an_engine_in_use_does_not_stop_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_shared_state", lambda spark: "")
    running = RunningSpark(cast("SparkSession", None), owned=True, log_file=tmp_path, jvm_pid=os.getpid())
    engine = server.EngineServer(running, "key")
    try:
        with engine._registered(os.getpid(), "headrace run"):
            assert not engine._stop_if_idle()
        assert engine._stop_if_idle()
        with engine._registered(os.getpid(), "headrace run") as tag:
            assert tag is None
    finally:
        engine._listener.close()
        engine._scratch.remove()


def test_the_oldest_idle_engine_ends_when_a_third_one_becomes_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ensure_jars", lambda name: [])
    monkeypatch.setattr(server, "find_shared_state", lambda spark: "")
    monkeypatch.setattr(server, "used_heap", lambda spark: 0.0)
    monkeypatch.setattr(server.aot, "make_later", lambda java, jars: None)
    monkeypatch.setattr(server, "_REST_S", 0.0)
    monkeypatch.setattr(server, "_TICK_S", 0.05)
    monkeypatch.setattr(server, "is_over_when_idle", lambda *_, **__: False)
    running = RunningSpark(cast("SparkSession", None), owned=True, log_file=tmp_path, jvm_pid=os.getpid())
    engines = [server.EngineServer(running, f"key-{number}") for number in range(3)]
    threads = [threading.Thread(target=one.serve) for one in engines]
    first, second, third = engines
    try:
        for one, thread in zip(engines, threads, strict=True):
            thread.start()
            until(lambda one=one: load_record(one.record.key) is not None, "its record is written")
        with third._registered(os.getpid(), "headrace run"):
            for one, idle_s in ((second, 100), (first, 50)):
                with one._registered(os.getpid(), "headrace plan"):
                    pass
                one._last_use -= idle_s
                until(lambda one=one: one._is_rested, "it has looked at the others")
            assert [thread.is_alive() for thread in threads] == [True, True, True], "one of them is in use"
        until(lambda: not threads[1].is_alive(), "the oldest one ends")
        assert threads[0].is_alive() and threads[2].is_alive()
        assert {one["pid"] for one in find_engines()} == {os.getpid()} and len(find_engines()) == 2
    finally:
        for one, thread in zip(engines, threads, strict=True):
            one.stop()
            thread.join(10)
