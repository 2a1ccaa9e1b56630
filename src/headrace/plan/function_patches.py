"""Patches of Spark's functions (arguments that only Databricks has, subqueries in texts), and of methods that
take the name of a table."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.errors import FeatureUnsupportedError, TableNotFoundError
from headrace.model.queries import Edit
from headrace.plan.intercept import Answer, Interception, current_interception, suspended
from headrace.plan.modes import Loading, Sending
from headrace.plan.names import delta_path, entry_remedies, split_name
from headrace.plan.sql_queries import read_sql
from headrace.runtime.lazy_pyspark import SparkSession, T
from headrace.sources.requests import RegisteredAvro, registry_decoder
from headrace.syntax.locations import called_name, caller
from headrace.syntax.sql import SqlText

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


SCHEMA_REMEDIES = (
    "give the fields:   from_json(value, 'id LONG, name STRING')",
    "headrace infer TOPIC writes the schema of a topic's records to a file",
)

_SELECT = re.compile(r"\bselect\b", re.IGNORECASE)


def patch_functions() -> None:
    from pyspark.sql import functions as names
    from pyspark.sql.avro import functions as avro
    from pyspark.sql.functions import builtin

    names.from_json = builtin.from_json = _with_schema(builtin.from_json)
    names.expr = builtin.expr = _with_subqueries(builtin.expr)
    avro.from_avro = _with_registry(avro.from_avro)


def call_with_texts(
    interception: Interception, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a method whose arguments are texts of expressions, or one list of them."""
    read = functools.partial(_read_expression, interception)
    given = [list(map(read, one)) if isinstance(one, list) else read(one) for one in args]
    named = {key: read(value) for key, value in kwargs.items()}
    # PySpark's `where` calls `filter`.
    with suspended():
        return original(self, *given, **named)


def _read_expression(interception: Interception, text: Any) -> Any:
    """Returns the text of an expression. Its subqueries are edited: they read tables as the query does."""
    if not isinstance(text, str) or not _SELECT.search(text) or isinstance(interception.mode, Loading):
        return text
    select = "SELECT "
    sql = SqlText(text, caller(interception.root)).with_edits(Edit(0, 0, select)).with_edits()
    return read_sql(interception, interception.current_session(), sql).edited.removeprefix(select)


def _with_subqueries(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def expr(str: Any) -> Any:
        interception = current_interception()
        return original(str if interception is None else _read_expression(interception, str))

    return expr


def _with_schema(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_json(col: Any, schema: Any = None, options: Any = None) -> Any:
        interception = current_interception()
        if interception is not None and schema is None:
            raise FeatureUnsupportedError(
                f"this version does not support {called_name('from_json')} without a schema",
                location=caller(interception.root),
                facts=["Databricks infers the schema, and changes it while the stream runs"],
                remedies=SCHEMA_REMEDIES,
                params={"what": "from_json"},
            )
        return original(col, schema, options)

    return from_json


def _with_registry(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_avro(
        data: Any,
        jsonFormatSchema: Any = None,
        options: Any = None,
        *more: Any,
        subject: Any = None,
        schemaRegistryAddress: Any = None,
    ) -> Any:
        if more or isinstance(options, str):
            # By position: the column, the subject, the address, and the options.
            subject, schemaRegistryAddress = jsonFormatSchema, options
            jsonFormatSchema, options = None, more[0] if more else None
        decode = registry_decoder()
        if decode is None or (subject is None and schemaRegistryAddress is None):
            return original(data, jsonFormatSchema, options)
        return decode(
            RegisteredAvro(
                data=data,
                schema=jsonFormatSchema,
                subject=subject,
                address=schemaRegistryAddress,
                options=dict(options or {}),
            )
        )

    return from_avro


def accepting_numbers(create: Callable[..., Any]) -> Callable[..., Any]:
    """A `createDataFrame` that puts an integer into a column of FLOAT or DOUBLE, as Spark Connect does.

    Spark's own pipelines and Databricks run queries over Spark Connect; a classic session refuses the value.
    """

    @functools.wraps(create)
    def create_frame(*args: Any, **kwargs: Any) -> Any:
        from pyspark.errors import PySparkTypeError

        try:
            return create(*args, **kwargs)
        except PySparkTypeError:
            bound = inspect.signature(create).bind(*args, **kwargs)
            data, schema = bound.arguments["data"], bound.arguments.get("schema")
            table = _convert(data, schema) if isinstance(data, list | tuple) else None
            if table is None:
                raise
            bound.arguments["data"] = table
            return create(*bound.args, **bound.kwargs)

    return create_frame


def _convert(data: list[Any] | tuple[Any, ...], schema: Any) -> Any:
    """The rows as an Arrow table; ``None`` if a value does not fit into its column."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.conversion import LocalDataToArrowConversion

    with suppress(PySparkException, pa.ArrowException, ValueError, TypeError):
        struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
        if isinstance(struct, T.StructType):
            return LocalDataToArrowConversion.convert(data, struct, False)
    return None
