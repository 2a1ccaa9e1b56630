"""Commands share a JVM that outlives them: nothing is lost, nothing twice, and nothing of a command stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.run.failpoints import Point
from headrace.runtime.engine.client import find_engines, stop_engines
from headrace.runtime.engine.jvm_client import CLIENT_VARIABLE
from proof.driver import start
from proof.lakes import FolderWatch
from proof.shop import BRONZE, SILVER, Shop
from waiting import DEADLINE_S, until

POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")


@pytest.fixture(autouse=True)
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands of the test use engines of the test alone."""
    monkeypatch.setenv("HEADRACE_ENGINE_DIR", str(tmp_path / "engines"))
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    monkeypatch.delenv("CI", raising=False)
    yield
    stop_engines()


def the_engine() -> dict[str, Any]:
    (found,) = find_engines()
    return found


def run_well(shop: Shop, *arguments: str, name: str = "") -> None:
    with start(shop, *arguments, name=name) as driver:
        assert driver.end() == 0, driver.said()


def until_clean() -> None:
    until(lambda: not the_engine()["sessions"], "the engine has cleaned up", limit_s=DEADLINE_S)


def test_a_kill_of_a_command_at_any_point_loses_and_doubles_nothing(shop: Shop) -> None:
    """The engine goes on, and with it whatever the JVM had begun; the next command starts at once."""
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    run_well(shop)
    before = the_engine()["pid"]
    for batch, point in enumerate(POINTS, start=1):
        shop.produce(30)
        with start(shop, pause=(f"bronze/{point}", batch)) as driver:
            driver.wait_at(point)
            driver.kill("python")
            driver.process.wait(DEADLINE_S)
            (driver.markers / point).unlink()
    for batch in range(len(POINTS) + 1, len(POINTS) + 4):
        shop.produce(30)
        kill_within_the_commit(shop, batch)
    shop.produce(30)
    run_well(shop)
    shop.check(silver=True)
    assert the_engine()["pid"] == before, "one engine has served all commands"
    until_clean()


def kill_within_the_commit(shop: Shop, batch: int) -> None:
    """Kill Python while the JVM commits: the commit completes or not, and the next command starts at once."""
    log = shop.table("bronze") / "_delta_log"
    with start(shop, pause=("bronze/before-commit", batch)) as driver:
        driver.wait_at("before-commit")
        name = f"{shop.versions()['bronze'] + 1:020d}.json"
        watch = FolderWatch(log)
        driver.go_on("before-commit")
        watch.wait_for(name.encode())
        driver.kill("python")
        watch.close()
        driver.process.wait(DEADLINE_S)


