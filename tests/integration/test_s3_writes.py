"""Delta's log and streams' checkpoints on a real S3 server: a second writer is always noticed.

A proxy between Spark and the server holds requests, makes them fail, and drops answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headrace.model.project import S3Settings
from headrace.storage.s3.access import S3Access, S3Files
from headrace.storage.s3.spark import share_credentials
from object_server import KEY, REGION, SECRET, ObjectServer
from s3_proxy import S3Proxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_S = 60.0
_EXISTS_FOR_DELTA = "java.nio.file.FileAlreadyExistsException"
_EXISTS_FOR_STREAMS = "org.apache.hadoop.fs.FileAlreadyExistsException"

_MOST_REQUESTS_OF_A_COMMIT = 9


@dataclass(frozen=True)
class Lake:
    """A bucket that Spark and `deltalake` reach through the proxy, and the tests without it."""

    spark: SparkSession
    proxy: S3Proxy
    server: ObjectServer
    bucket: str
    access: S3Access

    def path(self, *names: str) -> str:
        return "/".join((f"s3://{self.bucket}", *names))

    def keys(self, prefix: str) -> list[str]:
        found = self.server.client.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [one["Key"].removeprefix(prefix) for one in found.get("Contents", ())]

    def read(self, key: str) -> bytes:
        data: bytes = self.server.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def put(self, key: str, data: bytes = b"of another writer") -> None:
        self.server.client.put_object(Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*")

    @property
    def _conf(self) -> Any:
        return self.spark._jsparkSession.sessionState().newHadoopConf()

    def commit(self, key: str, text: str = "{}", *, overwrite: bool = False) -> str:
        """Write a file as Delta writes its log; returns the class of the error, or ``""``."""
        jvm: Any = self.spark._jvm
        lines = jvm.java.util.Collections.singletonList(text).iterator()
        try:
            store = jvm.io.headrace.s3.S3LogStore(self._conf)
            store.write(jvm.org.apache.hadoop.fs.Path(self.path(key)), lines, overwrite, self._conf)
        except Py4JJavaError as error:
            return str(error.java_exception.getClass().getName())
        return ""

    def open_checkpoint(self, path: str, *, overwrite: bool = False) -> Any:
        """Open a file as Structured Streaming does."""
        jvm: Any = self.spark._jvm
        file = jvm.org.apache.hadoop.fs.Path(path)
        return jvm.io.headrace.s3.S3CheckpointFiles(file.getParent(), self._conf).createAtomic(
            file, overwrite
        )

    def checkpoint(self, path: str, data: bytes, *, overwrite: bool = False) -> str:
        out = self.open_checkpoint(path, overwrite=overwrite)
        out.write(data)
        try:
            out.close()
        except Py4JJavaError as error:
            return str(error.java_exception.getClass().getName())
        return ""


@pytest.fixture(scope="module")
def lake(spark: SparkSession, object_server: ObjectServer) -> Iterator[Lake]:
    with S3Proxy(object_server.url) as proxy:
        settings = S3Settings(endpoint=proxy.url, region=REGION, access_key_id=KEY, secret_access_key=SECRET)
        bucket, access = object_server.make_bucket(), S3Access(settings)
        end = share_credentials({bucket: access}, {}, spark, owned=True)
        yield Lake(spark, proxy, object_server, bucket, access)
        end()


def append(lake: Lake, table: str, number: int) -> None:
    lake.spark.range(number, number + 1).coalesce(1).write.format("delta").mode("append").save(
        lake.path(table)
    )


def append_elsewhere(lake: Lake, table: str, number: int) -> None:
    """Append with delta-rs: another engine, as if it were on another machine."""
    import pyarrow as pa

    options = dict(S3Files(lake.bucket, lake.access).table_options)
    rows = pa.table({"id": pa.array([number], pa.int64())})
    write_deltalake(lake.path(table), rows, mode="append", storage_options=options)


def test_two_engines_that_write_one_version_lose_no_commit(lake: Lake) -> None:
    append(lake, "race", 0)
    with (
        lake.proxy.fault("hold", "PUT", r"race/_delta_log/0*1\.json") as first,
        ThreadPoolExecutor(1) as threads,
    ):
        late = threads.submit(append, lake, "race", 1)
        assert first.arrived.wait(_WAIT_S)
        append_elsewhere(lake, "race", 2)
        first.release()
        late.result(_WAIT_S)
    rows = lake.spark.read.format("delta").load(lake.path("race")).collect()
    assert sorted(row.id for row in rows) == [0, 1, 2]
    assert [key for key in lake.keys("race/_delta_log/") if key.endswith(".json")] == [
        f"{version:020}.json" for version in range(3)
    ]


def test_of_writers_at_the_same_time_exactly_one_creates_a_file(lake: Lake) -> None:
    for number in range(5):
        start = threading.Barrier(4)

        def write(text: str, key: str = f"many/{number}.json", start: threading.Barrier = start) -> str:
            start.wait(_WAIT_S)
            return lake.commit(key, text)

        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(write, "abcd"))
        assert sorted(outcomes) == ["", *[_EXISTS_FOR_DELTA] * 3]
        assert lake.read(f"many/{number}.json").decode() == f"{'abcd'[outcomes.index('')]}\n"


def test_a_write_whose_answer_was_lost_knows_its_own_object(lake: Lake) -> None:
    with lake.proxy.fault("drop", "PUT", "lost/own.json") as lost:
        assert lake.commit("lost/own.json", "mine") == ""
    assert lost.hits == 1
    assert lake.read("lost/own.json") == b"mine\n"
    assert [one.status for one in lake.proxy.requests if "lost/own.json" in one.path] == [0, 412, 200]

    lake.put("lost/other.json")
    with lake.proxy.fault("drop", "PUT", "lost/other.json") as lost:
        assert lake.commit("lost/other.json", "mine") == _EXISTS_FOR_DELTA
    assert lost.hits == 1
    assert lake.read("lost/other.json") == b"of another writer"


@pytest.mark.parametrize("status", [409, 500, 503])
def test_a_write_that_s3_puts_off_is_repeated(lake: Lake, status: int) -> None:
    name = f"again/{status}.json"
    with lake.proxy.fault("error", "PUT", name, status=status, times=2) as refused:
        assert lake.commit(name, "mine") == ""
    assert refused.hits == 2
    assert lake.read(name) == b"mine\n"


def test_a_conflict_with_a_file_of_another_writer_is_one(lake: Lake) -> None:
    lake.put("conflict.json")
    with lake.proxy.fault("error", "PUT", "conflict.json", status=409):
        assert lake.commit("conflict.json") == _EXISTS_FOR_DELTA
    with lake.proxy.fault("error", "PUT", "conflict.json", status=403):
        # Not a conflict: Delta would repeat the commit for ever.
        assert lake.commit("conflict.json") == "java.nio.file.AccessDeniedException"
    assert lake.commit("conflict.json", "mine", overwrite=True) == ""
    assert lake.read("conflict.json") == b"mine\n"


def test_files_of_a_checkpoint_are_created_once_unless_they_may_be_replaced(
    lake: Lake, tmp_path: Path
) -> None:
    offsets, state = lake.path("stream/offsets/7"), lake.path("stream/state/0/0/7.delta")
    assert lake.checkpoint(offsets, b"first") == ""
    assert lake.checkpoint(offsets, b"second") == _EXISTS_FOR_STREAMS
    assert lake.read("stream/offsets/7") == b"first"
    # A task that is tried again writes its state again.
    assert [lake.checkpoint(state, data, overwrite=True) for data in (b"first", b"second")] == ["", ""]
    assert lake.read("stream/state/0/0/7.delta") == b"second"
    for overwrite in (False, True):
        out = lake.open_checkpoint(lake.path("stream/offsets/8"), overwrite=overwrite)
        out.write(b"half")
        out.cancel()
        out.close()
    assert lake.keys("stream/offsets/") == ["7"]
    # The same session writes the checkpoints of local pipelines.
    local = tmp_path / "offsets" / "7"
    local.parent.mkdir()
    assert lake.checkpoint(local.as_uri(), b"first") == ""
    assert lake.checkpoint(local.as_uri(), b"second") == "org.apache.spark.SparkFileAlreadyExistsException"
    assert local.read_bytes() == b"first"


def test_a_checkpoint_that_another_process_has_made_anew_loses_no_batch(lake: Lake) -> None:
    jvm: Any = lake.spark._jvm
    for folder, is_anew in (("own/offsets", False), ("anew/offsets", True)):

        def file(number: int, folder: str = folder) -> Any:
            return jvm.org.apache.hadoop.fs.Path(lake.path(folder, str(number)))

        log = jvm.io.headrace.s3.S3CheckpointFiles(file(0).getParent(), lake._conf)
        for number in (200, 201):
            log.createAtomic(file(number), False).close()
        if is_anew:
            lake.server.client.delete_object(Bucket=lake.bucket, Key=f"{folder}/200")
        for number in range(100):
            lake.put(f"{folder}/{number}")
        for number in range(99):
            log.delete(file(number))
        assert {str(number) for number in range(100)} <= set(lake.keys(f"{folder}/"))
        log.delete(file(99))
        kept = {str(number) for number in range(100)} if is_anew else {"200"}
        assert set(lake.keys(f"{folder}/")) == {*kept, "201"}


def test_hadoop_cannot_be_told_to_overwrite(lake: Lake) -> None:
    conf = lake._conf
    conf.set("fs.s3a.performance.flags", "create")
    conf.set("fs.s3.impl.disable.cache", "true")
    jvm: Any = lake.spark._jvm
    store = jvm.io.headrace.s3.S3LogStore(conf)
    path = jvm.org.apache.hadoop.fs.Path(lake.path("flags.json"))
    with pytest.raises(Py4JJavaError, match=r"fs\.s3a\.performance\.flags"):
        store.write(path, jvm.java.util.Collections.singletonList("{}").iterator(), False, conf)
    assert lake.keys("flags.json") == []


def test_a_stateful_stream_that_dies_while_it_writes_continues(lake: Lake, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def feed(number: int) -> None:
        rows = "".join(json.dumps({"k": key}) + "\n" for key in (0, 1, number))
        (source / f"{number}.json").write_text(rows)

    def start() -> Any:
        rows = lake.spark.readStream.schema("k long").json(str(source))
        writer = rows.groupBy("k").count().writeStream.outputMode("complete").format("delta")
        writer = writer.option("checkpointLocation", lake.path("sums-checkpoint"))
        return writer.trigger(availableNow=True).start(lake.path("sums"))

    def sums() -> dict[int, int]:
        return {
            row["k"]: row["count"]
            for row in lake.spark.read.format("delta").load(lake.path("sums")).collect()
        }

    feed(2)
    start().awaitTermination()
    assert sums() == {0: 1, 1: 1, 2: 1}

    # A task ends while it uploads its state.
    feed(3)
    with lake.proxy.fault("hold", "PUT", r"sums-checkpoint/state/.*/2\.") as held:
        query = start()
        assert held.arrived.wait(_WAIT_S)
        query.stop()
    start().awaitTermination()
    assert sums() == {0: 2, 1: 2, 2: 1, 3: 1}

    # The state is written and the table is not: the batch is repeated, and its state written again.
    feed(4)
    commit = lake.proxy.fault("error", "PUT", r"sums/_delta_log/0*2\.json", status=403)
    with commit, pytest.raises(PySparkException):
        start().awaitTermination()
    lake.proxy.clear()
    start().awaitTermination()
    assert lake.proxy.count(r"sums-checkpoint/state/.*/3\.")["PUT"] > 0
    assert sums() == {0: 3, 1: 3, 2: 1, 3: 1, 4: 1}

    # A second driver has planned the next batch.
    feed(5)
    with lake.proxy.fault("hold", "PUT", r"sums-checkpoint/offsets/3$") as held:
        query = start()
        assert held.arrived.wait(_WAIT_S)
        lake.put("sums-checkpoint/offsets/3")
        held.release()
        with pytest.raises(PySparkException, match="Multiple streaming queries are concurrently using"):
            query.awaitTermination()
    assert sums() == {0: 3, 1: 3, 2: 1, 3: 1, 4: 1}


def test_the_requests_of_a_commit_do_not_grow_with_the_log(lake: Lake) -> None:
    costs = []
    for number in range(9):
        lake.proxy.clear()
        append(lake, "cost", number)
        costs.append(lake.proxy.count("cost/").total())
    assert max(costs[1:]) <= _MOST_REQUESTS_OF_A_COMMIT, costs
    assert costs[8] <= costs[2], costs
    assert lake.spark.read.format("delta").load(lake.path("cost")).count() == 9
