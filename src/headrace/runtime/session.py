"""The Spark session of a pipeline: the one that exists, or one that Headrace starts."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConnectUnsupportedError, DeltaNotConfiguredError, SparkStartError, text_of
from headrace.model.secrets import Redactor, is_secret_key
from headrace.runtime import aot
from headrace.runtime.defaults import CATALOG, EXTENSION, build_settings, is_local
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import locked_jars
from headrace.runtime.java import find_java
from headrace.runtime.jvm import SparkJvm, build_command, choose_heap, start_jvm, tail, telling
from headrace.runtime.places import logs_folder
from headrace.runtime.scratch import Scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STOP_TIMEOUT_S = 20.0
"""How long Spark may take to stop before its JVM is killed."""

_END_TIMEOUT_S = 10.0
"""A cluster's manager is told of the end by the JVM's own last steps."""

_LOGS_KEPT = 20

_LONGEST_PATTERN = 100_000
"""Linux takes no variable of more than 128 KB."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningSpark:
    """A session that is ready to work.

    Args:
        spark: The session.
        owned: Whether Headrace has started it; a session of somebody else's is never stopped.
        log_file: Where Spark's own messages go; ``None`` for a session of somebody else's.
        jvm_pid: The process id of its JVM, where Headrace has started it.
    """

    spark: SparkSession
    owned: bool
    log_file: Path | None = None
    jvm_pid: int | None = None
    _close: Callable[[], None] = field(default=lambda: None, repr=False)

    def stop(self) -> None:
        """End what Headrace has started, within a bounded time; a JVM that hangs is killed."""
        self._close()

    def __enter__(self) -> RunningSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def open_spark(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
    memory: str | None = None,
    log_file: Path | None = None,
    redactor: Redactor | None = None,
) -> RunningSpark:
    """The session that this process already has, else a new one.

    A session of somebody else's (``spark-submit``, a notebook) is taken as it is: none of its
    settings are changed.

    Args:
        name: The application's name.
        conf: Spark settings; each overrides Headrace's own choice.
        master: The Spark master; all local cores by default.
        memory: The JVM's heap, as ``-Xmx`` takes it; chosen by the machine by default.
        log_file: Where Spark's messages go; a file in the cache folder by default.
        redactor: Knows what must not stand in that file.

    Raises:
        DeltaNotConfiguredError: The session that exists does not know Delta Lake.
        ConnectUnsupportedError: The session that exists is a Spark Connect session.
        SparkStartError: Spark did not start.
    """
    foreign = _find_foreign()
    if foreign is not None:
        return RunningSpark(foreign, owned=False)
    java, jars = find_java(), ensure_jars("spark")
    cache = aot.find_cache(java, jars)

    def start(*options: str) -> RunningSpark:
        return start_spark(
            name,
            conf=conf or {},
            master=master,
            memory=memory,
            log_file=log_file,
            redactor=redactor,
            extra_options=options,
        )

    if cache is None:
        return start()
    try:
        return start(*aot.use_options(cache))
    except SparkStartError:
        # Java checks a cache only roughly; one that was damaged on disk must cost no more than time.
        running = start()
        aot.discard(cache)
        return running


def start_spark(
    name: str,
    *,
    conf: Mapping[str, str],
    master: str | None = None,
    memory: str | None = None,
    log_file: Path | None = None,
    redactor: Redactor | None = None,
    extra_options: Sequence[str] = (),
    end_timeout_s: float | None = None,
) -> RunningSpark:
    """A new session in a new JVM; `open_spark` is what a caller wants.

    Args:
        end_timeout_s: How long the JVM may take to end after Spark has stopped; none where it is
            local, since nothing is left for it to do that the removal of its folder does not do.
    """
    java, jars = find_java(), ensure_jars("spark")
    scratch = Scratch()
    log = (log_file or _default_log(name)).absolute()
    settings = build_settings(name, master or conf.get("spark.master"), scratch.path, conf, jars)
    master = settings["spark.master"]
    heap = memory or settings.get("spark.driver.memory") or choose_heap()
    settings["spark.driver.memory"] = heap
    # Unpacked native libraries and the like, which a killed JVM would leave behind.
    options = (f"-Djava.io.tmpdir={scratch.folder('tmp')}", *extra_options)
    # A command line is seen by everybody on the machine; these go through the gateway instead.
    secret = {key: settings.pop(key) for key in [*settings] if is_secret_key(key)}
    command = build_command(java, jars, heap=heap, log_file=log, settings=settings, extra_options=options)
    try:
        environment = jvm_environment(master, redactor or Redactor())
        jvm = start_jvm(command, log, environment, meanwhile=_import_pyspark)
        try:
            spark = _connect(jvm, secret)
        except BaseException as error:
            jvm.end(0)
            if isinstance(error, Exception):
                raise _refused(master, error, log) from error
            raise
    except BaseException:
        scratch.remove()
        raise
    if end_timeout_s is None:
        end_timeout_s = 0.0 if is_local(master) else _END_TIMEOUT_S
    close = _Closing(spark, jvm, scratch, end_timeout_s, lambda: aot.make_later(java, jars))
    return RunningSpark(spark, owned=True, log_file=log, jvm_pid=jvm.pid, _close=close)


