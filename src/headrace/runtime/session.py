"""The Spark session of a pipeline: the session of this process, or one that Headrace starts."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

from headrace.errors import ConnectUnsupportedError, DeltaNotConfiguredError, SparkStartError, text_of
from headrace.model.secrets import Redactor, is_secret_key
from headrace.runtime import aot
from headrace.runtime.defaults import CATALOG, EXTENSION, build_settings, is_local, local_files
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.gateway import (
    changed_environment,
    forget_gateway,
    import_pyspark,
    kept_interrupt,
    py4j_quiet,
    worker_environment,
)
from headrace.runtime.jars import find_java, locale_variables, locked_jars
from headrace.runtime.jvm import SparkJvm, build_command, choose_heap, error_lines, start_jvm, tail
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.places import Scratch, logs_folder
from headrace.runtime.processes import once
from headrace.runtime.storage_support import NO_STORAGE, StorageSupport

_STOP_TIMEOUT_S = 20.0  # the time that Spark has to stop before its JVM is killed
_LOCAL_STOP_TIMEOUT_S = 5.0  # the same for a local master, which has nothing to hand back

_END_TIMEOUT_S = 10.0
"""The time that the JVM of a cluster's driver has to end: its last steps inform the cluster manager."""

_LOGS_KEPT = 20

_LONGEST_PATTERN = 100_000  # Linux takes no variable of more than 128 KB
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningSpark:
    spark: SparkSession
    owned: bool  # whether Headrace has started it; Headrace never stops a session of the user
    log_file: Path | None = None  # the file of Spark's messages, or ``None`` for a session of the user
    jvm_pid: int | None = None  # the process id of its JVM, or ``None`` for a session of the user
    in_engine: bool = False  # whether it is in an engine, the JVM that commands share
    _close: Callable[[], None] = field(default=lambda: None, repr=False)

    def stop(self) -> None:
        """Stops the session if Headrace has started it; kills its JVM after a timeout."""
        self._close()

    def __enter__(self) -> RunningSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True)
class SparkRequest:
    name: str
    conf: Mapping[str, str]
    master: str | None = None
    memory: str | None = None
    log_file: Path | None = None
    redactor: Redactor | None = None
    storage: StorageSupport = NO_STORAGE


def open_spark(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
    memory: str | None = None,
    log_file: Path | None = None,
    redactor: Redactor | None = None,
    shared: bool = True,
    storage: StorageSupport = NO_STORAGE,
) -> RunningSpark:
    """Returns the session of this process, or opens one if there is none: in an engine, or in a new JVM. The
    settings of a session of the user (``spark-submit``, a notebook) are not changed. `storage`: what the
    object storage of the pipeline needs."""
    asked = SparkRequest(
        name, {**(conf or {}), **storage.settings}, master, memory, log_file, redactor, storage
    )
    running = _open(asked, shared)
    if storage is NO_STORAGE:
        return running
    try:
        end_sharing = storage.share(running.spark, running.owned)
    except BaseException:
        running.stop()
        raise

    def close() -> None:
        end_sharing()
        running.stop()

    return replace(running, _close=once(close))


def _open(asked: SparkRequest, shared: bool) -> RunningSpark:
    foreign = _find_foreign()
    if foreign is not None:
        _check_storage(foreign, asked.storage)
        return RunningSpark(foreign, owned=False)
    if shared and (found := _attach(asked)) is not None:
        return found
    cache = aot.find_cache(find_java(), ensure_jars("spark"))
    if cache is None:
        return start_spark(asked)
    try:
        return start_spark(asked, extra_options=aot.use_options(cache))
    except SparkStartError:
        # Java does not check a cache completely; a damaged one must only cost time.
        running = start_spark(asked)
        aot.discard(cache)
        return running


def _attach(asked: SparkRequest) -> RunningSpark | None:
    """Returns a session in an engine; None if the command needs a JVM of its own, or there is no engine."""
    from headrace.runtime.engine.client import NoEngineError, attach, open_session
    from headrace.runtime.engine.record import choose_engine

    try:
        choice = choose_engine(asked.conf, asked.master, asked.memory, asked.redactor, asked.storage)
        if choice is None:
            return None
        ensure_jars("spark")
        asked.storage.ensure_jars()
        attached = attach(choice, meanwhile=import_pyspark)
        spark, close = open_session(attached, choice.conf)
    except (NoEngineError, OSError) as error:
        _log.warning("The engine was not used: %s. This command starts its own JVM.", error)
        return None
    record = attached.record
    return RunningSpark(
        spark, owned=True, log_file=Path(record.log), jvm_pid=record.jvm_pid, in_engine=True, _close=close
    )


