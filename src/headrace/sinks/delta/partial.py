"""Change records in which a NULL leaves a column as it is (``ignore_null_updates``).

Each such column has a sequence of its own: that of the newest record that gave it a value. A delete ends all
values that are older. So the row of a key follows from its newest delete, its newest upsert and the newest
value of each column, whatever the order and the batches of the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.changes import COLUMN_SEQUENCES, DELETE, OPERATION, SEQUENCE, UPSERT
from headrace.model.names import quoted_column
from headrace.sinks.delta.effects import EFFECT, HELD_AT, HELD_ROWS, RECORDS
from headrace.sinks.row_hash import row_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_DELETED, _UPSERT, _HELD, _DEAD, _VALUE = (
    "__headrace_deleted",
    "__headrace_upsert",
    "__headrace_held",
    "__headrace_dead",
    "__headrace_value_",
)


def newest_values(records: DataFrame, keys: list[str]) -> DataFrame:
    """Of each key the newest delete, the newest upsert, the newest values, and the number of records."""
    from pyspark.sql import functions as F

    is_upsert, sequence = F.col(OPERATION) == UPSERT, F.col(SEQUENCE)
    # Records with equal sequences come from one record of the source, which the query has multiplied.
    order = F.struct(sequence, row_hash(records))
    own = {name.casefold() for name in keys}
    row = F.struct(*(quoted_column(name) for name in records.columns if name.casefold() not in own))
    values = []
    for number, name in enumerate(_fields(records.schema[COLUMN_SEQUENCES].dataType)):
        value = F.col(quoted_column(name))
        given = F.struct(value.alias("value"), sequence.alias("at"))
        found = F.max_by(given, F.when(is_upsert & value.isNotNull(), order))
        values.append(found.alias(f"{_VALUE}{number}"))
    return records.groupBy(*map(quoted_column, keys)).agg(
        F.count(F.lit(1)).alias(RECORDS),
        F.max(F.when(~is_upsert, sequence)).alias(_DELETED),
        F.max_by(row, F.when(is_upsert, order)).alias(_UPSERT),
        *values,
    )


def partial_effects(
    newest: DataFrame, held: DataFrame, tombstones: DataFrame | None, keys: list[str]
) -> DataFrame:
    """Each key's row after the batch, and its operation: ``insert``, ``update``, ``delete`` or ``none``."""
    from pyspark.sql import functions as F

    names = [quoted_column(key) for key in keys]
    table = held.drop(HELD_AT).schema
    row = F.struct(*map(quoted_column, table.names))
    mine = held.groupBy(*names).agg(
        F.first(row).alias(_HELD), F.count(F.lit(1)).alias(HELD_ROWS), F.first(HELD_AT).alias(HELD_AT)
    )
    found = newest.join(mine, keys, "left")
    if tombstones is None:
        return _compared(found.withColumn(_DEAD, F.col(_DELETED)), table, keys)
    dead = tombstones.where(F.col(OPERATION) == DELETE).select(*names, F.col(SEQUENCE).alias(_DEAD))
    return _compared(found.join(dead, keys, "left"), table, keys)


def deletes_of(effects: DataFrame, keys: list[str]) -> DataFrame:
    """The deletes of a batch, also those with a newer upsert of their key: its columns may be older."""
    from pyspark.sql import functions as F

    deleted = effects.where(F.col(_DELETED).isNotNull())
    return deleted.select(*map(quoted_column, keys), F.col(_DELETED).alias(SEQUENCE), OPERATION)


def _compared(found: DataFrame, table: StructType, keys: list[str]) -> DataFrame:
    from pyspark.sql import functions as F

    held, upsert, is_held = F.col(_HELD), F.col(_UPSERT), F.col(HELD_ROWS).isNotNull()
    dead = F.greatest(_DELETED, _DEAD)

    def is_alive(sequence: Column) -> Column:
        return sequence.isNotNull() & (dead.isNull() | (sequence > dead))

    # Another writer may have left the sequence out: then it is less than all others.
    lowest = F.struct(*(F.lit(None) for _ in range(4))).cast(table[SEQUENCE].dataType)
    held_at, given_at = F.when(is_held, F.coalesce(held[SEQUENCE], lowest)), upsert[SEQUENCE]
    is_newer = is_alive(given_at) & (~is_alive(held_at) | (given_at > held_at))
    newest_at = F.when(is_newer, given_at).when(is_alive(held_at), held_at)
    given = {name.casefold() for name in _fields(found.schema[_UPSERT].dataType)}
    columns = {
        name: F.when(is_newer, upsert[name] if name.casefold() in given else F.lit(None)).otherwise(
            held[name]
        )
        for name in table.names
        if name.casefold() not in {key.casefold() for key in keys}
    }
    is_changed, ages = is_newer, {}
    kept = {name.casefold() for name in _fields(table[COLUMN_SEQUENCES].dataType)}
    for number, name in enumerate(_fields(found.schema[_UPSERT].dataType[COLUMN_SEQUENCES].dataType)):
        value, at = F.col(f"{_VALUE}{number}.value"), F.col(f"{_VALUE}{number}.at")
        # The sequence of a column is kept where it is not that of the row.
        since = F.coalesce(held[COLUMN_SEQUENCES][name], held_at) if name.casefold() in kept else held_at
        is_left = held[name].isNotNull() & is_alive(since)
        is_taken = is_alive(at) & (~is_left | (at > since))
        column = next(one for one in columns if one.casefold() == name.casefold())
        columns[column] = F.when(is_taken, value).when(is_left, held[name])
        ages[name.casefold()] = F.when(is_taken, at).when(is_left, since)
        is_changed = is_changed | is_taken | (held[name].isNotNull() & ~is_left)
    columns[SEQUENCE] = newest_at
    columns[COLUMN_SEQUENCES] = F.struct(
        *(
            F.when(ages[name.casefold()] != newest_at, ages[name.casefold()]).alias(name)
            if name.casefold() in ages
            else F.lit(None).alias(name)
            for name in _fields(table[COLUMN_SEQUENCES].dataType)
        )
    )
    is_there = newest_at.isNotNull()
    effect = (
        F.when(is_there & ~is_held, "insert")
        .when(is_there & is_changed, "update")
        .when(~is_there & is_held, "delete")
        .otherwise("none")
    )
    return found.select(
        *map(quoted_column, keys),
        *(column.alias(name) for name, column in columns.items()),
        F.when(F.col(_DELETED).isNotNull(), DELETE).otherwise(UPSERT).alias(OPERATION),
        RECORDS,
        HELD_ROWS,
        HELD_AT,
        _DELETED,
        effect.alias(EFFECT),
    )


def _fields(kind: object) -> list[str]:
    return list(getattr(kind, "names", ()))
