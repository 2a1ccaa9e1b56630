"""The differences between a snapshot and the rows of a table, as change records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.contracts.changes import ChangeColumns, as_changes
from headrace.model.changes import COLUMN_SEQUENCES, END, OPERATION, SEQUENCE, START, ChosenColumns
from headrace.model.names import quoted_column
from headrace.sinks.row_hash import holds_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

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
"""The types that Spark infers for some values of a column whose other values have a wider type."""
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def without_own_columns(rows: DataFrame) -> DataFrame:
    """The rows without the columns that Headrace adds to the tables of a pipeline."""
    return rows.drop("_source", SEQUENCE, COLUMN_SEQUENCES)


def change_schema(
    rows: DataFrame, keys: tuple[str, ...], tracked: ChosenColumns | None, version_type: str
) -> Mapping[str, Any]:
    """The columns of the change records of a snapshot, as ``StructType.jsonValue()``.

    Raises:
        ColumnNotFoundError: The snapshot has no column of a given name.
        ColumnInvalidError: A column has a reserved name; a key has a type without an order.
        ArgumentInvalidError: A key is listed twice, or a key is among the tracked columns.
    """
    from pyspark.sql import functions as F

    changes = as_records(
        rows.withColumn(_DELETED, F.lit(False)), keys, tracked, F.lit(None).cast(version_type)
    )
    found: Mapping[str, Any] = changes.schema.jsonValue()
    return found


def snapshot_columns(changes: Mapping[str, Any], tracked: ChosenColumns | None) -> StructType:
    """The columns of the snapshots, from the columns of their change records or of the table."""
    from pyspark.sql.types import StructType

    own = _OWN if tracked is None else _OWN | {START, END}
    fields = [field for field in changes["fields"] if field["name"] not in own]
    return StructType.fromJson({**changes, "fields": fields})


def conform(rows: DataFrame, columns: StructType) -> DataFrame:
    """The rows with these columns in this order: a missing one is NULL, others are left out."""
    from pyspark.sql import functions as F

    there = {name.casefold(): name for name in rows.columns}

    def value(name: str) -> Column:
        found = there.get(name.casefold())
        return F.lit(None) if found is None else F.col(quoted_column(found))

    return rows.select(*(value(one.name).cast(one.dataType).alias(one.name) for one in columns.fields))


def find_differences(snapshot: DataFrame, held: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that differ between a snapshot and a table: new, changed and missing ones.

    Returns:
        The columns of the snapshot, a flag for rows that the snapshot does not have, and `COPIES`. Keys with
        several rows or a NULL are also among them.
    """
    from pyspark.sql import functions as F

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
        before, now = (_comparable(F.col(f"{side}.{quoted_column(one.name)}"), one) for side in (_OLD, _NEW))
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
    """The change records of differences, as `as_changes` gives those of other flows."""
    columns = ChangeColumns(
        keys=keys, sequence_by=version, deletes=_DELETED, excluded=(_DELETED,), tracked=tracked
    )
    return as_changes(differences, columns)


def _comparable(value: Column, field: Any) -> Column:
    """A value as Spark can compare it. Two maps are equal if their entries have the same order."""
    from pyspark.sql import functions as F

    return F.to_json(F.struct(value), _JSON) if holds_map(field.dataType) else value


def with_known_types(rows: DataFrame, known: Mapping[str, Any]) -> StructType:
    """The schema to read files with whose types Spark has inferred, after an earlier snapshot.

    A column keeps its type where the inferred one fits into it: `3` after `3.5` is a DOUBLE. So does a column
    that has no value.

    Args:
        known: The schema of the earlier snapshot, as ``StructType.jsonValue()`` gives it.
    """
    from pyspark.sql.types import StructField, StructType

    types = {one.name.casefold(): one.dataType for one in StructType.fromJson(dict(known)).fields}
    fields = []
    for field in rows.schema.fields:
        kind = types.get(field.name.casefold(), field.dataType)
        fits = field.dataType.typeName() in _FITS.get(kind.typeName(), ())
        if kind != field.dataType and not fits:
            values = rows.where(f"{quoted_column(field.name)} IS NOT NULL")
            fits = field.dataType.typeName() == "string" and values.isEmpty()
        fields.append(StructField(field.name, kind if fits else field.dataType))
    return StructType(fields)