def start_spark(
    asked: SparkRequest, *, extra_options: Sequence[str] = (), end_timeout_s: float | None = None
) -> RunningSpark:
    """Starts a session in a new JVM; callers use `open_spark`. `end_timeout_s`: the time that the JVM has to
    end after Spark has stopped. By default a local JVM is killed at once: its only remaining task would be to
    remove its folder."""
    java, jars = find_java(), ensure_jars("spark")
    # Last: the AOT cache is valid for a class path that begins with its own.
    all_jars = (*jars, *asked.storage.ensure_jars())
    scratch = Scratch()
    log = (asked.log_file or _default_log(asked.name)).absolute()
    named_master = asked.master or asked.conf.get("spark.master")
    settings = build_settings(asked.name, named_master, scratch.path, asked.conf, all_jars)
    master = settings["spark.master"]
    if is_local(master):
        settings = local_files(settings) | settings
    heap = asked.memory or settings.get("spark.driver.memory") or choose_heap()
    settings["spark.driver.memory"] = heap
    # For unpacked native libraries, which a killed JVM would leave behind.
    options = (f"-Djava.io.tmpdir={scratch.folder('tmp')}", *extra_options)
    # Every user of the machine can read a command line; secrets go through the gateway.
    secret = {key: settings.pop(key) for key in [*settings] if is_secret_key(key)}
    command = build_command(java, all_jars, heap=heap, log_file=log, settings=settings, extra_options=options)
    try:
        environment = jvm_environment(settings, asked.redactor or Redactor())
        jvm = start_jvm(command, log, environment, meanwhile=import_pyspark)
        try:
            spark = _connect(jvm, secret, worker_environment(settings))
        except BaseException as error:
            jvm.end(0)
            if isinstance(error, Exception):
                raise _start_error(master, error, log) from error
            raise
    except BaseException:
        scratch.remove()
        raise
    stop_timeout_s, default_s = (
        (_LOCAL_STOP_TIMEOUT_S, 0.0) if is_local(master) else (_STOP_TIMEOUT_S, _END_TIMEOUT_S)
    )
    timeout_s = default_s if end_timeout_s is None else end_timeout_s

    def close() -> None:
        _stop(spark, jvm, scratch, stop_timeout_s, timeout_s)
        aot.make_later(java, jars)

    return RunningSpark(spark, owned=True, log_file=log, jvm_pid=jvm.pid, _close=once(close))


def _start_error(master: str, error: Exception, log: Path) -> SparkStartError:
    """Returns the error of a session that did not start in a running JVM: mostly the master is wrong."""
    reasons = [line for line in error_lines(text_of(error)) if not line.startswith("An error occurred")]
    remedy = (
        "headrace doctor" if is_local(master) else "check that the master of `runtime: {master: ..}` answers"
    )
    return SparkStartError(
        f"Spark did not start on {master}",
        facts=[*reasons[:2], *tail(log, 5), f"log: {log}"],
        remedies=[remedy],
        params={"master": master, "log": str(log)},
    )