def test_the_engine_is_killed_below_two_commands(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    run_well(shop)
    run_well(shop, "--storage", "other")
    shop.produce(30)
    for part in ("jvm_pid", "pid"):
        with (
            start(shop, pause=("bronze/before-commit", 1)) as one,
            start(shop, "--storage", "other", pause=("bronze/after-commit", 1), name="-other") as other,
        ):
            one.wait_at("before-commit")
            other.wait_at("after-commit")
            found = the_engine()
            assert len(found["sessions"]) == 2
            os.kill(found[part], signal.SIGKILL)
            for driver in (one, other):
                for marker in driver.markers.iterdir():
                    marker.unlink()
                assert driver.end() != 0
                assert "DRIVER_LOST" in driver.said()
        for pid in (found["pid"], found["jvm_pid"]):
            until(lambda pid=pid: not psutil.pid_exists(pid), "the engine has ended")
    shop.produce(30)
    run_well(shop)
    run_well(shop, "--storage", "other", name="-other")
    shop.check(silver=True)
    with start(shop, "--storage", "other", verb=("verify",), name="-other") as driver:
        assert driver.end() == 0, driver.said()


CLIENT = textwrap.dedent(
    """
    import os, sys, threading, time
    from pathlib import Path
    from headrace.runtime.session import open_spark
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf
    spark = open_spark("client").spark
    threads = [str(one.getName()) for one in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
    streams = [one for one in threads if one.startswith("stream execution")]
    assert len(streams) == int(sys.argv[3]), "each other command has a stream"
    found = [table.name for table in spark.catalog.listTables()] + [
        row.tableName for row in spark.sql("SHOW TABLES IN global_temp").collect()
    ]
    assert not found, found
    assert spark.conf.get("spark.sql.shuffle.partitions") != "77"
    assert os.environ["WHO"] == spark.range(1).select(udf(lambda _: os.environ["WHO"])("id")).first()[0]
    spark.conf.set("spark.sql.shuffle.partitions", "77")
    spark.range(3).createOrReplaceTempView("v")
    spark.range(3).createGlobalTempView("g")
    spark.sql("CREATE TABLE managed AS SELECT 1 AS a")
    spark.table("managed").cache().count()
    # As a flow does, in a session of its own; idle after its first batch, it makes no call.
    flow = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    records = flow.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    stream = records.writeStream.format("noop").option("checkpointLocation", sys.argv[1])
    stream.trigger(processingTime="1 hour").start()
    mark = Path(sys.argv[2])
    def wait(_):
        mark.touch()
        time.sleep(600)
    threading.Thread(target=lambda: spark.range(1).foreach(wait), daemon=True).start()
    time.sleep(600)
    """
)


def owners(jvm: psutil.Process) -> set[str]:
    """The commands whose Python workers run; Spark's own worker, which finds data sources, is of none."""
    found = set()
    for one in jvm.children():
        # It can end at this moment.
        with contextlib.suppress(psutil.Error):
            found.add(one.environ().get(CLIENT_VARIABLE))
    return {one for one in found if one is not None}


def test_nothing_of_a_killed_command_stays(tmp_path: Path) -> None:
    """Two at once do not see each other, nor does one that comes after them."""

    def client(name: str, others: int = 0) -> subprocess.Popen[bytes]:
        mark = tmp_path / f"{name}-works"
        command = [sys.executable, "-c", CLIENT, str(tmp_path / name), str(mark), str(others)]
        process = subprocess.Popen(command, cwd=project, env={**os.environ, "WHO": name})
        started.append(process)
        until(lambda: mark.exists() or process.poll() is not None, f"{name} works")
        assert process.poll() is None
        return process

    project = tmp_path / "project"
    project.mkdir()
    started: list[subprocess.Popen[bytes]] = []
    try:
        first, second = client("first"), client("second", others=1)
        jvm = psutil.Process(the_engine()["jvm_pid"])
        assert len(the_engine()["sessions"]) == 2
        assert len(owners(jvm)) == 2, "each has Python workers of its own"
        for process in (first, second):
            process.kill()
        until_clean()
        until(lambda: not owners(jvm), "the Python workers have ended")
        third = client("third")
        third.kill()
        until_clean()
        project.rmdir()
        until(lambda: not find_engines(), "the engine of a deleted folder has ended")
    finally:
        for process in started:
            process.kill()
            process.wait(DEADLINE_S)


CONTINUOUS = textwrap.dedent(
    """
    from headrace import Pipeline
    from headrace.run.stop import StopSignal
    from pyspark.core.context import SparkContext

    def jvm():
        print(SparkContext._active_spark_context._jvm.java.lang.ProcessHandle.current().pid())

    stop = StopSignal()
    def end(event):
        if not stop.requested:
            jvm()
            stop.request()

    with Pipeline.load() as pipeline:
        pipeline.plan()
        jvm()
        pipeline.run(continuous=True, emit=end, stop=stop)
    """
)


def test_a_continuous_run_of_the_library_leaves_the_engine(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("{name: shop, libraries: [{file: one.py}]}")
    view = "import headrace as hr\n@hr.materialized_view\ndef v():\n    return hr.spark.range(3)\n"
    (tmp_path / "one.py").write_text(view)
    command = [sys.executable, "-c", CONTINUOUS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    planned, ran = map(int, done.stdout.split())
    assert (planned, ran != planned) == (the_engine()["jvm_pid"], True)
    until_clean()
