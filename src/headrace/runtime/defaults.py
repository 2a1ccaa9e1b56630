"""The Spark settings that Headrace chooses, each with its reason; a user's setting overrides each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.model.secrets import SECRET_KEYS

if TYPE_CHECKING:
    from pyspark import SparkContext

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG_SETTING = "spark.sql.catalogImplementation"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_MASTER_CHOSEN = "spark.headrace.masterChosen"
"""Set in a session whose master Headrace chose. The text of a master does not tell: on 4 cores the default
is `local[16]`, which a user can name, too."""

WRITER_CHECKS = {
    # Parquet looks at what it has buffered after 100 rows, and later after up to 20,000: with messages
    # of 5 MB that is half a heap, and then all of it. A look costs next to nothing.
    **{f"parquet.{part}.size.row.check.min": "4" for part in ("page", "block")},
    **{f"parquet.{part}.size.row.check.max": "50" for part in ("page", "block")},
}
"""Settings of Hadoop's kind, which a session takes under these names."""


LOCAL_FILES = {
    # Without Hadoop's native code, its own classes start five processes (`chmod`, `readlink`) for each batch
    # of a flow, and two for each further commit: with 100 flows, a third of the processors' time.
    "spark.hadoop.fs.file.impl": "io.headrace.local.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "io.headrace.local.LocalContext",
    # Delta's own class looks at all files of a table's log, where it needs only the newest.
    "spark.delta.logStore.file.impl": "io.headrace.local.LocalLogStore",
}
"""Settings of a JVM that has our jar on its class path."""
_LOCAL_LOGS = "spark.delta.logStore.file.impl"
_ALL_LOGS = "spark.delta.logStore.class"
"""Delta refuses a class for the logs of all tables beside one for those on a local disk."""


