"""Which commands share an engine, and the files by which they find it: only their user can read them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headrace.model.secrets import Redactor
from headrace.runtime.defaults import build_session_settings, default_master, is_local
from headrace.runtime.jars import find_java, locked_jars
from headrace.runtime.jvm import choose_heap
from headrace.runtime.places import ENGINE_VARIABLE, cache_folder, chosen_folder, replace_file
from headrace.runtime.storage_support import NO_STORAGE, StorageSupport

VARIABLE = "HEADRACE_ENGINE"  # ``off``: each command starts a JVM of its own
IDLE_VARIABLE = "HEADRACE_ENGINE_IDLE"  # after how many minutes without a command the engine ends
PROTOCOL = 2  # the version of what commands and engine say to each other

_JVM_PREFIXES = (
    *("AWS_", "AZURE_", "GOOGLE_", "GCS_", "HADOOP_", "YARN_", "KRB5", "SPARK_", "PYSPARK_"),
    *("JAVA_", "_JAVA_", "JDK_", "LC_"),
)
_JVM_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("HEADRACE_CACHE", "HEADRACE_LOGS", "HEADRACE_AOT", "HEADRACE_ENGINE_DIR", IDLE_VARIABLE),
    }
)

_SESSION_PREFIXES = ("spark.sql.", "spark.databricks.delta.")
"""The prefixes of settings that each session of a JVM has for itself, but for the following ones."""
_STATIC_PREFIXES = ("spark.sql.hive.", "spark.sql.streaming.ui.", "spark.databricks.delta.testOnly.")
_STATIC_SETTINGS = frozenset(
    {
        *("spark.sql.broadcastExchange.maxThreadThreshold", "spark.sql.cache.serializer"),
        *("spark.sql.catalog.spark_catalog.defaultDatabase", "spark.sql.catalogImplementation"),
        *("spark.sql.codegen.cache.maxEntries", "spark.sql.codegen.comments", "spark.sql.debug"),
        *("spark.sql.defaultUrlStreamHandlerFactory.enabled", "spark.sql.event.truncate.length"),
        *("spark.sql.extensions", "spark.sql.extensions.test.loadFromCp"),
        *("spark.sql.filesourceTableRelationCacheSize", "spark.sql.globalTempDatabase"),
        *("spark.sql.legacy.sessionInitWithConfigDefaults", "spark.sql.metadataCacheTTLSeconds"),
        *("spark.sql.queryExecutionListeners", "spark.sql.resultQueryStage.maxThreadThreshold"),
        *("spark.sql.shuffleExchange.maxThreadThreshold", "spark.sql.sources.disabledJdbcConnProviderList"),
        *("spark.sql.sources.schemaStringLengthThreshold", "spark.sql.streaming.streamingQueryListeners"),
        *("spark.sql.subquery.maxThreadThreshold", "spark.sql.ui.retainedExecutions"),
        "spark.sql.warehouse.dir",
        "spark.databricks.delta.catalog.update.threadPoolSize",
        "spark.databricks.delta.checkpointV2.threadpool.size",
        "spark.databricks.delta.clusteredTable.numClusteringColumnsLimit",
        "spark.databricks.delta.command.fileMaterializationLimit.softMax",
        "spark.databricks.delta.commitMetrics.threadPoolSize",
        "spark.databricks.delta.coordinatedCommits.getCommits.threadPoolSize",
        "spark.databricks.delta.merge.materializeSource.maxAttempts",
    }
)


@dataclass(frozen=True)
class EngineChoice:
    master: str | None  # the Spark master that the user named, or None
    memory: str
    conf: Mapping[str, str]  # the Spark settings of the JVM that the user has changed; they can hold secrets
    overrides: Mapping[str, str]  # the settings of the command's own session
    secrets: tuple[str, ...]  # the texts that the log of Spark leaves out
    folder: Path  # the working directory, to which relative paths refer
    environment: Mapping[str, str]
    storage: StorageSupport = NO_STORAGE

    @property
    def key(self) -> str:
        """The same text for commands that can share an engine."""
        java = find_java()
        parts = (
            *(PROTOCOL, version("headrace"), version("pyspark"), sys.executable, sys.prefix),
            *(str(java.home), java.version, [str(jar.coordinate) for jar in locked_jars("spark")]),
            *(self.master or default_master(), self.master is None, self.memory),
            *(sorted(self.conf.items()), sorted(self.secrets)),
            *(str(self.folder), sorted(self.environment.items()), self.storage.identity),
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def is_engine_on() -> bool:
    if os.environ.get(VARIABLE, "").lower() in ("off", "0", "false", "no"):
        return False
    if os.environ.get("CI", "").lower() in ("true", "1"):
        return False
    # A session of spark-submit has a JVM. The engine needs local sockets, and a pid for each client.
    return "PYSPARK_GATEWAY_PORT" not in os.environ and sys.platform in ("linux", "darwin")


def choose_engine(
    conf: Mapping[str, str],
    master: str | None,
    memory: str | None,
    redactor: Redactor | None,
    storage: StorageSupport = NO_STORAGE,
) -> EngineChoice | None:
    """Returns the engine for these settings, or None if they need a JVM of their own."""
    master = master or conf.get("spark.master")
    if not is_engine_on() or (master is not None and not is_local(master)):
        return None
    if conf.get("spark.sql.catalogImplementation") == "hive":
        # Derby, which a metastore can be, locks its folder for one process.
        return None
    defaults = build_session_settings(master)
    passing = Redactor(storage.passing()).forms
    own = {key: value for key, value in conf.items() if key in defaults or belongs_to_session(key)}
    return EngineChoice(
        master=master,
        memory=memory or conf.get("spark.driver.memory") or choose_heap(),
        conf={key: value for key, value in conf.items() if key not in own},
        overrides={key: value for key, value in own.items() if defaults.get(key) != value},
        secrets=() if redactor is None else tuple(sorted(redactor.forms - passing)),
        folder=Path.cwd(),
        environment={key: value for key, value in os.environ.items() if belongs_to_jvm(key)},
        storage=storage,
    )


def belongs_to_session(setting: str) -> bool:
    """Whether each session of a JVM can have its own value of a Spark setting."""
    is_static = setting in _STATIC_SETTINGS or setting.startswith(_STATIC_PREFIXES)
    return setting.startswith(_SESSION_PREFIXES) and not is_static


def belongs_to_jvm(variable: str) -> bool:
    """Whether the JVM, and not only Python code, reads an environment variable."""
    return variable.upper() in _JVM_VARIABLES or variable.startswith(_JVM_PREFIXES)


LOCK_FILE = "held"
"""The name of the file with a command's process id that an engine holds locked, one for each command."""


