"""Spark starts, belongs to the process that started it, and a session of somebody else's is left alone."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, max as max_

from headrace.errors import ConnectUnsupportedError, SparkStartError
from headrace.runtime import aot, session
from headrace.runtime.defaults import build_settings
from headrace.runtime.engine.record import belongs_to_session
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java
from headrace.runtime.jvm import build_command, start_jvm
from headrace.runtime.session import RunningSpark, open_spark
from headrace.sinks.delta.transaction import iterate


def test_the_session_has_delta_kafka_and_the_settings_of_the_design(running_spark: RunningSpark) -> None:
    spark = running_spark.spark
    assert running_spark.owned
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.scheduler.mode") == "FAIR"
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "1"
    # A setting of the caller's overrides ours.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None


def test_the_settings_that_a_session_cannot_take_are_those_of_the_engine(running_spark: RunningSpark) -> None:
    jvm: Any = running_spark.spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # Delta registers its settings when this class is loaded.
    jvm.java.lang.Class.forName("org.apache.spark.sql.delta.sources.DeltaSQLConf$", True, loader)
    settings = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")
    static = set(
        filter(settings.isStaticConfigKey, (str(one.key()) for one in iterate(settings.getConfigEntries())))
    )
    assert len(static) > 30
    assert [name for name in static if belongs_to_session(name)] == []
    assert belongs_to_session("spark.sql.ansi.enabled")


def test_the_small_side_of_a_join_takes_little_of_the_heap(running_spark: RunningSpark) -> None:
    spark = running_spark.spark
    java: Any = spark._jvm.java.lang  # type: ignore[union-attr]

    def used_mb() -> int:
        java.System.gc()
        memory = java.Runtime.getRuntime()
        return int(memory.totalMemory() - memory.freeMemory()) >> 20

    def join() -> DataFrame:
        small = spark.createDataFrame([("1", 1)], "id STRING, value INT")
        joined = spark.range(3).selectExpr("CAST(id AS STRING) id").join(broadcast(small), "id")
        assert joined.persist().count() == 1
        return joined

    first = join()
    before = used_mb()
    more = [join() for _ in range(8)]
    # By default, each would take 33 MB and more of 1,536.
    assert used_mb() - before < 100
    for one in (first, *more):
        one.unpersist()


def test_a_record_may_be_larger_than_what_spark_takes_from_the_heap_at_once(spark: SparkSession) -> None:
    value = "repeat(CAST(id AS STRING), 5000000) value"
    rows = spark.range(4).selectExpr("CAST(id % 2 AS STRING) id", value)
    longest = rows.groupBy("id").agg(max_("value").alias("value")).selectExpr("length(value)")
    assert [row[0] for row in longest.collect()] == [5_000_000, 5_000_000]
    assert rows.groupBy("value").count().count() == 4
    assert len(rows.orderBy("value").selectExpr("left(value, 1)").collect()) == 4
    assert rows.join(broadcast(rows.limit(1)), "value").count() == 1


def test_delta_and_pandas_work_with_this_python(running_spark: RunningSpark, tmp_path: Path) -> None:
    spark = running_spark.spark
    path = str(tmp_path / "table")
    spark.range(10).write.format("delta").save(path)
    frame = spark.read.format("delta").load(path).toPandas()
    assert frame["id"].sum() == 45
    assert spark.sparkContext.parallelize([1]).map(lambda _: sys.executable).collect() == [sys.executable]


def test_a_checksum_has_the_batches_of_flows_but_not_the_files_of_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    batch = {"txnAppId": "checkpoint", "txnVersion": "3"}
    spark.range(10).write.format("delta").options(**batch).save(str(tmp_path / "table"))
    checksum = json.loads((tmp_path / "table" / "_delta_log" / f"{0:020d}.crc").read_text())
    assert [(one["appId"], one["version"]) for one in checksum["setTransactions"]] == [("checkpoint", 3)]
    assert checksum["numFiles"] >= 1
    assert "allFiles" not in checksum


def test_spark_writes_to_its_log_file_and_not_to_the_terminal(
    running_spark: RunningSpark, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = running_spark.spark._jvm.org.apache.logging.log4j.LogManager.getLogger("test")  # type: ignore[union-attr]
    logger.warn("a warning for the file")
    assert running_spark.log_file is not None
    assert "a warning for the file" in running_spark.log_file.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_session_that_is_there_is_taken_and_not_stopped(
    running_spark: RunningSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have made rows with a session of its own, which makes that the active one.
    monkeypatch.setattr(SparkSession, "_activeSession", running_spark.spark)
    with open_spark("another", conf={"spark.sql.shuffle.partitions": "77"}) as taken:
        assert not taken.owned
        assert taken.spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert running_spark.spark.range(3).count() == 3


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere.test")
    with pytest.raises(ConnectUnsupportedError):
        open_spark("mine")


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
    assert caught.value.params["log"] == str(tmp_path / "spark.log")
    assert any("-Xmxmuch" in fact for fact in caught.value.facts)
    assert list(tmp_path.glob("headrace-*")) == []
