"""Patches of writers, of the catalog and of Delta's own API, for code that may compute and write.

A name is that of a table of the pipeline or of an entry of `tables`, as in reads (`headrace.plan.patches`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.plan.intercept import Interception, suspended
from headrace.plan.names import delta_path
from headrace.runtime.lazy_pyspark import SparkSession

Method = Callable[..., Any]


def spark_name(interception: Interception, session: SparkSession, text: Any) -> Any:
    """The name that Spark knows a table by; ``text`` if it is not a name."""
    if not isinstance(text, str):
        return text
    answer = interception.read_table(session, text, streaming=False)
    return answer.text if answer.path is None else delta_path(answer.path)


def table_for_name(
    interception: Interception, original: Method, self_or_class: Any, sparkSession: Any, tableOrViewName: Any
) -> Any:
    if not interception.acts:
        return original(self_or_class, sparkSession, tableOrViewName)
    session = interception.session or sparkSession
    name = spark_name(interception, session, tableOrViewName)
    with suspended():
        return original(self_or_class, session, name)


def exists(
    interception: Interception, original: Method, self: Any, tableName: str, dbName: str | None = None
) -> Any:
    if not interception.acts or dbName is not None:
        return original(self, tableName, dbName)
    session = interception.session or self._sparkSession
    name = spark_name(interception, session, tableName)
    with suspended():
        return original(session.catalog, name)


def save_as(
    interception: Interception, original: Method, self: Any, name: Any, *args: Any, **more: Any
) -> Any:
    name = spark_name(interception, interception.session or self._spark, name)
    with suspended():
        return original(self, name, *args, **more)


def write_to(
    what: str, interception: Interception, original: Method, self: Any, table: Any, *args: Any, **more: Any
) -> Any:
    interception.refuse_action(f"{what}()")
    return original(self, spark_name(interception, self.sparkSession, table), *args, **more)
