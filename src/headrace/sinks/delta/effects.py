"""What change records do with the rows of a table: functions from events and old rows to effects.

The newest record of each key wins. Where a NULL leaves a column as it is (``ignore_null_updates``), each such
column has a sequence of its own: that of the newest record that gave it a value. A delete ends all values
that are older. So the row of a key follows from its newest delete, its newest upsert and the newest value of
each column, whatever the order and the batches of the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

from headrace.model.names import (
    COLUMN_SEQUENCES,
    DELETE,
    OPERATION,
    SEQUENCE,
    TRUNCATE,
    UPSERT,
    quoted_column,
)
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType
from headrace.sinks.row_hash import row_hash

RECORDS = "__headrace_records"
"""The column with the number of records that one stands for."""
EFFECT = "__headrace_effect"
"""The column with what is done to a row of the table; ``none`` leaves it as it is."""
HELD_ROWS = "__headrace_held_rows"
"""The column with the number of rows that the table has where it may have one."""
HELD_AT = "__headrace_held_at"
"""The column with the position of the table's row; NULL if there is none, or if positions cannot be used."""
_DELETED, _UPSERT, _HELD, _DEAD, _VALUE, _ORDER, _HELD_AT, _IS_HELD_ALIVE = (
    f"__headrace_{name}"
    for name in ("deleted", "upsert", "held", "dead", "value_", "order", "row_at", "is_held_alive")
)
_IS_NEWER, _NEWEST_AT, _SINCE, _IS_LEFT, _IS_TAKEN, _AGE = (
    f"__headrace_{name}" for name in ("is_newer", "newest_at", "since_", "is_left_", "is_taken_", "age_")
)


