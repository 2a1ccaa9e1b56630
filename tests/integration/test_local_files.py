"""Local files of Spark: as Hadoop's own classes leave them, without a process for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


@pytest.fixture
def both(spark: SparkSession) -> tuple[Any, Any]:
    """The file system of the session, and Hadoop's own."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    found = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), conf)
    own = jvm.org.apache.hadoop.fs.LocalFileSystem()
    own.initialize(jvm.java.net.URI("file:///"), conf)
    assert found.getClass().getName() == "io.headrace.local.LocalFiles"
    return found, own


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o751, 0o007, 0o1777, 0])
def test_permissions_are_set_as_hadoop_sets_them(
    spark: SparkSession, both: tuple[Any, Any], tmp_path: Path, mode: int
) -> None:
    jvm: Any = spark._jvm
    modes = []
    for name, files in zip(("ours", "own"), both, strict=True):
        path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / name))
        files.create(path).close()
        created = (tmp_path / name).stat().st_mode
        files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
        modes.append((created, (tmp_path / name).stat().st_mode))
    assert modes[0] == modes[1]
    assert modes[0][1] & 0o7777 == mode


def test_a_rename_replaces_no_file(spark: SparkSession, both: tuple[Any, Any], tmp_path: Path) -> None:
    """Delta commits so: the second writer of a version is refused."""
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(jvm.java.net.URI("file:///"), conf)
    assert context.getDefaultFileSystem().getClass().getName() == "io.headrace.local.LocalContext"
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    paths = {name: jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/{name}") for name in ("first", "second")}
    target = jvm.org.apache.hadoop.fs.Path(f"file:{tmp_path}/00000000000000000001.json")
    gateway: Any = spark.sparkContext._gateway
    options = gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 0)
    context.rename(paths["first"], target, options)
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        context.rename(paths["second"], target, options)
    assert (tmp_path / "00000000000000000001.json").read_text() == "first"
    assert (tmp_path / "second").exists()


def test_a_list_of_a_log_has_the_files_that_delta_s_own_class_lists(
    spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm
    log = tmp_path / "_delta_log"
    log.mkdir()
    version = "{:020d}.{}".format
    files = [version(number, kind) for number in range(4) for kind in ("json", "crc", "checkpoint.parquet")]
    for name in (*files, "_last_checkpoint", ".00000000000000000003.json.crc", ".tmp", "z.txt"):
        (log / name).write_text(name)
    (log / "_sidecars").mkdir()
    (log / version(7, "json")).symlink_to(log / "missing")
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    stores = (jvm.io.headrace.local.LocalLogStore(conf), jvm.io.delta.storage.HDFSLogStore(conf))

    def listed(store: Any, path: Path) -> list[str]:
        found = store.listFrom(jvm.org.apache.hadoop.fs.Path(str(path)), conf)
        states = []
        while found.hasNext():
            one = found.next()
            states.append(f"{one.getPath()} {one.getLen()} {one.getModificationTime()} {one.isDirectory()}")
        return states

    for first in (version(0, "json"), version(2, ""), version(2, "json"), version(9, "")):
        ours, own = (listed(store, log / first) for store in stores)
        assert ours == own
    assert len(listed(stores[0], log / version(3, ""))) == 6
    for store in stores:
        with pytest.raises(Exception, match="FileNotFoundException"):
            listed(store, tmp_path / "missing" / version(0, "json"))


def test_delta_uses_our_class_for_the_logs_of_local_tables(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "table"))
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(tmp_path / "table"))
    store = log.store().getDelegate(log.logPath())
    assert store.logStoreImpl().getClass().getName() == "io.headrace.local.LocalLogStore"


def test_commits_start_no_process(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    spark.range(3).write.format("delta").save(path)
    jvm: Any = spark._jvm
    recording = jvm.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart")
    recording.start()
    for _ in range(3):
        spark.range(3).write.format("delta").mode("append").save(path)
    recording.stop()
    file = jvm.java.io.File(str(tmp_path / "record.jfr")).toPath()
    recording.dump(file)
    recording.close()
    events = jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(file)
    commands = [event.getString("command") for event in events if event.hasField("command")]
    # Once, Spark asks for the size of a page.
    assert [one for one in commands if one != "getconf PAGESIZE"] == []
    assert spark.read.format("delta").load(path).count() == 12


def test_what_hadoop_refuses_is_refused(spark: SparkSession, both: tuple[Any, Any], tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "missing"))
    permission = jvm.org.apache.hadoop.fs.permission.FsPermission(0o644)
    for files in both:
        with pytest.raises(Exception, match=r"No ?[sS]uch"):
            files.setPermission(path, permission)
        with pytest.raises(Exception, match="FileNotFoundException"):
            files.getFileLinkStatus(path)
    with pytest.raises(PySparkException):
        spark.read.format("delta").load(str(tmp_path / "missing")).collect()
