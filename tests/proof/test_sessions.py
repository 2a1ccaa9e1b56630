"""Sessions that a user has started: taken or refused. Each test starts JVMs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from headrace.runtime.defaults import build_settings
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import find_java
from headrace.runtime.jvm import build_command, start_jvm
from waiting import DEADLINE_S


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        timeout=DEADLINE_S,
        check=True,
    )
    return done.stdout.strip()


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


def test_a_jvm_that_has_slept_keeps_its_executor(tmp_path: Path) -> None:
    """Spark's limits are shortened, and the JVM sleeps for longer than they allow."""
    log = tmp_path / "spark.log"
    said = run_python(
        f"""
        import os, signal, time
        from pathlib import Path
        from headrace.runtime.session import open_spark
        limits = {{"spark.network.timeout": "6s", "spark.executor.heartbeatInterval": "4s",
                  "spark.network.timeoutInterval": "500ms"}}
        log = Path({str(log)!r})
        with open_spark("asleep", conf=limits, memory="512m", log_file=log, shared=False) as running:
            spark = running.spark
            kept = spark.range(10).localCheckpoint()
            for _ in range(2):
                os.kill(running.jvm_pid, signal.SIGSTOP)
                time.sleep(8)
                os.kill(running.jvm_pid, signal.SIGCONT)
                print(kept.count(), end=" ")
                time.sleep(1)
        """,
        HEADRACE_ENGINE="off",
    )
    assert said == "10 10"
    assert "Issue communicating with driver" not in log.read_text()