def _refused(master: str, error: Exception, log: Path) -> SparkStartError:
    """The JVM is there, and would not be what was asked of it: most often the master is wrong or away."""
    said = [line for line in telling(text_of(error)) if not line.startswith("An error occurred")]
    remedy = (
        "headrace doctor" if is_local(master) else "check that the master of `runtime: {master: ..}` answers"
    )
    return SparkStartError(
        f"Spark did not start on {master}",
        facts=[*said[:2], *tail(log, 5), f"log: {log}"],
        remedies=[remedy],
        params={"master": master, "log_file": str(log)},
    )


def _import_pyspark() -> None:
    """Python's part of the start, done while the JVM does its own."""
    import pyspark.java_gateway
    import pyspark.sql  # noqa: F401


def jvm_environment(master: str, redactor: Redactor) -> dict[str, str]:
    """Variables of the JVM beside this process's own."""
    environment = _worker_environment()
    spoken = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if "UTF8" not in spoken.upper().replace("-", ""):
        # In another locale, such as that of a cron job, Java does not see files whose names are not ASCII.
        environment["LC_ALL"] = "C.UTF-8"
    if pattern := redactor.java_pattern(_LONGEST_PATTERN):
        # For the log alone: a command line is seen by everybody on the machine, this is not.
        environment["HEADRACE_SECRETS"] = pattern
    if is_local(master):
        # Spark looks at every network interface otherwise, and warns about what it finds.
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


class _Closing:
    """Stops a session once, within a bounded time."""

    def __init__(
        self,
        spark: SparkSession,
        jvm: SparkJvm,
        scratch: Scratch,
        end_timeout_s: float,
        after: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._jvm = jvm
        self._scratch = scratch
        self._end_timeout_s = end_timeout_s
        self._after = after
        self._done = threading.Lock()

    def __call__(self) -> None:
        if not self._done.acquire(blocking=False):
            return
        stopping = threading.Thread(target=self._stop_spark, daemon=True, name="headrace-spark-stop")
        with _py4j_quiet():
            stopping.start()
            stopping.join(_STOP_TIMEOUT_S)
            self._jvm.end(0 if stopping.is_alive() else self._end_timeout_s)
            stopping.join(5.0)
        _forget_gateway()
        self._scratch.remove()
        self._after()

    def _stop_spark(self) -> None:
        # The JVM may be dead already; there is nothing to stop then.
        with contextlib.suppress(Exception):
            self._spark.stop()


@contextlib.contextmanager
def _py4j_quiet() -> Iterator[None]:
    """Keep py4j from telling users, by the root logger, that a JVM which is being ended has not answered."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.getMessage() != "Exception while sending command."

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _connect(jvm: SparkJvm, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.core.context import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    handshake = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with _environment(handshake), _kept_interrupt():
        # Only the handshake reads them; a child process that saw them would take this JVM for its own.
        gateway = launch_gateway()
    with _environment(_worker_environment()), _kept_interrupt():
        SparkContext._ensure_initialized(gateway=gateway)
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def _worker_environment() -> dict[str, str]:
    """Spark's Python workers are this Python; by default they would be the `python3` of PATH."""
    return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextlib.contextmanager
def _kept_interrupt() -> Iterator[None]:
    """PySpark takes SIGINT for itself, to cancel all jobs; Headrace stops between two batches."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)


def _forget_gateway() -> None:
    """PySpark keeps the gateway of a stopped session, and would talk to a JVM that is gone."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    with SparkContext._lock:
        gateway = SparkContext._gateway
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()


def _find_foreign() -> SparkSession | None:
    """The session that somebody else has made in this process."""
    if _connect_is_active():
        raise ConnectUnsupportedError(
            "this process uses Spark Connect, which gives no access to the driver; Headrace needs"
            " a classic session",
            remedies=["run it with spark-submit, or unset SPARK_REMOTE and let Headrace start Spark"],
        )
    inside_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if not inside_submit and "pyspark" not in sys.modules:
        return None
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None and not inside_submit:
        return None
    with _kept_interrupt():
        spark: SparkSession = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    _check_delta(spark)
    return spark


def _connect_is_active() -> bool:
    if os.environ.get("SPARK_REMOTE") or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        return True
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    return module is not None and module.SparkSession.getActiveSession() is not None


def _check_delta(spark: SparkSession) -> None:
    """Delta's part of a session cannot be added to it afterwards."""
    extensions = (spark.conf.get("spark.sql.extensions", "") or "").split(",")
    catalog = spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    missing = []
    if EXTENSION not in [extension.strip() for extension in extensions]:
        missing.append(f"spark.sql.extensions={EXTENSION}")
    if catalog != CATALOG:
        missing.append(f"spark.sql.catalog.spark_catalog={CATALOG}")
    from py4j.java_gateway import JavaClass

    jvm: Any = spark.sparkContext._jvm
    if not isinstance(jvm.io.delta.sql.DeltaSparkSessionExtension, JavaClass):
        # Spark goes on without an extension whose class it does not find.
        coordinates = (str(jar.coordinate) for jar in locked_jars("spark"))
        wanted = (name for name in coordinates if "delta-spark" in name or "spark-sql-kafka" in name)
        missing.append(f"spark.jars.packages={','.join(wanted)}")
    if missing:
        raise DeltaNotConfiguredError(
            "the Spark session of this process does not know Delta Lake",
            facts=["Headrace changes no settings of a session that it is given"],
            remedies=[
                "start it with   " + " ".join(f"--conf {setting}" for setting in missing),
                "in a script, give the builder of the session the same settings by .config(..)",
            ],
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
