"""The parts of an engine's JVM that belong to one command: a session, a Py4J server, and threads.

All of it is inherited from the thread that starts the Py4J server: its group of threads, which tells when the
calls of the command have ended, the tag of its jobs, and its active session.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import secrets
import shutil
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from headrace.runtime.engine.record import LOCK_FILE
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.processes import is_running

CLIENT_VARIABLE = "HEADRACE_ENGINE_CLIENT"  # set in the Python workers of a command, so that they end with it
_POLL_S = 0.02
_STREAM_THREAD = "stream execution thread"
_MOST_THREADS = 1000
_FAILS_S = 30.0  # how long each request may fail before the JVM is killed

_STREAMS_AFTER_S = 1.0
"""The batch of a command that has ended fails at its next call of Python; only then streams are stopped."""


_PROPERTY = re.compile(r"<property>.*?</property>", re.DOTALL)
_BY_CODE = "<source>programmatically</source>"
_WAREHOUSE = "<name>hive.metastore.warehouse.dir</name>"


class JvmClient:
    def __init__(
        self,
        spark: SparkSession,
        jvm_pid: int,
        folder: Path,
        tag: str,
        overrides: Mapping[str, str],
        *,
        pid: int,
        pool: str,
    ) -> None:
        self.tag = tag
        self.pool = pool
        self.secret = secrets.token_hex(32)
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._context: Any = spark.sparkContext._jsc.sc()
        self._jvm_pid = jvm_pid
        self._folder = folder / tag
        self._folder.mkdir()
        self.guard = self._folder / LOCK_FILE
        """Locked until the JVM has ended all calls of the command."""
        self._held = self.guard.open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._held.write(str(pid))
        self._held.flush()
        self._session = self._open_session(spark, overrides)
        self._group: Any = self._jvm.java.lang.ThreadGroup(tag)
        self._server = self._start_server(spark)

    @property
    def port(self) -> int:
        return int(self._server.getListeningPort())

    def _open_session(self, spark: SparkSession, overrides: Mapping[str, str]) -> Any:
        """Returns a session with a catalog, views and cached frames of its own."""
        base = spark._jsparkSession
        options = {"spark.sql.warehouse.dir": (self._folder / "warehouse").as_uri()}
        session = self._jvm.org.apache.spark.sql.classic.SparkSession(
            self._context,
            self._jvm.scala.Option.empty(),
            self._jvm.scala.Some(base.sessionState()),
            base.extensions(),
            self._jvm.PythonUtils.toScalaMap(options),
            self._jvm.PythonUtils.toScalaMap({}),
        )
        session.sharedState()
        for key, value in overrides.items():
            session.conf().set(key, value)
        return session

    def _start_server(self, spark: SparkSession) -> Any:
        """Starts the command's Py4J server; must run in a thread that ends with the command."""
        jvm = self._jvm
        builder = getattr(jvm.py4j, "ClientServer$ClientServerBuilder")(self._session)
        builder = builder.authToken(self.secret).javaPort(0).autoStartJavaServer(False)
        server = builder.javaAddress(jvm.java.net.InetAddress.getLoopbackAddress()).build().getJavaServer()
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        base = jvm.java.lang.Class.forName("py4j.GatewayServer", True, loader)
        # Py4J starts a thread in the group of the thread that asks for it; this is the first one of a group.
        start = base.getDeclaredMethod("startSocket", self._gateway.new_array(jvm.java.lang.Class, 0))
        start.setAccessible(True)
        start.invoke(server, self._gateway.new_array(jvm.java.lang.Object, 0))
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._session)
        spark.sparkContext.addJobTag(self.tag)
        # Otherwise the jobs of a command would wait for the jobs of an earlier command.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.pool)
        thread = jvm.java.lang.Thread(self._group, server, self.tag)
        thread.setDaemon(True)
        thread.start()
        return server

    def end(self) -> None:
        """Ends everything of the command; returns when none of its calls runs any more."""
        for step in (partial(self._context.cancelJobsWithTag, self.tag), self._server.shutdown):
            with contextlib.suppress(Exception):
                step()
        self._await_calls()
        for step in (self._forget, self._remove_pools):
            with contextlib.suppress(Exception):
                step()
        self._end_workers()
        self.release()

    def release(self) -> None:
        """Lets the next command take the leases of this one, and removes its files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._held.close()

    def _await_calls(self) -> None:
        """Waits until no call of the command runs, or the JVM has ended. A JVM that only fails is killed:
        nothing else would tell that the calls have ended."""
        started = answered = time.monotonic()
        while is_running(self._jvm_pid):
            try:
                if not self.has_calls():
                    return
                self._context.cancelJobsWithTag(self.tag)
                if time.monotonic() - started > _STREAMS_AFTER_S:
                    self._stop_streams()
                answered = time.monotonic()
            except Exception:
                if time.monotonic() - answered > _FAILS_S:
                    with contextlib.suppress(psutil.Error):
                        psutil.Process(self._jvm_pid).kill()
            time.sleep(_POLL_S)

    def has_calls(self) -> bool:
        """Whether a thread of the command still runs a call or a stream. Pools of threads that a call has
        created are Spark's, and stay."""
        threads = self._gateway.new_array(self._jvm.java.lang.Thread, _MOST_THREADS)
        count = self._group.enumerate(threads)
        return any(self._is_call(threads[at]) for at in range(count))

    def _is_call(self, thread: Any) -> bool:
        if str(thread.getName()).startswith(_STREAM_THREAD):
            return bool(thread.isAlive())
        frames = thread.getStackTrace()
        count = len(frames)
        # Below the run method of the thread itself.
        lowest = [str(frames[at].getClassName()) for at in range(max(0, count - 3), count)]
        return any(name.startswith("py4j.") for name in lowest)

    def _stop_streams(self) -> None:
        # Each flow has a session of its own, with its own list of queries; they share this one.
        active = self._session.sharedState().activeStreamingQueries()
        for query in filter(None, [active.get(key) for key in list(active)]):
            stopping = threading.Thread(target=_quietly, args=(query.stop,), daemon=True)
            stopping.start()
            stopping.join(1.0)

    def _forget(self) -> None:
        """Removes what the Spark application keeps of the session."""
        state = self._session.sharedState()
        state.cacheManager().clearCache()
        listener = state.statusStore().listener()
        if listener.isDefined():
            self._context.listenerBus().removeListener(listener.get())
        # A table could be removed and made again before the next command.
        self._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def _remove_pools(self) -> None:
        root = self._context.taskScheduler().rootPool()
        pools = root.schedulableQueue().toArray()
        for at in range(len(pools)):
            name = str(pools[at].name())
            if name == self.pool or name.startswith(f"{self.pool}/"):
                root.removeSchedulable(pools[at])

    def _end_workers(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._jvm_pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(CLIENT_VARIABLE) == self.tag:
                        process.kill()


def find_shared_state(spark: SparkSession) -> str:
    """Returns a text for what all sessions of a JVM share, and a command can change."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext._jsc.sc()
    writer = jvm.java.io.StringWriter()
    context.hadoopConfiguration().writeXml(writer)
    # Hadoop adds defaults of its own whenever it loads a class that has some, and Spark its warehouse.
    found = _PROPERTY.findall(writer.toString())
    changed = sorted(one for one in found if _BY_CODE in one and _WAREHOUSE not in one)
    parts = (changed, context.listFiles(), context.listJars(), context.isStopped())
    return hashlib.sha256(repr([str(part) for part in parts]).encode()).hexdigest()


def unpersist_all(spark: SparkSession) -> None:
    """Removes the RDDs that commands have persisted; cached tables are removed with their session."""
    persisted = spark.sparkContext._jsc.getPersistentRDDs()
    for rdd in list(persisted.values()):
        rdd.unpersist(False)


def used_heap(spark: SparkSession) -> float:
    """Returns the share of the JVM's heap that a garbage collection leaves."""
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return float(runtime.totalMemory() - runtime.freeMemory()) / float(runtime.maxMemory())


def _quietly(work: Any) -> None:
    with contextlib.suppress(Exception):
        work()