def newest_of_each_key(records: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The newest change record of each key, and how many the batch has of it.

    Records with equal sequences come from one record of the source, which the query has multiplied: their
    values decide, so that the answer is the same in every run.
    """
    others = [name for name in records.columns if name.casefold() not in {key.casefold() for key in keys}]
    row = F.struct(*map(quoted_column, others))
    order = F.struct(F.col(SEQUENCE), row_hash(records))
    found = records.groupBy(*map(quoted_column, keys)).agg(
        F.max_by(row, order).alias("__headrace_newest"), F.count(F.lit(1)).alias(RECORDS)
    )
    return found.select(*map(quoted_column, keys), "__headrace_newest.*", RECORDS)


def find_effects(
    newest: DataFrame,
    held: DataFrame,
    tombstones: DataFrame | None,
    truncated_at: DataFrame | None,
    keys: list[str],
) -> DataFrame:
    """The newest records with what each does: ``insert``, ``update``, ``delete`` or ``none``."""
    # The batch is small beside the table, so its keys can go to where the table's rows are read.
    mine = held.join(newest.select(*map(quoted_column, keys)), keys, "left_semi")
    mine = mine.groupBy(*map(quoted_column, keys)).agg(
        F.max("__headrace_held").alias("__headrace_held"),
        F.count(F.lit(1)).alias(HELD_ROWS),
        F.max(HELD_AT).alias(HELD_AT),
    )
    found = newest.join(mine, keys, "left")
    sequence = F.col(SEQUENCE)
    is_old = F.coalesce(F.col("__headrace_held") >= sequence, F.lit(False))
    if tombstones is not None:
        deleted = tombstones.where(F.col(OPERATION) == DELETE)
        deleted = deleted.select(*map(quoted_column, keys), F.col(SEQUENCE).alias("__headrace_deleted"))
        found = found.join(deleted, keys, "left")
        is_old = is_old | F.coalesce(F.col("__headrace_deleted") >= sequence, F.lit(False))
    if truncated_at is not None:
        found = found.crossJoin(F.broadcast(truncated_at))
        is_old = is_old | F.coalesce(F.col("__headrace_truncated") >= sequence, F.lit(False))
    is_held = F.col(HELD_ROWS).isNotNull()
    is_delete = F.col(OPERATION) == DELETE
    effect = (
        F.when(is_old | (F.col(OPERATION) == TRUNCATE), "none")
        .when(is_delete & is_held, "delete")
        .when(is_delete, "none")
        .when(is_held, "update")
        .otherwise("insert")
    )
    return found.withColumn(EFFECT, effect).drop(
        "__headrace_held", "__headrace_deleted", "__headrace_truncated"
    )


def find_truncated(
    held: DataFrame, newest: DataFrame, truncated_at: DataFrame | None, keys: list[str]
) -> DataFrame:
    """The keys of rows that a truncate deletes: those that no newer record of the batch replaces."""
    assert truncated_at is not None
    newer = newest.crossJoin(F.broadcast(truncated_at)).where(F.col(SEQUENCE) > F.col("__headrace_truncated"))
    old = held.crossJoin(F.broadcast(truncated_at)).where(
        F.col("__headrace_held") < F.col("__headrace_truncated")
    )
    left = old.join(newer.select(*map(quoted_column, keys)), keys, "left_anti")
    return left.select(*map(quoted_column, keys), F.lit("truncate").alias(EFFECT))


def newest_truncate(found: list[DataFrame]) -> DataFrame | None:
    from pyspark.sql import DataFrame

    if not found:
        return None
    sequences = [one.where(F.col(OPERATION) == TRUNCATE).select(SEQUENCE) for one in found]
    return reduce(DataFrame.unionByName, sequences).agg(F.max(SEQUENCE).alias("__headrace_truncated"))


def newest_values(records: DataFrame, keys: list[str]) -> DataFrame:
    """Of each key the newest delete, the newest upsert, the newest values, and the number of records."""
    is_upsert, sequence = F.col(OPERATION) == UPSERT, F.col(SEQUENCE)
    own = {name.casefold() for name in keys}
    row = F.struct(*(quoted_column(name) for name in records.columns if name.casefold() not in own))
    # Records with equal sequences come from one record of the source, which the query has multiplied.
    ordered = records.withColumn(_ORDER, F.struct(sequence, row_hash(records)))
    order = F.col(_ORDER)
    values = []
    for number, name in enumerate(_fields(records.schema[COLUMN_SEQUENCES].dataType)):
        value = F.col(quoted_column(name))
        given = F.struct(value.alias("value"), sequence.alias("at"))
        found = F.max_by(given, F.when(is_upsert & value.isNotNull(), order))
        values.append(found.alias(f"{_VALUE}{number}"))
    return ordered.groupBy(*map(quoted_column, keys)).agg(
        F.count(F.lit(1)).alias(RECORDS),
        F.max(F.when(~is_upsert, sequence)).alias(_DELETED),
        F.max_by(row, F.when(is_upsert, order)).alias(_UPSERT),
        *values,
    )


def partial_effects(
    newest: DataFrame, held: DataFrame, tombstones: DataFrame | None, keys: list[str]
) -> DataFrame:
    """Each key's row after the batch, and its operation: ``insert``, ``update``, ``delete`` or ``none``."""
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
    deleted = effects.where(F.col(_DELETED).isNotNull())
    return deleted.select(*map(quoted_column, keys), F.col(_DELETED).alias(SEQUENCE), OPERATION)


@dataclass(frozen=True)
class _KeptColumn:
    """A column that a NULL leaves as it is, after the batch."""

    value: Column
    age: Column  # the sequence of the value
    is_changed: Column
    steps: tuple[tuple[str, Column], ...]  # what the others need, by name; each needs those before it


def _kept_column(number: int, held: Column, held_since: Column) -> _KeptColumn:
    """The column of a number in a batch. `held`: its value in the table, with the sequence `held_since`."""
    value, at = F.col(f"{_VALUE}{number}.value"), F.col(f"{_VALUE}{number}.at")
    since, is_left, is_taken, age = (F.col(f"{one}{number}") for one in (_SINCE, _IS_LEFT, _IS_TAKEN, _AGE))
    return _KeptColumn(
        value=F.when(is_taken, value).when(is_left, held),
        age=age,
        is_changed=is_taken | (held.isNotNull() & ~is_left),
        steps=(
            (f"{_SINCE}{number}", held_since),
            (f"{_IS_LEFT}{number}", held.isNotNull() & _is_alive(since)),
            (f"{_IS_TAKEN}{number}", _is_alive(at) & (~is_left | (at > since))),
            (f"{_AGE}{number}", F.when(is_taken, at).when(is_left, since)),
        ),
    )


def _kept_columns(batch: StructType, table: StructType) -> dict[str, _KeptColumn]:
    """The columns of a batch that a NULL leaves as they are, by their folded names."""
    held, held_at = F.col(_HELD), F.col(_HELD_AT)
    # The sequence of a column is kept where it is not that of the row.
    own_since = {name.casefold() for name in _fields(table[COLUMN_SEQUENCES].dataType)}
    kept = {}
    for number, name in enumerate(_fields(batch[_UPSERT].dataType[COLUMN_SEQUENCES].dataType)):
        own = F.coalesce(held[COLUMN_SEQUENCES][name], held_at) if name.casefold() in own_since else held_at
        kept[name.casefold()] = _kept_column(number, held[name], own)
    return kept


def _is_alive(sequence: Column) -> Column:
    """Whether a sequence is newer than the newest delete of its key."""
    return sequence.isNotNull() & (F.col(_DEAD).isNull() | (sequence > F.col(_DEAD)))


def _compared(found: DataFrame, table: StructType, keys: list[str]) -> DataFrame:
    """The rows after the batch. A value that several others need is a column of its own: in the place of each
    of its uses, the expressions of a table with many columns would be too long for Spark to compile."""
    held, upsert, is_held = F.col(_HELD), F.col(_UPSERT), F.col(HELD_ROWS).isNotNull()
    held_at, given_at = F.col(_HELD_AT), upsert[SEQUENCE]
    is_newer, newest_at = F.col(_IS_NEWER), F.col(_NEWEST_AT)
    kept = _kept_columns(found.schema, table)
    # Another writer may have left the sequence out: then it is less than all others.
    lowest = F.struct(*(F.lit(None) for _ in range(4))).cast(table[SEQUENCE].dataType)
    steps = [dict(one.steps[step] for one in kept.values()) for step in range(4)]
    for step in (
        {_DEAD: F.greatest(_DELETED, _DEAD), _HELD_AT: F.when(is_held, F.coalesce(held[SEQUENCE], lowest))},
        {
            _IS_NEWER: _is_alive(given_at) & (~_is_alive(held_at) | (given_at > held_at)),
            _IS_HELD_ALIVE: _is_alive(held_at),
            **steps[0],
        },
        {_NEWEST_AT: F.when(is_newer, given_at).when(F.col(_IS_HELD_ALIVE), held_at), **steps[1]},
        steps[2],
        steps[3],
    ):
        found = found.withColumns(step)
    given = {name.casefold() for name in _fields(found.schema[_UPSERT].dataType)}
    columns = {
        name: F.when(is_newer, upsert[name] if name.casefold() in given else F.lit(None)).otherwise(
            held[name]
        )
        for name in table.names
        if name.casefold() not in {key.casefold() for key in keys}
    }
    columns |= {name: kept[name.casefold()].value for name in columns if name.casefold() in kept}
    columns[SEQUENCE] = newest_at
    columns[COLUMN_SEQUENCES] = F.struct(
        *(
            F.when(one.age != newest_at, one.age).alias(name)
            if (one := kept.get(name.casefold())) is not None
            else F.lit(None).alias(name)
            for name in _fields(table[COLUMN_SEQUENCES].dataType)
        )
    )
    is_changed = reduce(or_, (one.is_changed for one in kept.values()), is_newer)
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
