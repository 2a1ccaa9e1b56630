"""Rejected rows as the quarantine table keeps them, and as a replay reads them back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from headrace.model.names import quoted_column, quoted_path
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType, T
from headrace.sources.parts import ROW_JSON
from headrace.sources.registry import RECORD, widest_coordinates

REASONS = "__headrace_reasons"  # the column with the names of the expectations that a row fails
_SOURCE = f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in RECORD.items())}>"

COLUMNS = f"""
    id STRING COMMENT 'identifies the row in this table',
    state STRING COMMENT 'quarantined, replaying, replayed or discarded',
    reasons ARRAY<STRUCT<kind: STRING, name: STRING, message: STRING>> COMMENT 'why the row was rejected',
    source {_SOURCE} COMMENT 'the original record, where the row still has it',
    row STRING COMMENT 'the row that the query returned, as JSON',
    pipeline STRING,
    flow STRING,
    checkpoint STRING COMMENT 'the id of the checkpoint of the batch that rejected the row',
    batch BIGINT COMMENT 'the batch that rejected the row',
    update STRING COMMENT 'the update in which it ran',
    query STRING COMMENT 'the hash of the query',
    ranges STRING COMMENT 'what the batch has read, as JSON',
    quarantined_at TIMESTAMP,
    changed_at TIMESTAMP COMMENT 'when the state last changed',
    replay STRING COMMENT 'the replay that changed it'
"""
"""The columns of a quarantine table, in SQL."""


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The batch of a flow, or the refresh of a materialized view, that has rejected rows."""

    pipeline: str
    flow: str
    update: str
    query: str
    ranges: Any  # what the batch has read, as its commit holds it; for a refresh the versions of its inputs
    checkpoint: str | None = None  # the checkpoint's id; ``None`` for a refresh
    batch: int | None = None  # the batch's number; ``None`` for a refresh
    # The columns (dotted paths) of each row's coordinates.
    coordinates: Mapping[str, str] = field(default_factory=dict)


def as_rejected(rows: DataFrame, rejection: Rejection) -> DataFrame:
    no_text = F.lit(None).cast("string")
    returned = [name for name in rows.columns if name != REASONS]
    named = {name: quoted_path(path) for name, path in rejection.coordinates.items()}
    reasons = F.transform(
        REASONS,
        lambda name: F.struct(
            F.lit("expectation").alias("kind"), name.alias("name"), no_text.alias("message")
        ),
    )
    return _table_rows(
        rows,
        rejection,
        number=F.monotonically_increasing_id(),
        reasons=reasons,
        # The parts of the original record that the rows still have.
        source=_source(_columns_of_record(rows.schema) | named),
        row=F.to_json(F.struct(*map(F.col, map(quoted_column, returned))), ROW_JSON),
    )


def as_bad_records(
    records: DataFrame,
    rejection: Rejection,
    *,
    number: Column,
    code: Column,
    message: Column,
    kind: Literal["record", "exception"] = "record",
) -> DataFrame:
    """Records that give no row; their columns become the fields of ``source`` with the same names."""
    reason = F.struct(F.lit(kind).alias("kind"), code.alias("name"), message.alias("message"))
    held = {name: name for name in RECORD if name in records.columns}
    return _table_rows(
        records,
        rejection,
        number=number,
        reasons=F.array(reason),
        source=_source(held),
        row=F.lit(None).cast("string"),
    )


def _table_rows(
    rows: DataFrame, rejection: Rejection, *, number: Column, reasons: Column, source: Column, row: Column
) -> DataFrame:
    now = F.current_timestamp()
    by = rejection.update if rejection.checkpoint is None else rejection.checkpoint[-8:]
    batch = [] if rejection.batch is None else [F.lit(rejection.batch)]
    return rows.select(
        F.concat_ws("-", F.lit(by), *batch, number).alias("id"),
        F.lit("quarantined").alias("state"),
        reasons.alias("reasons"),
        source.alias("source"),
        row.alias("row"),
        F.lit(rejection.pipeline).alias("pipeline"),
        F.lit(rejection.flow).alias("flow"),
        F.lit(rejection.checkpoint).cast("string").alias("checkpoint"),
        F.lit(rejection.batch).cast("bigint").alias("batch"),
        F.lit(rejection.update).alias("update"),
        F.lit(rejection.query).alias("query"),
        F.lit(json.dumps(rejection.ranges)).alias("ranges"),
        now.alias("quarantined_at"),
        now.alias("changed_at"),
        F.lit(None).cast("string").alias("replay"),
    )


