"""Histories of records in which a NULL leaves a column as it is (``ignore_null_updates``).

A row has the values that its records leave, and for each of them the sequence of the record that gave it, if
that is another record than the row's last one. So the values that a record itself has given can be read from
its row again, when a late record arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.changes import COLUMN_SEQUENCES, DELETE, OPERATION, SEQUENCE
from headrace.model.names import quoted_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LIFE, _GIVEN = "__headrace_life", "__headrace_given_"


def columns_kept(rows: DataFrame, records: DataFrame) -> list[str]:
    """The columns of a table that a NULL in records leaves as they are."""
    if COLUMN_SEQUENCES not in records.columns:
        return []
    fields = {name.casefold() for name in records.select(f"{COLUMN_SEQUENCES}.*").columns}
    return [name for name in rows.columns if name.casefold() in fields]


def as_given(events: DataFrame, kept: list[str], is_start: Column) -> DataFrame:
    """Events with NULL where their record had NULL.

    Args:
        is_start: Whether an event is known from the start of a row only: it then has the values of the row.
    """
    from pyspark.sql import functions as F

    def given(name: str) -> Column:
        is_given = is_start | F.col(COLUMN_SEQUENCES)[name].isNull()
        return F.when(is_given, F.col(quoted_column(name)))

    return events.withColumns({name: given(name) for name in kept})


def with_kept_values(events: DataFrame, keys: list[str], kept: list[str]) -> DataFrame:
    """Events with the last value before where they have NULL, unless a delete is between."""
    from pyspark.sql import Window, functions as F

    place, is_delete = F.col(f"{SEQUENCE}.value"), F.col(OPERATION) == DELETE
    lives = F.count_if(is_delete).over(Window.partitionBy(*keys).orderBy(place))
    life = Window.partitionBy(*keys, _LIFE).orderBy(place)

    def newest(name: str) -> Column:
        value = F.col(quoted_column(name))
        given = F.struct(value.alias("value"), F.col(SEQUENCE).alias("at"))
        return F.last(F.when(~is_delete & value.isNotNull(), given), ignorenulls=True).over(life)

    found = {name: f"{_GIVEN}{number}" for number, name in enumerate(kept)}
    newest_values = events.withColumn(_LIFE, lives).withColumns(
        {column: newest(name) for name, column in found.items()}
    )
    ages = {name.casefold(): F.col(column)["at"] for name, column in found.items()}

    def sequence(name: str) -> Column:
        """The sequence of a kept value; NULL if it is that of the row."""
        age = ages.get(name.casefold(), F.lit(None))
        return F.when(age != F.col(SEQUENCE), age).otherwise(F.lit(None)).alias(name)

    names = events.select(f"{COLUMN_SEQUENCES}.*").columns
    sequences = F.struct(*map(sequence, names)).cast(events.schema[COLUMN_SEQUENCES].dataType)
    return newest_values.withColumns(
        {**{name: F.col(column)["value"] for name, column in found.items()}, COLUMN_SEQUENCES: sequences}
    ).drop(_LIFE, *found.values())
