"""Attaches this process to an engine, starts one if there is none, and opens PySpark's side of a session."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil

from headrace.runtime.engine.jvm_client import CLIENT_VARIABLE
from headrace.runtime.engine.record import (
    EngineChoice,
    EngineRecord,
    Wire,
    belongs_to_jvm,
    engine_folder,
    load_record,
    load_records,
    set_attachment,
)
from headrace.runtime.gateway import changed_environment, forget_gateway, kept_interrupt, worker_environment
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.places import logs_folder, replace_file
from headrace.runtime.processes import once, start_detached

_ANSWER_S = 1.0
_REQUEST_S = 3.0  # the time to answer the request for a session; on a busy machine, the answer can be late
_SESSION_S = 15.0  # the time to open a session, also in a JVM that works hard
_START_S = 60.0
_OTHER_START_S = 30.0
"""How long a command waits for another process that is starting the engine; its own JVM takes less time."""

_POLL_S = 0.01
_END_S = 5.0
_REMEDY = "`headrace engine stop` ends it"
_MOST_OTHERS = 1  # so many idle engines with other settings may stay when a new one starts

_LONGEST_FOLDER = 64
"""A socket's path can have about 100 characters, of which the folder of the engine needs 32."""

_MEMORY_BESIDE_HEAP = 1 << 30

_log = logging.getLogger(__name__)


class NoEngineError(Exception):
    """The engine cannot be used; the message is the reason."""


@dataclass(frozen=True)
class Attached:
    record: EngineRecord
    port: int  # the port of the Py4J server that is for this process alone
    secret: str
    tag: str  # the tag of this process's jobs and workers
    pool: str  # the scheduler pool of this process's jobs, which begins the names of its other pools
    guard: Path  # the file that the engine holds locked until all calls of this process have ended
    _wire: Wire

    def detach(self) -> None:
        """Ends the use of the engine; it cleans up by itself."""
        with contextlib.suppress(OSError):
            self._wire.close()


def attach(choice: EngineChoice, meanwhile: Callable[[], None]) -> Attached:
    """Returns a session in the engine for these settings; starts the engine if there is none. `meanwhile`: is
    called while an engine starts or opens the session."""
    key = choice.key
    try:
        if (attached := _try(load_record(key), choice, meanwhile)) is not None:
            return attached
        with _one_starter(key):
            # Another process can have started it meanwhile.
            if (attached := _try(load_record(key), choice, meanwhile)) is not None:
                return attached
            record = _start(key, choice, meanwhile)
        attached = _try(record, choice, meanwhile)
    except OSError as error:
        raise NoEngineError(str(error)) from error
    if attached is None:
        raise NoEngineError("the engine ended at once")
    return attached


def ask(record: EngineRecord, do: str, timeout_s: float = _ANSWER_S) -> dict[str, Any] | None:
    """Returns the answer of an engine to ``status``, ``stop`` or ``stop-idle``. None means that it has ended,
    hangs, or refuses the request."""
    try:
        with contextlib.closing(_connect(record, timeout_s)) as wire:
            wire.send(do=do, secret=record.secret)
            answer = wire.receive()
    except OSError:
        return None
    return answer if answer.pop("ok", False) else None


def stop(record: EngineRecord, timeout_s: float = 30.0) -> bool:
    """Stops an engine; kills it if it does not answer. Returns whether it was running."""
    answered = ask(record, "stop") is not None
    process = _find_process(record)
    if process is not None:
        with contextlib.suppress(psutil.Error):
            if not answered:
                process.kill()
            process.wait(timeout_s)
    record.remove()
    return answered or process is not None


