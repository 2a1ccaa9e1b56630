"""Commands that use one engine at the same time and one after the other, and engines that end.

The tests run in their order, so that few JVMs are started; each can also be the first one of a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cli.main import run
from headrace.runtime.engine.client import _connect, ask, find_engines, stop_engines
from headrace.runtime.engine.record import EngineRecord, load_records
from headrace.runtime.engine.server import MOST_CLIENTS
from waiting import DEADLINE_S, until

PROGRAM = textwrap.dedent(
    """
    import json, sys, threading
    from headrace.runtime.session import open_spark
    running = open_spark("client")
    spark = running.spark
    root = lambda: spark.sparkContext._jsc.sc().taskScheduler().rootPool()
    names = {"spark": spark, "sc": spark.sparkContext, "jvm": running.jvm_pid, "root": root}
    names["threading"] = threading
    print(json.dumps(running.jvm_pid), flush=True)
    for line in sys.stdin:
        code, kind = json.loads(line)
        print(json.dumps(eval(code, names) if kind == "eval" else exec(code, names)), flush=True)
    running.stop()
    """
)
"""Runs code in a session of Spark, as it is told."""


class Client:
    """A process with a session of Spark."""

    def __init__(self, folder: Path) -> None:
        self._errors = (folder / f"errors-{time.monotonic_ns()}").open("w+")
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        return json.loads(line)

    def get(self, code: str) -> Any:
        self._send(code, "eval")
        return self.answer()

    def do(self, code: str) -> None:
        self._send(code, "exec")
        self.answer()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()

    def _send(self, code: str, kind: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([code, kind]) + "\n")
        self.process.stdin.flush()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    made = tmp_path_factory.mktemp("clients")
    patch.setenv("HEADRACE_ENGINE_DIR", str(made / "engines"))
    patch.setenv("HEADRACE_ENGINE", "on")
    patch.delenv("CI", raising=False)
    yield made
    stop_engines()
    patch.undo()


def open_client(folder: Path) -> Client:
    client = Client(folder)
    try:
        client.answer()
    except BaseException:
        client.close()
        raise
    return client


def the_engine() -> dict[str, Any]:
    found = find_engines()
    assert len(found) == 1
    return found[0]


def engine_record(folder: Path) -> EngineRecord:
    """The record of the engine, which a command starts if none is running."""
    with closing(open_client(folder)):
        (record,) = load_records()
    until_unused()
    return record


def until_unused() -> None:
    def is_unused() -> bool:
        # An engine that is hard at work can need more than a second for its answer.
        found = find_engines()
        return len(found) == 1 and not found[0]["sessions"]

    until(is_unused, "the engine has cleaned up")


def test_two_commands_that_start_at_once_share_one_engine(folder: Path) -> None:
    with closing(Client(folder)) as one, closing(Client(folder)) as other:
        assert one.answer() == other.answer() == the_engine()["jvm_pid"]
        assert (one.errors(), other.errors()) == ("", "")
    until_unused()


def test_a_long_job_of_a_command_does_not_hold_up_another_command(folder: Path) -> None:
    sleeps = "SELECT reflect('java.lang.Thread', 'sleep', 100L) FROM range(0, 20000, 1, 20000)"
    with closing(open_client(folder)) as long, closing(open_client(folder)) as short:
        long.do(f"sleeps = spark.sql({sleeps!r})")
        long.do("job = threading.Thread(target=sleeps.collect, daemon=True); job.start()")
        until(lambda: bool(long.get("list(sc.statusTracker().getActiveStageIds())")), "the job runs")
        # Without a pool of its own, the query would wait for minutes.
        assert short.get("spark.sql('SELECT sum(id) AS total FROM range(0, 10, 1, 2)').first().total") == 45
        assert long.get("job.is_alive()")
    until_unused()


MAKES_ALL = """
spark.udf.register("mine", lambda: 1)
spark.sql("CREATE TEMPORARY FUNCTION theirs AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFAbs'")
spark.range(3).createOrReplaceTempView("v")
spark.range(3).createGlobalTempView("g")
spark.range(3).persist().count()
sc.parallelize([1]).persist().count()
sc.setLocalProperty("spark.scheduler.pool", sc.getLocalProperty("spark.scheduler.pool") + "/flow")
spark.range(3).count()
sc.addJobTag("mine")
"""

FOUND = {
    "views": "[one.name for one in spark.catalog.listTables()]",
    "global views": "[row.tableName for row in spark.sql('SHOW TABLES IN global_temp').collect()]",
    "functions": "[row.function for row in spark.sql('SHOW USER FUNCTIONS').collect()]",
    "persisted": "sc._jsc.getPersistentRDDs().size()",
    "cached": "spark._jsparkSession.sharedState().cacheManager().isEmpty()",
    "tags": "len(sc.getJobTags())",
    "pools": "sorted(str(one.name()) for one in root().schedulableQueue().toArray())",
}


def test_a_command_leaves_nothing_for_the_next_one(folder: Path) -> None:
    with closing(open_client(folder)) as one:
        before = {name: one.get(code) for name, code in FOUND.items()}
        one.do(MAKES_ALL)
        changed = {name for name, code in FOUND.items() if one.get(code) != before[name]}
        assert changed == set(FOUND)
    until_unused()
    with closing(open_client(folder)) as other:
        assert {name: other.get(code) for name, code in FOUND.items()} == before
    until_unused()


def test_a_wrong_secret_is_refused(folder: Path) -> None:
    record = engine_record(folder)
    for do in ("attach", "status", "stop", "stop-idle"):
        with closing(_connect(record, 5.0)) as wire:
            wire.send(do=do, secret="", pid=os.getpid(), command="", overrides={})
            assert wire.receive() == {"ok": False, "reason": "the secret is wrong"}
    assert the_engine()["sessions"] == []


def test_status_and_doctor_show_the_engine(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with closing(open_client(folder)) as client:
        assert run(["engine", "status"]) == 0
        text = capfd.readouterr().out
        assert run(["engine", "status", "--json"]) == 0
        (found,) = json.loads(capfd.readouterr().out)["engines"]
        run(["doctor", "--json"])
        checks = json.loads(capfd.readouterr().out)["checks"]
    assert f"process {found['pid']}, running for" in text
    assert f"  process {client.process.pid}  -c" in text
    assert found["path"] == str(folder)
    assert [one["pid"] for one in found["sessions"]] == [client.process.pid]
    (check,) = [one for one in checks if one["name"] == "engine"]
    assert check["state"] == "ok"
    assert f"process {found['pid']} in {folder}" in check["text"]
    until_unused()


def test_a_command_without_a_session_left_starts_its_own_jvm_and_says_so(folder: Path) -> None:
    clients = []
    try:
        for _ in range(MOST_CLIENTS):
            clients.append(open_client(folder))
        assert {one.get("jvm") for one in clients} == {the_engine()["jvm_pid"]}
        with closing(open_client(folder)) as further:
            assert further.get("spark.range(3).count()") == 3
            assert further.get("jvm") != the_engine()["jvm_pid"]
            assert "no session left" in further.errors()
    finally:
        for client in clients:
            client.close()
    until_unused()


def test_an_engine_is_not_stopped_for_room_below_a_command(folder: Path) -> None:
    """Another command has seen it idle, and asks it to stop; a command has come meanwhile."""
    record = engine_record(folder)
    with closing(open_client(folder)) as client:
        assert ask(record, "stop-idle", 5.0) is None
        assert client.get("spark.range(3).count()") == 3
    until_unused()


def test_stop_ends_the_engine(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    engine = engine_record(folder)
    assert run(["engine", "stop"]) == 0
    assert "Stopped: 1" in capfd.readouterr().out
    for pid in (engine.pid, engine.jvm_pid):
        until(lambda pid=pid: not psutil.pid_exists(pid), "the engine has ended")
    assert run(["engine", "stop", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["stopped"] == 0
    assert run(["engine", "status"]) == 0
    assert "No engine is running." in capfd.readouterr().out


def test_an_engine_that_cannot_be_used_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hung and was stopped, one that was killed, one of another version; the last one ends idle."""
    monkeypatch.setenv("HEADRACE_ENGINE_IDLE", "0.2")
    seen = []

    def use() -> dict[str, Any]:
        with closing(open_client(folder)) as client:
            assert client.get("spark.range(3).count()") == 3
            seen.append(client.get("jvm"))
            (record,) = load_records()
            assert record.jvm_pid == seen[-1]
            assert len(set(seen)) == len(seen)
            return {"pid": record.pid}

    def until_ended(pid: int) -> None:
        until(lambda: not psutil.pid_exists(pid), "the engine has ended", limit_s=DEADLINE_S)

    first = use()
    os.kill(first["pid"], signal.SIGSTOP)
    with closing(open_client(folder)) as client:
        assert client.get("spark.range(3).count()") == 3
        assert "the engine does not answer" in client.errors()
    stop_engines()
    until_ended(first["pid"])
    second = use()
    os.kill(second["pid"], signal.SIGKILL)
    until_ended(second["pid"])
    third = use()
    (record,) = load_records()
    replace(record, version=f"{version('headrace')}.other").save()
    fourth = use()
    until_ended(third["pid"])
    until_ended(fourth["pid"])
    until_ended(seen[-1])
    assert list(load_records()) == []
    assert not Path(record.socket).parent.exists()
