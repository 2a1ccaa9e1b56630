"""Change records: rows of a source, or differences of snapshots, with key, sequence and operation.

For each key the record with the greatest sequence wins. If two records have equal sequences, the later
position in the source wins. The table keeps the sequence and the position of each row, so the result does
not depend on the batches in which the records arrive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ArgumentInvalidError, ColumnInvalidError, ColumnNotFoundError, nearest
from headrace.model.names import (
    COLUMN_SEQUENCES,
    DELETE,
    END,
    FEED_COLUMNS,
    OPERATION,
    SEQUENCE,
    START,
    TRUNCATE,
    UPSERT,
    ChosenColumns,
    quoted_column,
)
from headrace.runtime.lazy_pyspark import Column, DataFrame, DataType, F, StructType, T
from headrace.sinks.row_hash import holds_map, row_hash
from headrace.sources.parts import ROW_JSON
from headrace.sources.registry import widest_coordinates

_RECORD = "_source"
"""The struct that our readers add. The table does not get it, unless ``column_list`` names it."""
_PLACE: Final = {"partition": "bigint", "source": "string", "position": "bigint"}
_SEQUENCE_FIELDS: Final = ["value", *_PLACE]


@dataclass(frozen=True, kw_only=True)
class ChangeColumns:
    """The columns and conditions that make change records of a source's rows."""

    keys: tuple[Any, ...]
    sequence_by: Any  # SQL text or a Column that orders the records of a key
    deletes: Any | None = None  # the condition of records that delete a row; NULL is false
    truncates: Any | None = None  # the condition of records that delete all older rows; NULL is false
    # The columns of the table; ``None`` for all columns of the source.
    included: tuple[Any, ...] | None = None
    excluded: tuple[Any, ...] = ()
    # If the table has the history of each key (SCD type 2), the columns whose changes start a new row.
    tracked: ChosenColumns | None = None
    # The columns that keep their value if a record has NULL; ``None`` if no column does.
    kept_if_null: ChosenColumns | None = None


def as_changes(rows: DataFrame, columns: ChangeColumns) -> DataFrame:
    """The change records of a source's rows.

    They have the columns of the table, with `SEQUENCE` and, where it needs them, `START`, `END` and
    `COLUMN_SEQUENCES`; `OPERATION`, and ``_source`` where the rows have it.
    """
    if "_commit_version" in rows.columns:
        # The change feed of another table with changes by key.
        rows = rows.drop(*(name for name in _own_columns(rows) if name != _RECORD))
    keys = tuple(_find(rows, one) for one in columns.keys)
    kept = _kept(rows, columns)
    _check_names(kept, columns)
    _check_keys(keys, kept)
    others = [name for name in kept if name not in keys]
    _check_chosen(rows, columns, others)
    value = _column(columns.sequence_by)
    compared = rows.select(value.alias("sequence_by"), *map(quoted_column, keys)).schema
    _check_comparable(compared, keys)
    sequence = F.struct(value.alias("value"), *_place(rows))
    is_truncate = _true(columns.truncates)
    operation = F.when(is_truncate, TRUNCATE).when(_true(columns.deletes), DELETE).otherwise(UPSERT)
    added = [sequence.alias(SEQUENCE)]
    if columns.tracked is not None:
        no_end = F.lit(None).cast(compared["sequence_by"].dataType)
        added = [value.alias(START), no_end.alias(END), *added]
    if columns.kept_if_null is not None:
        # The sequence of a value is that of its row until a newer record has NULL in its place.
        none = F.when(F.lit(False), sequence)
        fields = (none.alias(name) for name in columns.kept_if_null.of(others))
        added.append(F.struct(*fields).alias(COLUMN_SEQUENCES))
    carried = [_RECORD] if _RECORD in rows.columns and _RECORD not in kept else []
    # A truncate has no key.
    without = set(keys) if columns.truncates is not None else set()
    values = (
        F.when(~is_truncate, F.col(quoted_column(name))) if name in without else F.col(quoted_column(name))
        for name in kept
    )
    named = (value.alias(name) for value, name in zip(values, kept, strict=True))
    return rows.select(*named, *added, operation.alias(OPERATION), *carried)


