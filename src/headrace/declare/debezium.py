"""`debezium`: change events of a DataFrame in query functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.reads import declared_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def debezium(
    df: DataFrame,
    schema: str | StructType | None = None,
    *,
    timestamp_unit: Literal["millis", "micros", "nanos"] | None = None,
    decimals: Literal["precise", "string"] | None = None,
) -> DataFrame:
    """The rows of Debezium's change events, ready for `create_auto_cdc_flow`.

    The result has the columns of the row (after the change; before it for a delete), ``_op`` (``c``, ``u``,
    ``d``, ``r`` for a snapshot, ``t`` for a truncate), ``_position`` (the position in the database's log, as
    text that sorts in the order of the changes), ``_changed_at`` (the time of the change) and all other
    columns of ``df``, such as ``_source``. Tombstones are skipped: the event of the delete comes before them.

    Args:
        df: A DataFrame with a column ``value`` that holds change events in JSON, with or without the schema
            part; or with the columns ``before``, ``after``, ``source`` and ``op``, as from Avro.
        schema: The columns of the database's table, if ``df`` has JSON: a DDL string, a ``StructType``, or
            a file of either.
        timestamp_unit: The unit of numbers in ``TIMESTAMP`` columns, for JSON without the schema part.
        decimals: How text in ``DECIMAL`` columns is read, for JSON without the schema part: ``precise`` is
            base64, as ``decimal.handling.mode=precise`` writes it, with the scale of the declared type;
            ``string`` is a decimal number.

    Example:
        >>> import headrace as hr
        >>> @hr.temporary_view
        ... def customer_changes():
        ...     return hr.debezium(hr.read_kafka("shop.public.customers"), "id LONG, email STRING")
    """
    from headrace.sources.debezium import ENVELOPE

    arguments = arguments_of("hr.debezium")
    if set(ENVELOPE) <= set(df.columns):
        if schema is not None:
            problem = "is not used: the DataFrame has decoded change events"
            raise arguments.invalid("schema", problem, "remove schema")
        return _from_columns(df)
    if "value" not in df.columns:
        raise arguments.invalid(
            "df",
            f"has neither a column value nor the columns {', '.join(ENVELOPE)}",
            'write hr.debezium(hr.read_kafka("topic"), schema="id LONG, name STRING")',
        )
    return _from_json(df, arguments, schema, timestamp_unit, decimals)


def _from_columns(df: DataFrame) -> DataFrame:
    """The rows of events whose parts are columns."""
    from headrace.sources.debezium import ENVELOPE, flatten_columns

    parts = (*ENVELOPE, "ts_ms", "ts_us", "ts_ns", "transaction")
    kept = [name for name in df.columns if name not in parts]
    return df.dropna("all", subset=list(ENVELOPE)).select(*flatten_columns(df.schema, kept))


def _from_json(
    df: DataFrame, arguments: Arguments, schema: Any, timestamp_unit: Any, decimals: Any
) -> DataFrame:
    """The rows of events in JSON, in the column ``value``."""
    from pyspark.sql import functions as F

    from headrace.sources.debezium import ADDED, build_debezium_decoder
    from headrace.sources.records import decode_or_stop

    fields = declared_schema(arguments, schema)
    with arguments.located():
        decoder = build_debezium_decoder(
            "hr.debezium", fields, timestamp_unit=timestamp_unit, decimals=decimals
        )
    coordinates = ("topic", "partition", "offset") if "_source" in df.columns else ()
    record = decode_or_stop(decoder, F.col("value"), at=[F.col(f"_source.{name}") for name in coordinates])
    names = (*decoder.schema.fieldNames(), *ADDED)
    kept = [name for name in df.columns if name not in ("key", "value") and name not in names]
    return (
        df.where(F.col("value").isNotNull())
        .select(record.alias("_event"), *kept)
        .select(*(F.col(f"_event.`{name}`") for name in names), *kept)
    )
