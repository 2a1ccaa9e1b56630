"""A pipeline on a cluster: a real standalone master, and a worker that has no more than Spark's own jars."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from bench.java import make_java_home

from headrace.runtime.jars import spark_jars_folder
from headrace.runtime.java import find_java
from headrace.runtime.jvm import MODULE_OPTIONS, class_path
from headrace.runtime.processes import end, start_bound
from object_server import SECRET, ObjectServer
from proof.driver import start
from proof.shop import Shop
from waiting import until


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with one worker of one core."""
    log = tmp_path / "cluster.log"
    home = tmp_path / "java"
    home.mkdir()
    environment = {
        **os.environ,
        "JAVA_HOME": str(make_java_home(home)),
        "SPARK_HOME": str(spark_jars_folder().parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    java = [str(find_java().executable), "-Xmx128m", *MODULE_OPTIONS, "-cp", class_path([])]
    listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    started: list[subprocess.Popen[bytes]] = []

    def launch(main: str, *arguments: str, says: str) -> re.Match[str]:
        started.append(start_bound([*java, f"org.apache.spark.deploy.{main}", *arguments], log, environment))
        until(lambda: re.search(says, log.read_text()) is not None, f"{main} says {says}")
        found = re.search(says, log.read_text())
        assert found is not None
        return found

    try:
        address = launch("master.Master", *listen, says=r"Starting Spark master at (spark://\S+)")[1]
        resources = ["--cores", "1", "--memory", "1g", address]
        launch("worker.Worker", *listen, *resources, says="Successfully registered with master")
        yield address
    finally:
        for process in reversed(started):
            end(process, 0)


def test_a_pipeline_runs_on_a_master_by_setting(
    master: str, make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(
        runtime={"master": master, "memory": "512m"},
        configuration={
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    shop.produce(500)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with start(shop) as driver:
        until(lambda: bool(executors()) or driver.process.poll() is not None, "an executor works")
        assert driver.end() == 0, driver.said()
    shop.check()
    until(lambda: not executors(), "the executors have gone")


_ON_S3 = """
import sys
from headrace.model.object_storage import S3Settings
from headrace.runtime.session import open_spark
from headrace.storage.s3.access import S3Access
from headrace.storage.s3.spark import ANY_BUCKET, build_support

_, master, bucket = sys.argv
conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
support = build_support({ANY_BUCKET: S3Access(S3Settings())}, conf)
with open_spark("s3", conf=conf, master=master, memory="512m", storage=support, shared=False) as running:
    table = f"s3://{bucket}/numbers"
    running.spark.range(100).repartition(2).write.format("delta").save(table)
    rows = running.spark.read.format("delta").load(table)
    print("sum", rows.agg({"id": "sum"}).first()[0], flush=True)
    sys.stdin.read()
"""


def test_executors_write_to_s3_with_credentials_that_only_the_driver_has(
    master: str, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    object_server.reach(monkeypatch)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    command = [sys.executable, "-c", _ON_S3, master, object_server.make_bucket()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == f"sum {sum(range(100))}\n"
        family = psutil.Process().children(recursive=True)
        assert executors()
        assert not [one for one in family if SECRET in " ".join(_command(one))]
        files = [path for path in (tmp_path / "work").rglob("*") if path.is_file()]
        assert any(path.name == "headrace-s3.jar" for path in files)
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        driver.communicate()
    assert driver.returncode == 0


def executors() -> list[psutil.Process]:
    """The executors that a worker of this test has started."""
    family = psutil.Process().children(recursive=True)
    return [one for one in family if "CoarseGrainedExecutorBackend" in " ".join(_command(one))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