def _source(held: Mapping[str, str]) -> Column:
    """The column ``source`` of columns by field; NULL without any."""
    fields = [
        (F.col(held[name]) if name in held else F.lit(None)).cast(kind).alias(name)
        for name, kind in RECORD.items()
    ]
    return F.struct(*fields) if held else F.lit(None).cast(_SOURCE)


def _columns_of_record(schema: StructType) -> dict[str, str]:
    """The column of each part of the record, of rows with the struct ``_source`` that our readers add.

    The value of a raw record is a column of its own, which the query may have changed: it is in ``row``.
    Fields of other types are the user's own.
    """
    source = next((field.dataType for field in schema.fields if field.name == "_source"), None)
    if not isinstance(source, T.StructType):
        return {}
    types = {name: kind.replace(": ", ":").lower() for name, kind in RECORD.items()}
    names = {one.name for one in source.fields if one.dataType.simpleString() == types.get(one.name)}
    # The stream of a folder has the path of each row, and not its number.
    if widest_coordinates(names) is None and "path" not in names:
        return {}
    return {name: f"_source.{name}" for name in RECORD if name in names}


ID: Final = "__headrace_id"  # the column with the id of the rejected row that a row comes from
PROBLEM: Final = "__headrace_problem"  # the column that says why a row cannot be read back; NULL if it can
_CORRUPT = "__headrace_corrupt"


@dataclass(frozen=True)
class Rejected:
    """A row that stays in the quarantine, with its new reasons."""

    id: str
    reasons: Sequence[dict[str, Any]] = field(default_factory=tuple)
    row: str | None = None  # what the query returned for it now, as JSON; ``None`` keeps what the table has

    @classmethod
    def because(cls, id: str, kind: str, name: str, message: str | None = None) -> Rejected:
        return cls(id, ({"kind": kind, "name": name, "message": message},))

    @classmethod
    def failing(cls, id: str, expectations: Sequence[str], row: str | None = None) -> Rejected:
        return cls(id, [{"kind": "expectation", "name": name, "message": None} for name in expectations], row)


def has_record() -> Column:
    """Whether a rejected row still has its original record. The value of a record can be null."""
    source = F.col("source")
    return source.isNotNull() & (source["value"].isNotNull() | F.col("row").isNull())


def rows_of_json(rejected: DataFrame, schema: StructType) -> DataFrame:
    """Read the JSON of rejected rows back. The rows have `ID` and `PROBLEM`."""
    wide = T.StructType([*schema.fields]).add(_CORRUPT, T.StringType())
    options = {**ROW_JSON, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    unknown = F.array_except(F.json_object_keys("row"), F.array(*map(F.lit, schema.fieldNames())))
    read = rejected.select(
        F.col("id").alias(ID), F.from_json("row", wide, options).alias("read"), unknown.alias("unknown")
    )
    wrong = F.when(
        F.col(f"read.{_CORRUPT}").isNotNull() | F.col("read").isNull(),
        F.lit("a value does not have the type of its column"),
    ).when(F.size("unknown") > 0, F.concat(F.lit("the table has no column "), F.array_join("unknown", ", ")))
    return read.select(ID, wrong.alias(PROBLEM), "read.*").drop(_CORRUPT)


def row_as_json(columns: Sequence[str]) -> Column:
    quoted = ("`" + name.replace("`", "``") + "`" for name in columns if name not in (ID, REASONS))
    return F.to_json(F.struct(*map(F.col, quoted)), ROW_JSON)
