"""A number for the values of a row, to choose one of several rows in the same way each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.model.names import quoted_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def row_hash(rows: DataFrame) -> Column:
    """A number that depends on all values of a row, and on nothing else."""
    from pyspark.sql import functions as F

    values = []
    for field in rows.schema.fields:
        value = F.col(quoted_column(field.name))
        # Spark has no hash of a map.
        values.append(as_text(value) if holds_map(field.dataType) else value)
    return F.xxhash64(*values)


def as_text(value: Column) -> Column:
    """A value as JSON; without the option, a map with a NULL would be equal to an empty one."""
    from pyspark.sql import functions as F

    return F.to_json(F.struct(value), {"ignoreNullFields": "false"})


def holds_map(kind: DataType) -> bool:
    """Whether values of a type hold maps or variants, which Spark can neither hash nor compare."""
    if kind.typeName() in ("map", "variant"):
        return True
    inner = getattr(kind, "elementType", None)
    fields = getattr(kind, "fields", ())
    return (inner is not None and holds_map(inner)) or any(holds_map(one.dataType) for one in fields)