@dataclass(frozen=True)
class EngineRecord:
    key: str
    version: str
    pid: int  # the process id of its Python process
    jvm_pid: int
    socket: str
    secret: str
    log: str  # the file of Spark's messages

    def save(self) -> None:
        """Writes the record; a reader finds all of it or nothing."""
        replace_file(record_path(self.key), json.dumps(asdict(self)), is_private=True)

    def remove(self) -> None:
        if load_record(self.key) == self:
            record_path(self.key).unlink(missing_ok=True)


def engine_folder() -> Path:
    """Returns the folder of the records; makes it for this user alone."""
    folder = chosen_folder(ENGINE_VARIABLE) or cache_folder() / "engine"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def record_path(key: str) -> Path:
    return engine_folder() / f"{key}.json"


def load_record(key: str) -> EngineRecord | None:
    """Returns the record of an engine; None if there is none, or if another user has written it."""
    path = record_path(key)
    try:
        with path.open(encoding="utf-8") as handle:
            status = os.fstat(handle.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                return None
            return EngineRecord(**json.load(handle))
    except (OSError, ValueError, TypeError):
        return None


def load_records() -> Iterator[EngineRecord]:
    """Yields the records of all engines of this user; none if their folder cannot be made."""
    try:
        paths = sorted(engine_folder().glob("*.json"))
    except OSError:
        return
    for path in paths:
        if (record := load_record(path.stem)) is not None:
            yield record


@dataclass
class _Current:
    guard: Path | None = None
    pool: str | None = None


_current = _Current()


def set_attachment(guard: Path | None, pool: str | None = None) -> None:
    """Records what this process has in an engine; without arguments other than None, that it has nothing.
    `guard`: the file that the engine holds locked until all calls of this process have ended."""
    _current.guard, _current.pool = guard, pool


def find_guard() -> Path | None:
    """Returns the file that an engine holds locked until all calls of this process have ended."""
    return _current.guard


def pool_name(name: str) -> str:
    """Returns the name of a scheduler pool of this process; processes that share a JVM share no pool."""
    return name if _current.pool is None else f"{_current.pool}/{name}"


def is_held(guard: str) -> bool:
    try:
        with Path(guard).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


_LONGEST = 1 << 20


class WireError(OSError):
    """The other side closed the connection, or sent something else than messages."""


class Wire:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lines = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._lines.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise WireError("the connection was closed")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise WireError("the other side sent something else than messages") from error
        if not isinstance(message, dict):
            raise WireError("the other side sent something else than messages")
        return message

    def close(self) -> None:
        self._lines.close()
        self.connection.close()