def jvm_environment(settings: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Returns the variables of the JVM in addition to those of this process."""
    environment = {**worker_environment(settings), **locale_variables()}
    if pattern := redactor.java_pattern(_LONGEST_PATTERN):
        # For the log. Every user of the machine can read a command line, but not these variables.
        environment["HEADRACE_SECRETS"] = pattern
    if is_local(settings["spark.master"]):
        # Otherwise Spark looks up the network interfaces, and writes warnings.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


def _stop(
    spark: SparkSession, jvm: SparkJvm, scratch: Scratch, stop_timeout_s: float, end_timeout_s: float
) -> None:

    def stop_spark() -> None:
        # The JVM may have ended already.
        with contextlib.suppress(Exception):
            spark.stop()

    stopping = threading.Thread(target=stop_spark, daemon=True, name="headrace-spark-stop")
    with py4j_quiet():
        stopping.start()
        stopping.join(stop_timeout_s)
        jvm.end(0 if stopping.is_alive() else end_timeout_s)
        stopping.join(5.0)
    forget_gateway()
    scratch.remove()


def _connect(jvm: SparkJvm, settings: Mapping[str, str], workers: Mapping[str, str]) -> SparkSession:
    from pyspark.core.context import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    handshake = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with changed_environment(handshake), kept_interrupt():
        # Only for the handshake: a child process with these variables would use this JVM.
        gateway = launch_gateway()
    with changed_environment(workers), kept_interrupt():
        SparkContext._ensure_initialized(gateway=gateway)
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def _find_foreign() -> SparkSession | None:
    """Returns the session that the user has made in this process, or None."""
    if _connect_is_active():
        raise ConnectUnsupportedError(
            "this process has a Spark Connect session; Headrace needs a classic Spark session",
            remedies=["run it with spark-submit, or unset SPARK_REMOTE so that Headrace starts Spark"],
        )
    inside_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not inside_submit and "pyspark" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None and not inside_submit:
        return None
    with kept_interrupt():
        spark: SparkSession = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    _check_delta(spark)
    return spark


def _connect_is_active() -> bool:
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    is_set = os.environ.get("SPARK_REMOTE") or "SPARK_CONNECT_MODE_ENABLED" in os.environ
    return bool(is_set or (module is not None and module.SparkSession.getActiveSession() is not None))


def _check_delta(spark: SparkSession) -> None:
    """Raises an error if a session has no Delta Lake, which cannot be added later."""
    extensions = (spark.conf.get("spark.sql.extensions", "") or "").split(",")
    missing = []
    if EXTENSION not in [extension.strip() for extension in extensions]:
        missing.append(f"spark.sql.extensions={EXTENSION}")
    if spark.conf.get("spark.sql.catalog.spark_catalog", "") != CATALOG:
        missing.append(f"spark.sql.catalog.spark_catalog={CATALOG}")
    if not _has_class(spark, "io.delta.sql.DeltaSparkSessionExtension"):
        # Spark ignores an extension if it does not find its class.
        coordinates = (str(jar.coordinate) for jar in locked_jars("spark"))
        wanted = (name for name in coordinates if "delta-spark" in name or "spark-sql-kafka" in name)
        missing.append(f"spark.jars.packages={','.join(wanted)}")
    if missing:
        raise _not_configured(
            "has no Delta Lake",
            missing,
            "start it with   " + " ".join(f"--conf {setting}" for setting in missing),
            "in a script, pass the same settings to the builder of the session with .config(..)",
        )


def _check_storage(spark: SparkSession, storage: StorageSupport) -> None:
    """Raises an error if a session would write to object storage without what fences a second writer."""
    wrong = [key for key in storage.required if spark.conf.get(key, None) != storage.settings[key]]
    missing = [f"--conf {key}={storage.settings[key]}" for key in wrong]
    if storage.marker and not _has_class(spark, storage.marker):
        missing.append(f"--jars {','.join(map(str, storage.ensure_jars()))}")
    if missing:
        problem = "cannot write to this object storage safely"
        raise _not_configured(problem, missing, "start it with   " + " ".join(missing))


def _has_class(spark: SparkSession, name: str) -> bool:
    from py4j.java_gateway import JavaClass

    return isinstance(reduce(getattr, name.split("."), spark.sparkContext._jvm), JavaClass)


def _not_configured(problem: str, missing: Sequence[str], *remedies: str) -> DeltaNotConfiguredError:
    return DeltaNotConfiguredError(
        f"the Spark session of this process {problem}",
        facts=["Headrace does not change the settings of an existing session"],
        remedies=remedies,
        params={"missing": missing},
    )


def _default_log(name: str) -> Path:
    folder = logs_folder()
    folder.mkdir(parents=True, exist_ok=True)
    logs = sorted(folder.glob("spark-*.log*"), key=lambda path: path.stat().st_mtime)
    for old in logs[:-_LOGS_KEPT]:
        old.unlink(missing_ok=True)
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    return folder / f"spark-{safe}-{os.getpid()}.log"
