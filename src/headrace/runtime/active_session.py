"""The active session of Spark, which functions without a session argument use.

PySpark holds one for the process and the JVM one for each thread. `createDataFrame` makes its session the
active one in both, so a later caller of `getActiveSession()` would get a session of Headrace's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_one_at_a_time = threading.Lock()


@contextmanager
def kept_active_session(session: SparkSession) -> Iterator[None]:
    """Restore the active session at the end of the block."""
    from pyspark.sql.session import SparkSession as ClassicSession

    jvm: Any = session._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    in_python, in_java = ClassicSession._activeSession, sessions.getActiveSession()
    try:
        yield
    finally:
        ClassicSession._activeSession = in_python
        if in_java.isDefined():
            sessions.setActiveSession(in_java.get())
        else:
            sessions.clearActiveSession()


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    """Make a session the active session of this thread for the block."""
    jvm: Any = session._jvm
    with kept_active_session(session):
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
        yield


def new_frame(session: SparkSession, data: Any, schema: StructType | None = None) -> DataFrame:
    """What `createDataFrame` returns; the active session stays as it is."""
    with _one_at_a_time, kept_active_session(session):
        return session.createDataFrame(data, schema)
