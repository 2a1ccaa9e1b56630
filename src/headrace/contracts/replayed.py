"""Rows of the quarantine as a replay takes them: where each comes from, and the JSON of rows read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.contracts.rejected import REASONS
from headrace.sources.parts import ROW_JSON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ID: Final = "__headrace_id"
"""The column with the id of the rejected row that a row comes from."""
PROBLEM: Final = "__headrace_problem"
"""The column that says why a row cannot be read back; NULL if it can."""
_CORRUPT = "__headrace_corrupt"


@dataclass(frozen=True)
class Rejected:
    """A row that stays in the quarantine, with its new reasons."""

    id: str
    reasons: Sequence[dict[str, Any]] = field(default_factory=tuple)
    row: str | None = None  # what the query returned for it now, as JSON; ``None`` keeps what the table has

    @classmethod
    def because(cls, id: str, kind: str, name: str, message: str | None = None) -> Rejected:
        """A row with one reason."""
        return cls(id, ({"kind": kind, "name": name, "message": message},))

    @classmethod
    def failing(cls, id: str, expectations: Sequence[str], row: str | None = None) -> Rejected:
        """A row that fails expectations."""
        return cls(id, [{"kind": "expectation", "name": name, "message": None} for name in expectations], row)


def has_record() -> Column:
    """Whether a rejected row still has its original record. The value of a record can be null."""
    from pyspark.sql import functions as F

    source = F.col("source")
    return source.isNotNull() & (source["value"].isNotNull() | F.col("row").isNull())


def rows_of_json(rejected: DataFrame, schema: StructType) -> DataFrame:
    """Read the JSON of rejected rows back.

    Returns:
        The rows, with `ID` and `PROBLEM`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    wide = StructType([*schema.fields]).add(_CORRUPT, StringType())
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
    """A row as the quarantine table keeps it."""
    from pyspark.sql import functions as F

    quoted = ("`" + name.replace("`", "``") + "`" for name in columns if name not in (ID, REASONS))
    return F.to_json(F.struct(*map(F.col, quoted)), ROW_JSON)
