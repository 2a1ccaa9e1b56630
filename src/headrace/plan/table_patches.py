"""Replaces methods that take the name of a table: of writers, of the catalog, and of Delta's own API.

A name means a table of the pipeline or an entry of `tables`, as in reads (`headrace.plan.patches`). Only code
that may compute and write calls these methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.errors import FeatureUnsupportedError, TableNotFoundError
from headrace.plan.intercept import Answer, Interception, suspended
from headrace.plan.modes import Sending
from headrace.plan.names import delta_path, entry_remedies, split_name
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.syntax.locations import caller

Method = Callable[..., Any]


def table_for_name(
    interception: Interception, original: Method, self_or_class: Any, sparkSession: Any, tableOrViewName: Any
) -> Any:
    if not interception.acts or not isinstance(tableOrViewName, str):
        return original(self_or_class, sparkSession, tableOrViewName)
    session = interception.session or sparkSession
    answer = interception.read_table(session, tableOrViewName, streaming=False)
    with suspended():
        if answer.path is not None:
            return self_or_class.forPath(session, answer.path)
        return original(self_or_class, session, answer.text)


def exists(
    interception: Interception, original: Method, self: Any, tableName: str, dbName: str | None = None
) -> Any:
    if not interception.acts or dbName is not None:
        return original(self, tableName, dbName)
    session = interception.session or self._sparkSession
    answer = interception.read_table(session, tableName, streaming=False)
    with suspended():
        if answer.path is not None:
            from delta.tables import DeltaTable

            return DeltaTable.isDeltaTable(session, answer.path)
        return original(session.catalog, answer.text)


def save_as(
    interception: Interception,
    original: Method,
    self: Any,
    name: str,
    format: str | None = None,
    mode: str | None = None,
    partitionBy: str | list[str] | None = None,
    **options: Any,
) -> Any:
    session = interception.session or self._spark
    answer = interception.read_table(session, name, streaming=False)
    with suspended():
        if answer.path is not None:
            return self.save(answer.path, format or "delta", mode, partitionBy, **options)
        if isinstance(interception.mode, Sending):
            _refuse_unkept(interception, session, name, answer.text)
        return original(self, answer.text, format, mode, partitionBy, **options)


def insert_into(
    interception: Interception, original: Method, self: Any, tableName: str, overwrite: bool | None = None
) -> Any:
    session = interception.session or self._spark
    answer = interception.read_table(session, tableName, streaming=False)
    with suspended():
        return original(self, _name_of(answer), overwrite)


def write_to(interception: Interception, original: Method, self: Any, table: str) -> Any:
    interception.refuse_write("writeTo()")
    session = interception.session or self.sparkSession
    answer = interception.read_table(session, table, streaming=False)
    with suspended():
        if answer.path is None and isinstance(interception.mode, Sending):
            _refuse_unkept(interception, session, table, answer.text)
        return original(self, _name_of(answer))


def merge_into(interception: Interception, original: Method, self: Any, table: str, condition: Any) -> Any:
    interception.refuse_write("mergeInto()")
    session = interception.session or self.sparkSession
    answer = interception.read_table(session, table, streaming=False)
    if answer.path is None:
        with suspended():
            return original(self, answer.text, condition)
    # The condition names the table's columns with the name of the table, which the path does not have.
    raise FeatureUnsupportedError(
        f"mergeInto() of `{table}`, which `tables` maps to a path",
        location=caller(interception.root),
        facts=["nothing was written"],
        remedies=[
            f'merge with Delta:   DeltaTable.forName(spark, "{table}").alias("t").merge(ROWS, CONDITION)',
            f'or with SQL:   spark.sql("MERGE INTO {table} ..")',
        ],
        params={"table": table, "path": answer.path},
    )


def _name_of(answer: Answer) -> str:
    return answer.text if answer.path is None else delta_path(answer.path)


def _refuse_unkept(interception: Interception, session: SparkSession, name: str, text: str) -> None:
    """Refuse a new table that only the catalog of this process would know: it ends with the process."""
    is_kept = session.conf.get("spark.sql.catalogImplementation") == "hive"
    if is_kept or len(split_name(name) or ()) > 2 or session.catalog.tableExists(text):
        return
    raise TableNotFoundError(
        f"the function of a sink writes the table `{name}`, which has no path",
        location=caller(interception.root),
        facts=["nothing was written: the catalog of this process ends with it"],
        remedies=list(entry_remedies(name, interception.settings)),
        params={"table": name, "name": name},
    )
