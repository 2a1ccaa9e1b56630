"""Which commands share an engine, and what a process finds in the place of one."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.model.secrets import Redactor
from headrace.runtime.engine import client
from headrace.runtime.engine.choice import EngineChoice, choose_engine
from headrace.runtime.engine.client import NoEngineError, find_engines, stop_engines
from headrace.runtime.engine.record import EngineRecord, load_record, record_path
from headrace.runtime.engine.server import is_over_when_idle
from headrace.runtime.engine.wire import Wire


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
def listening(path: Path, answer: bytes | None) -> Iterator[None]:
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
                    connection.sendall(answer)
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


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n", b"", b'{"ok": false, "reason": "full"}\n', b"[]\n", None]
)
def test_another_program_in_the_place_of_an_engine_is_found_within_a_second(
    tmp_path: Path, answer: bytes | None
) -> None:
    choice = choose()
    with listening(tmp_path / "socket", answer):
        found = record(choice, tmp_path / "socket")
        began = time.monotonic()
        with pytest.raises(NoEngineError):
            client._try(found, choice, nothing)
        assert time.monotonic() - began < 2
        assert find_engines() == []
        assert stop_engines() == 0
        assert load_record(choice.key) is None or load_record(choice.key) == found


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