def table_schema(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a table for the columns of its change records; both as ``StructType.jsonValue()``."""
    names = [field["name"] for field in changes["fields"]]
    return {**changes, "fields": changes["fields"][: names.index(OPERATION)]}


def with_sequence(declared: Mapping[str, Any], table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A declared schema with the sequences of the table, which declarations do not list."""
    left_out = {SEQUENCE, COLUMN_SEQUENCES} - {field["name"] for field in declared["fields"]}
    own = [field for field in table["fields"] if field["name"] in left_out]
    return {**declared, "fields": [*declared["fields"], *own]}


def _check_names(kept: Sequence[str], columns: ChangeColumns) -> None:
    """Check that no column of the table has the name of a column that Headrace adds to it."""
    history = () if columns.tracked is None else (START, END)
    partial = () if columns.kept_if_null is None else (COLUMN_SEQUENCES,)
    taken = {name.casefold() for name in kept}
    for name in (*history, *partial, SEQUENCE, OPERATION):
        if name.casefold() in taken:
            raise ColumnInvalidError(
                f"the source has a column `{name}`, which a table with changes by key adds itself",
                remedies=[
                    f'rename it: .withColumnRenamed("{name}", "source_{name.lstrip("_")}")',
                    f'or leave it out of the table: except_column_list=["{name}"]',
                ],
                params={"column": name},
            )


def _check_keys(keys: tuple[str, ...], kept: list[str]) -> None:
    if missing := [key for key in keys if key not in kept]:
        raise ArgumentInvalidError(
            f"the key `{missing[0]}` is not among the columns of the table",
            remedies=["add it to column_list, or remove it from except_column_list"],
            params={"column": missing[0]},
        )
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ArgumentInvalidError(
            f"keys has the column `{twice[0]}` twice", remedies=["list it once"], params={"column": twice[0]}
        )


def _check_chosen(rows: DataFrame, columns: ChangeColumns, others: list[str]) -> None:
    """Refuse listed columns that are keys, or that the table does not have."""
    for choice in (columns.tracked, columns.kept_if_null):
        if choice is None:
            continue
        for name in [_find(rows, one) for one in choice.named]:
            if choice.included is not None and name not in others:
                raise ArgumentInvalidError(
                    f"`{name}` is listed, but it is a key or not a column of the table",
                    remedies=["remove it from the list"],
                    params={"column": name},
                )
    if columns.kept_if_null is not None and not columns.kept_if_null.of(others):
        raise ArgumentInvalidError(
            "ignore_null_updates has no effect: it holds for no column of the table",
            remedies=["remove it, or list other columns"],
            params={"column": None},
        )


def _kept(rows: DataFrame, columns: ChangeColumns) -> list[str]:
    """The columns of the source that become columns of the table."""
    if columns.included is not None:
        return [_find(rows, one) for one in columns.included]
    own = {name for name in _own_columns(rows) if name == _RECORD}
    excluded = {_find(rows, one) for one in columns.excluded} | {*own, *FEED_COLUMNS}
    return [name for name in rows.columns if name not in excluded]


def _find(rows: DataFrame, given: Any) -> str:
    # The text of a Column is its name; the text of an expression matches no column.
    wanted = given if isinstance(given, str) else str(given).removeprefix("Column<'").removesuffix("'>")
    found = next((name for name in rows.columns if name.casefold() == wanted.casefold()), None)
    if found is None:
        near = nearest(wanted, rows.columns)
        raise ColumnNotFoundError(
            f"the source has no column `{wanted}`",
            facts=[f"its columns: {', '.join(rows.columns)}"],
            remedies=[f"did you mean `{near}`?" if near else "use one of its columns"],
            params={"column": wanted, "suggestion": near},
        )
    return str(found)


def _place(rows: DataFrame) -> list[Column]:
    """The position of each record in its source, which orders records with equal sequences."""
    record = next((one for one in rows.schema.fields if one.name == _RECORD), None)
    fields = set() if record is None else set(getattr(record.dataType, "names", ()))
    known = widest_coordinates(fields)
    if known is not None:
        partition = F.lit(0) if known.partition is None else F.col(f"{_RECORD}.{known.partition}")
        source = F.coalesce(F.col(f"{_RECORD}.{known.source}"), F.lit(""))
        place = (partition, source, F.col(f"{_RECORD}.{known.number}"))
    elif {"path", "modified"} <= fields:
        place = (F.unix_micros("_source.modified"), F.col("_source.path"), row_hash(rows))
    elif "_commit_version" in rows.columns:
        # A refresh of a view replaces a row without knowing its key: it deletes it, and inserts another.
        is_new = F.lit("")
        if "_change_type" in rows.columns:
            is_new = F.when(F.col("_change_type").isin("insert", "update_postimage"), "+").otherwise("")
        place = (F.col("_commit_version"), is_new, row_hash(rows))
    else:
        place = (F.lit(0), F.lit(""), row_hash(rows))
    return [one.cast(kind).alias(name) for one, (name, kind) in zip(place, _PLACE.items(), strict=True)]


def _check_comparable(schema: StructType, keys: Sequence[str]) -> None:
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if "string collate " in kind:
            name = f"the key `{field.name}`" if field.name in keys else "the sequence"
            raise ColumnInvalidError(
                f"{name} is a {kind.upper()}, and keys and sequences are compared byte by byte",
                remedies=["give it one form in the query: lower(..) COLLATE UTF8_BINARY"],
                params={"column": field.name},
            )
        if holds_map(field.dataType):
            raise ColumnInvalidError(
                f"`{field.name}` is a {kind}, whose values have no order",
                remedies=["use a number, a text, a time, or a struct of them"],
                params={"column": field.name},
            )


def _column(given: Any) -> Column:
    column: Column = F.expr(given) if isinstance(given, str) else given
    return column


def _true(condition: Any | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(_column(condition), F.lit(False))


COPIES: Final = "__headrace_copies"
"""The column with the number of rows that the snapshot has for a key; NULL if it has none."""
_DELETED = "__headrace_deleted"
_NEW, _OLD, _HELD = "__headrace_new", "__headrace_old", "__headrace_held"
_OWN = frozenset({SEQUENCE, COLUMN_SEQUENCES, OPERATION})
_FITS = {
    "long": ("integer",),
    "double": ("integer", "long"),
    "timestamp": ("date",),
    "string": ("integer", "long", "double", "boolean", "date", "timestamp"),
}
"""For each type, the narrower types that Spark can infer from a part of the values."""


def without_own_columns(rows: DataFrame) -> DataFrame:
    """The rows without the columns that Headrace adds to the tables of a pipeline."""
    return rows.drop(*_own_columns(rows))


def _own_columns(rows: DataFrame) -> list[str]:
    """The columns that Headrace adds to tables. A source can have others of these names, with other types."""
    return [one.name for one in rows.schema.fields if _is_own(one.name, one.dataType)]


def _is_own(name: str, kind: DataType) -> bool:
    if not isinstance(kind, T.StructType):
        return False
    match name:
        case "_source":
            return True
        case "_sequence":
            return list(kind.fieldNames()) == _SEQUENCE_FIELDS
        case "_sequences":
            return all(_is_own(SEQUENCE, field.dataType) for field in kind.fields)
        case _:
            return False


def change_schema(
    rows: DataFrame, keys: tuple[str, ...], tracked: ChosenColumns | None, version_type: str
) -> Mapping[str, Any]:
    """The columns of the change records of a snapshot, as ``StructType.jsonValue()``."""
    changes = as_records(
        rows.withColumn(_DELETED, F.lit(False)), keys, tracked, F.lit(None).cast(version_type)
    )
    found: Mapping[str, Any] = changes.schema.jsonValue()
    return found


def snapshot_columns(changes: Mapping[str, Any], tracked: ChosenColumns | None) -> StructType:
    """The columns of the snapshots, from the columns of their change records or of the table."""
    own = _OWN if tracked is None else _OWN | {START, END}
    fields = [field for field in changes["fields"] if field["name"] not in own]
    return T.StructType.fromJson({**changes, "fields": fields})


def conform(rows: DataFrame, columns: StructType) -> DataFrame:
    """The rows with these columns in this order: a missing one is NULL, others are left out."""
    there = {name.casefold(): name for name in rows.columns}

    def value(name: str) -> Column:
        found = there.get(name.casefold())
        return F.lit(None) if found is None else F.col(quoted_column(found))

    return rows.select(*(value(one.name).cast(one.dataType).alias(one.name) for one in columns.fields))


def find_differences(snapshot: DataFrame, held: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that differ between a snapshot and a table: new, changed and missing ones.

    They have the columns of the snapshot, a flag for rows that the snapshot does not have, and `COPIES`. Keys
    with several rows or a NULL are also among them.
    """
    folded = {key.casefold() for key in keys}
    fields = [one for one in snapshot.schema.fields if one.name.casefold() not in folded]
    names = [quoted_column(key) for key in keys]
    values = F.struct(*(quoted_column(one.name) for one in fields)) if fields else F.struct(F.lit(True))
    new = snapshot.groupBy(*names).agg(F.count(F.lit(1)).alias(COPIES), F.first(values).alias(_NEW))
    old = held.select(*names, values.alias(_OLD), F.lit(True).alias(_HELD))
    joined = new.join(old, list(keys), "full_outer")
    is_missing = F.col(COPIES).isNull()
    differs = is_missing | F.col(_HELD).isNull() | (F.col(COPIES) > 1)
    for one in fields:
        before, now = (F.col(f"{side}.{quoted_column(one.name)}") for side in (_OLD, _NEW))
        if holds_map(one.dataType):
            # Spark cannot compare maps. Two maps are equal if their entries have the same order.
            before, now = (F.to_json(F.struct(value), ROW_JSON) for value in (before, now))
        differs = differs | ~before.eqNullSafe(now)
    for name in names:
        differs = differs | F.col(name).isNull()
    # A record that deletes a row has its values, for the expectations of the table.
    row = F.when(is_missing, F.col(_OLD)).otherwise(F.col(_NEW))
    columns = (
        F.col(quoted_column(name)) if name.casefold() in folded else row.getField(name).alias(name)
        for name in snapshot.columns
    )
    return joined.where(differs).select(*columns, is_missing.alias(_DELETED), COPIES)


def as_records(
    differences: DataFrame, keys: tuple[str, ...], tracked: ChosenColumns | None, version: Column
) -> DataFrame:
    """The change records of differences, in the form of `as_changes`."""
    columns = ChangeColumns(
        keys=keys, sequence_by=version, deletes=_DELETED, excluded=(_DELETED,), tracked=tracked
    )
    return as_changes(differences, columns)


def with_known_types(rows: DataFrame, known: Mapping[str, Any]) -> StructType:
    """A schema to read files with: a column keeps its earlier type if the values fit (`3` after `3.5`)."""
    types = {one.name.casefold(): one.dataType for one in T.StructType.fromJson(dict(known)).fields}
    fields = []
    for field in rows.schema.fields:
        kind = types.get(field.name.casefold(), field.dataType)
        fits = field.dataType.typeName() in _FITS.get(kind.typeName(), ())
        if kind != field.dataType and not fits:
            values = rows.where(f"{quoted_column(field.name)} IS NOT NULL")
            fits = field.dataType.typeName() == "string" and values.isEmpty()
        fields.append(T.StructField(field.name, kind if fits else field.dataType))
    return T.StructType(fields)