def local_files(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a JVM that has our jar on its class path, where the user has these settings."""
    return {key: one for key, one in LOCAL_FILES.items() if key != _LOCAL_LOGS or _ALL_LOGS not in settings}


def is_local(master: str) -> bool:
    """Whether all of Spark is in the driver's JVM; `local-cluster` starts executors of their own."""
    return master == "local" or master.startswith("local[")


def default_master() -> str:
    """Returns the Spark master for this machine: all cores, and four task slots for each core. A task that
    hangs keeps its slot. With one slot for each core, two such tasks of one flow would stop all other
    flows."""
    return f"local[{4 * max(2, available_cores())}]"


def find_named_master(context: SparkContext) -> str | None:
    """Returns the master that the user named for a running session, or None if Headrace chose it."""
    # `getConf` copies the settings with one JVM call for each.
    return None if context._jsc.sc().conf().contains(_MASTER_CHOSEN) else context.master


def build_settings(
    name: str, master: str | None, scratch: Path, conf: Mapping[str, str], jars: Sequence[Path] = ()
) -> dict[str, str]:
    chosen = {_MASTER_CHOSEN: "true"} if master is None else {}
    settings = {
        "spark.app.name": name,
        "spark.master": master or default_master(),
        **chosen,
        **_static_settings(),
        **build_session_settings(master),
    }
    settings |= conf
    if settings[_CATALOG_SETTING] == "hive" and "spark.sql.warehouse.dir" not in conf:
        # A metastore keeps the folders of its schemas: they must not be in a folder that is removed.
        settings["spark.sql.warehouse.dir"] = Path("spark-warehouse").absolute().as_uri()
    if master is None or is_local(master):
        return _local_settings(scratch) | settings
    added = [*map(str, jars), *filter(None, [conf.get("spark.jars")])]
    return settings | ({"spark.jars": ",".join(added)} if added else {})


def _static_settings() -> dict[str, str]:
    return {
        # Delta's commands and tables in SQL and in the DataFrame API.
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        # A storage root describes itself, so no metastore is opened (Derby would lock a folder).
        _CATALOG_SETTING: "in-memory",
        # One flow with a large backlog must not starve the others.
        "spark.scheduler.mode": "FAIR",
        **{f"spark.hadoop.{key}": value for key, value in WRITER_CHECKS.items()},
        # Spark prints settings into its log.
        "spark.redaction.regex": f"(?i){SECRET_KEYS}",
        # A web server costs start-up time and memory.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # PySpark would tell the JVM the Python line of every column: one call more for each.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Every batch of every flow is an SQL execution; the default keeps 1,000 of their plans.
        "spark.sql.ui.retainedExecutions": "10",
        # The event log reads once a second what the jobs of each batch have used.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "1000",
        # The classes that Spark has generated and compiled. A batch needs about ten of them: with the default
        # of 100, the batches of twenty flows compile theirs again and again.
        "spark.sql.codegen.cache.maxEntries": "2000",
    }


def build_session_settings(master: str | None) -> dict[str, str]:
    """The settings that a running session can take. `master`: the master that the user named, if any."""
    cores = _count_cores(master)
    settings = {
        # Spark prints the options of sources into plans, and plans into messages.
        "spark.sql.redaction.options.regex": f"(?i)url|{SECRET_KEYS}",
        # The same timestamps on every machine.
        "spark.sql.session.timeZone": "UTC",
        # The state of a table that a laptop's pipeline writes fits one task; the default of 50
        # makes every small batch pay for 50.
        "spark.databricks.delta.snapshotPartitions": "1",
        # Delta would write the list of files into each checksum of a small table, and reads it only to verify
        # it. For a new table it computes the whole state for that.
        "spark.databricks.delta.allFilesInCrc.enabled": "false",
        # If the JVM's or the session's time zone is not UTC, Delta compares the file list of each checksum
        # with the whole log at each commit. A commit into a young table took 0.95 s instead of 0.33 s.
        "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled": "false",
        # 200 is for clusters. Two per core leave room to balance; adaptive execution merges them.
        "spark.sql.shuffle.partitions": str(max(2, min(200, 2 * cores))),
        # Delta's parser does not pass on the arguments of `spark.sql(text, args)`, which Spark 4.2
        # otherwise needs while it parses; so they are bound during analysis, as before.
        "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
        # pandas functions and toPandas without a copy for each row.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # The default of 100 progress reports for each flow would only use memory.
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        # A flow that waits needs no report every 10 seconds.
        "spark.sql.streaming.noDataProgressEventInterval": "60000",
        # Without Hadoop's native code, the default manager starts about ten processes (`chmod`,
        # `readlink`) for each file of a checkpoint: a third of a small batch. This one renames too.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # A stopping flow whose thread hangs must not hang the process.
        "spark.sql.streaming.stopTimeout": "30000",
    }
    if master is None or is_local(master):
        # Spark would split a few small files into one task for each slot of `default_master`.
        settings["spark.sql.leafNodeDefaultParallelism"] = str(cores)
    return settings


def _local_settings(scratch: Path) -> dict[str, str]:
    return {
        # Nothing of a local run is reachable from the network, and a machine whose own name
        # does not resolve still starts.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # No folder `spark-warehouse` in the working directory.
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.local.dir": str(scratch / "local"),
        # The small side of each join, and each aggregation of each task, takes at least one page of the heap.
        # With a heap of 1,280 MB and two cores Spark would choose 32 MB for it, also for a single row.
        "spark.buffer.pageSize": "4m",
        # A laptop that has slept for two minutes would lose its only executor: it has sent no heartbeat.
        "spark.storage.blockManagerHeartbeatTimeoutMs": "365d",
    }


def _count_cores(master: str | None) -> int:
    if master is None:
        return available_cores()
    if master.startswith("local[") and master[6:].split("]")[0].split(",")[0].isdigit():
        return int(master[6:].split("]")[0].split(",")[0])
    if master == "local":
        return 1
    return available_cores() if is_local(master) else 16


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
