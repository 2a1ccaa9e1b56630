"""PySpark's side of a session in an engine."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from headrace.runtime.engine.choice import belongs_to_jvm
from headrace.runtime.engine.client import Attached, NoEngineError
from headrace.runtime.engine.jvm_client import CLIENT_VARIABLE
from headrace.runtime.engine.record import set_attachment
from headrace.runtime.gateway import changed_environment, forget_gateway, kept_interrupt, worker_environment
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.processes import once


def open_session(attached: Attached, conf: Mapping[str, str]) -> tuple[SparkSession, Callable[[], None]]:
    """Returns the session of this process, and what ends its use."""
    try:
        # The variables that the user sets for Python workers, as PySpark reads them from settings.
        prefix = "spark.executorEnv."
        own = {key.removeprefix(prefix): value for key, value in conf.items() if key.startswith(prefix)}
        spark = _connect(attached, own, worker_environment(conf))
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


def _connect(attached: Attached, variables: Mapping[str, str], workers: Mapping[str, str]) -> SparkSession:
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
