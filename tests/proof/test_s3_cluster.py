"""A cluster that writes to S3: only the driver has the credentials."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster import Cluster
from object_server import SECRET, ObjectServer

_WRITE = """
import sys
from headrace.model.project import S3Settings
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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path / "cluster")
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_executors_write_to_s3_with_credentials_that_only_the_driver_has(
    cluster: Cluster, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    object_server.reach(monkeypatch)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    command = [sys.executable, "-c", _WRITE, cluster.address, object_server.make_bucket()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == f"sum {sum(range(100))}\n", cluster.said()
        family = psutil.Process().children(recursive=True)
        assert cluster.executors()
        assert not [one for one in family if SECRET in " ".join(_command(one))]
        files = [path for path in (tmp_path / "cluster").rglob("*") if path.is_file()]
        assert any(path.name == "headrace-s3.jar" for path in files)
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        driver.communicate()
    assert driver.returncode == 0


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
