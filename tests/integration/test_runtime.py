"""Spark starts, belongs to the process that started it, and a session of somebody else's is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest

from headrace.errors import ConnectUnsupportedError, SparkStartError
from headrace.runtime import aot, session
from headrace.runtime.defaults import build_settings
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.java import find_java
from headrace.runtime.jvm import build_command, start_jvm
from headrace.runtime.session import RunningSpark, open_spark
from proof.shop import until


def start_python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def run_python(code: str, **environment: str) -> str:
    process = start_python(code, **environment)
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 0
    return output.strip()


def test_the_session_has_delta_kafka_and_the_settings_of_the_design(running_spark: RunningSpark) -> None:
    spark = running_spark.spark
    assert running_spark.owned
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.scheduler.mode") == "FAIR"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    # A setting of the caller's overrides ours.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None


def test_delta_and_pandas_work_with_this_python(running_spark: RunningSpark, tmp_path: Path) -> None:
    spark = running_spark.spark
    path = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(path)
    frame = spark.read.format("delta").load(path).toPandas()
    assert frame["id"].sum() == 45
    assert spark.sparkContext.parallelize([1]).map(lambda _: sys.executable).collect() == [sys.executable]


def test_spark_writes_to_its_log_file_and_not_to_the_terminal(
    running_spark: RunningSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = running_spark.spark._jvm.org.apache.logging.log4j.LogManager.getLogger("test")  # type: ignore[union-attr]
    logger.warn("a warning for the file")
    assert running_spark.log_file is not None
    assert "a warning for the file" in running_spark.log_file.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_session_that_is_there_is_taken_and_not_stopped(running_spark: RunningSpark) -> None:
    with open_spark("another", conf={"spark.sql.shuffle.partitions": "77"}) as taken:
        assert not taken.owned
        assert taken.spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert running_spark.spark.range(3).count() == 3


def test_the_session_of_spark_submit_is_taken(tmp_path: Path) -> None:
    """What `spark-submit` does: it starts the JVM, and gives the gateway's address to Python."""
    java, jars, log = find_java(), ensure_jars("spark"), tmp_path / "spark.log"
    settings = build_settings("submitted", "local[1]", tmp_path, {"spark.sql.shuffle.partitions": "3"})
    command = build_command(java, jars, heap="512m", log_file=log, settings=settings)
    jvm = start_jvm(command, log, {"PYSPARK_PYTHON": sys.executable})
    try:
        said = run_python(
            """
            from headrace.runtime.session import open_spark
            with open_spark("mine", master="local[9]", conf={"spark.sql.shuffle.partitions": "9"}) as running:
                conf = running.spark.conf
                print(running.owned, running.spark.sparkContext.appName, conf.get("spark.master"),
                      conf.get("spark.sql.shuffle.partitions"), running.spark.range(4).count())
            """,
            PYSPARK_GATEWAY_PORT=str(jvm.port),
            PYSPARK_GATEWAY_SECRET=jvm.secret,
        )
    finally:
        jvm.end(0)
    assert said == "False submitted local[1] 3 4"


def test_a_session_without_delta_is_refused_and_a_session_can_follow_another() -> None:
    said = run_python(
        """
        from headrace.errors import DeltaNotConfiguredError
        from headrace.runtime.session import open_spark
        bare = open_spark("bare", master="local[1]", memory="512m", conf={"spark.sql.extensions": ""})
        try:
            open_spark("mine")
        except DeltaNotConfiguredError as error:
            print(error.params["missing"])
        bare.stop()
        with open_spark("next", master="local[1]", memory="512m") as following:
            print(following.owned, following.jvm_pid != bare.jvm_pid, following.spark.range(2).count())
        """
    )
    assert said.splitlines() == [
        "['spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension']",
        "True True 2",
    ]


def test_a_session_with_the_settings_of_delta_and_without_its_jars_is_refused() -> None:
    said = run_python(
        """
        from pyspark.sql import SparkSession
        from headrace.errors import DeltaNotConfiguredError
        from headrace.runtime.session import open_spark
        extension = "io.delta.sql.DeltaSparkSessionExtension"
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        builder = SparkSession.builder.master("local[1]").config("spark.sql.extensions", extension)
        builder.config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
        try:
            open_spark("mine")
        except DeltaNotConfiguredError as error:
            print([setting.partition(":")[0] for setting in error.params["missing"]])
        """
    )
    assert said.splitlines()[-1] == "['spark.jars.packages=io.delta']"


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere.test")
    with pytest.raises(ConnectUnsupportedError):
        open_spark("mine")


def test_a_killed_python_takes_its_jvm_with_it_while_spark_works(tmp_path: Path) -> None:
    """The session is opened by a thread that ends: the JVM belongs to the process, not to it."""
    process = start_python(
        f"""
        import threading
        from headrace.runtime.session import open_spark
        opened = []
        def start():
            opened.append(open_spark("k", master="local[2]", memory="512m"))
        opening = threading.Thread(target=start)
        opening.start()
        opening.join()
        spark = opened[0].spark
        stream = spark.readStream.format("rate").load().writeStream.format("delta")
        stream = stream.option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
        stream.start({str(tmp_path / "table")!r})
        print(opened[0].jvm_pid, flush=True)
        spark.range(0, 10**13, 1, 1).selectExpr("sum(id * 7 % 3)").collect()
        """
    )
    log = tmp_path / "table" / "_delta_log"
    try:
        assert process.stdout is not None
        jvm = psutil.Process(int(process.stdout.readline()))
        until(lambda: process.poll() is not None or any(log.glob("*1.json")), "the stream commits")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    psutil.wait_procs([jvm], timeout=2)
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE


def test_an_aot_cache_that_java_cannot_use_costs_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.aot"
    broken.write_bytes(b"no cache" * 1000)
    java, jars, log = find_java(), ensure_jars("spark"), tmp_path / "spark.log"
    settings = build_settings("broken", "local[1]", tmp_path, {})
    options = aot.use_options(broken)
    command = build_command(java, jars, heap="512m", log_file=log, settings=settings, extra_options=options)
    start_jvm(command, log, {}).end(0)


def test_a_jvm_that_does_not_start_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "_find_foreign", lambda: None)
    with pytest.raises(SparkStartError) as caught:
        open_spark("wrong", memory="much", log_file=tmp_path / "spark.log")
    assert caught.value.params["log_file"] == str(tmp_path / "spark.log")
    assert any("-Xmxmuch" in fact for fact in caught.value.facts)
    assert list(tmp_path.glob("headrace-*")) == []