def _find_process(record: EngineRecord) -> psutil.Process | None:
    """Returns the process of an engine if it still runs: the system uses process ids again."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(record.pid)
        words = process.cmdline()
        # The last word is the file with which this engine was started.
        if f"{__package__}.server" in words and Path(words[-1]).name.startswith(f"{record.key}."):
            return process
    return None


def _try(record: EngineRecord | None, choice: EngineChoice, meanwhile: Callable[[], None]) -> Attached | None:
    """Attaches to a running engine; None if it has ended, or if another program has its socket."""
    if record is None or record.version != version("headrace"):
        return None
    try:
        wire = _request(record, choice)
    except TimeoutError:
        raise NoEngineError(f"the engine does not answer; {_REMEDY}") from None
    except OSError:
        # It has ended without removing its record, or the socket is of another program.
        record.remove()
        return None
    if wire is None:
        return None
    try:
        meanwhile()
        wire.connection.settimeout(_SESSION_S)
        opened = wire.receive()
        wire.connection.settimeout(None)
        port, guard = int(opened["port"]), Path(opened["guard"])
        return Attached(record, port, opened["secret"], opened["tag"], opened["pool"], guard, wire)
    except TimeoutError as error:
        wire.close()
        raise NoEngineError(f"the engine is too busy to open a session; {_REMEDY}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        wire.close()
        raise NoEngineError(f"the engine did not open a session: {error}") from error
    except BaseException:
        wire.close()
        raise


def _request(record: EngineRecord, choice: EngineChoice) -> Wire | None:
    """Asks for a session; None if the engine is about to end."""
    wire = _connect(record, _REQUEST_S)
    # Without the values of options, which can be secret.
    words = [Path(sys.argv[0]).name, *(word for word in sys.argv[1:3] if "=" not in word and len(word) < 60)]
    try:
        wire.send(
            do="attach",
            secret=record.secret,
            pid=os.getpid(),
            command=" ".join(words),
            overrides=dict(choice.overrides),
        )
        answer = wire.receive()
        if answer.get("ok"):
            return wire
        reason = answer.get("reason")
        if not answer.get("is_ending"):
            raise NoEngineError(str(reason))
    except BaseException:
        wire.close()
        raise
    wire.close()
    return None


def _connect(record: EngineRecord, timeout_s: float) -> Wire:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(record.socket)
    except BaseException:
        connection.close()
        raise
    return Wire(connection)


@contextlib.contextmanager
def _one_starter(key: str) -> Iterator[None]:
    """Lets one process at a time start an engine; the others wait, and find it."""
    deadline = time.monotonic() + _OTHER_START_S
    with (engine_folder() / f"{key}.lock").open("w") as handle:
        while not _is_locked_now(handle):
            if time.monotonic() > deadline:
                raise NoEngineError("another process is still starting the engine")
            time.sleep(_POLL_S)
        yield


def _is_locked_now(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(key: str, choice: EngineChoice, meanwhile: Callable[[], None]) -> EngineRecord:
    if len(tempfile.gettempdir()) > _LONGEST_FOLDER:
        raise NoEngineError("the path of the temporary folder is too long for a local socket")
    _make_room(choice)
    logs = logs_folder()
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"engine-{key[:8]}.log"
    request = engine_folder() / f"{key}.{secrets.token_hex(4)}.start"
    asked = {
        "key": key,
        "conf": dict(choice.conf),
        "master": choice.master,
        "memory": choice.memory,
        "secrets": choice.secrets,
        "jar_sets": choice.storage.jar_sets,
        "jars": [str(jar) for jar in choice.storage.own_jars],
        "log": str(log),
    }
    replace_file(request, json.dumps(asked), is_private=True)
    try:
        command = [sys.executable, "-m", f"{__package__}.server", str(request)]
        environment = {key: value for key, value in os.environ.items() if belongs_to_jvm(key)}
        process = psutil.Process(start_detached(command, log.with_suffix(".out"), environment))
        imports = threading.Thread(target=meanwhile, name="headrace-imports", daemon=True)
        imports.start()
        deadline = time.monotonic() + _START_S
        while (record := load_record(key)) is None or record.pid != process.pid:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise NoEngineError("the engine did not start")
            if time.monotonic() > deadline:
                process.kill()
                raise NoEngineError("the engine did not start in time")
            time.sleep(_POLL_S)
        imports.join()
    except (OSError, psutil.Error) as error:
        raise NoEngineError(f"the engine could not be started: {error}") from error
    finally:
        request.unlink(missing_ok=True)
    return record


def stop_idle(most: int) -> list[EngineRecord]:
    """Stops idle engines, all but so many of the last used ones. Returns those that end."""
    idle = []
    for record in load_records():
        status = ask(record, "status")
        if status is None:
            if not psutil.pid_exists(record.pid):
                record.remove()
        elif not status["sessions"]:
            idle.append((float(status["idle_s"]), record))
    idle.sort(key=lambda one: one[0])
    # An engine refuses if a command has begun to use it meanwhile.
    return [record for _, record in idle[most:] if ask(record, "stop-idle") is not None]


def _make_room(choice: EngineChoice) -> None:
    """Stops idle engines of other settings, all but the last used."""
    for record in stop_idle(_MOST_OTHERS):
        if (process := _find_process(record)) is not None:
            with contextlib.suppress(psutil.Error):
                process.wait(_END_S)
    if psutil.virtual_memory().available < _bytes(choice.memory) + _MEMORY_BESIDE_HEAP:
        raise NoEngineError("the machine has too little free memory for a JVM that stays")


def _bytes(heap: str) -> int:
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    number, unit = heap.rstrip("bB"), ""
    if number and number[-1].lower() in factor:
        number, unit = number[:-1], number[-1].lower()
    return int(number) * factor.get(unit, 1) if number.isdigit() else 0


def find_engines() -> list[dict[str, Any]]:
    """Returns what the running engines of this user say of themselves."""
    return [found for record in load_records() if (found := ask(record, "status")) is not None]


def stop_engines() -> int:
    """Returns how many engines were running. An engine that did not answer counts, too."""
    return sum(stop(record) for record in list(load_records()))


def open_session(attached: Attached, conf: Mapping[str, str]) -> tuple[SparkSession, Callable[[], None]]:
    """Returns the session of this process, and what ends its use."""
    try:
        # The variables that the user sets for Python workers, as PySpark reads them from settings.
        prefix = "spark.executorEnv."
        own = {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)}
        spark = _session(attached, own, worker_environment(conf))
    except BaseException as error:
        forget_gateway()
        attached.detach()
        if isinstance(error, Exception):
            raise NoEngineError(f"the session could not be used: {error}") from error
        raise
    set_attachment(attached.guard, attached.pool)
    close = once(partial(_detach, attached))
    # PySpark's own methods would stop the engine below the other commands.
    spark.stop = close
    spark.sparkContext.stop = close
    return spark, close


def _detach(attached: Attached) -> None:
    from pyspark.core.context import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        # Its loop looks only twice a second whether it is to end.
        ending = context._accumulatorServer.shutdown
        threading.Thread(target=ending, name="headrace-accumulators", daemon=True).start()
        shutil.rmtree(context._temp_dir, ignore_errors=True)
    attached.detach()
    # Py4J's own closing waits for callbacks, and has hung.
    forget_gateway(is_reachable=False)
    set_attachment(None)


def _session(attached: Attached, variables: Mapping[str, str], workers: Mapping[str, str]) -> SparkSession:
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    handshake = {"PYSPARK_GATEWAY_PORT": str(attached.port), "PYSPARK_GATEWAY_SECRET": attached.secret}
    with changed_environment(handshake), kept_interrupt():
        gateway = launch_gateway()
    session: Any = gateway.entry_point
    with changed_environment(workers), kept_interrupt():
        java_context = gateway.jvm.JavaSparkContext(session.sparkContext())
        # PySpark reads each setting of the JVM, by three calls each, unless it gets others.
        settings = gateway.jvm.SparkConf(False).setMaster(java_context.master()).setAppName("headrace")
        context = SparkContext(gateway=gateway, jsc=java_context, conf=SparkConf(_jconf=settings))
        # Passed to the constructor, each variable would be a call of the JVM.
        own = {key: value for key, value in os.environ.items() if not belongs_to_jvm(key)}
        context.environment.update({**own, CLIENT_VARIABLE: attached.tag, **variables})
        # Otherwise the constructor makes this session the default of the whole JVM.
        stand_in: Any = SimpleNamespace(_sc=SimpleNamespace(_jsc=True))
        SparkSession._instantiatedSession = stand_in
        spark = SparkSession(context, session)
        SparkSession._instantiatedSession = spark
        SparkSession._activeSession = spark
    return spark
