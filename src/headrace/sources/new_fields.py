"""The fields of records that have no column: counted with each batch, and found again if a schema evolves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.model.declarations import Drift
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType

if TYPE_CHECKING:
    from headrace.state.schema_versions import SchemaVersions

NAMES: Final = "unknown_fields"
"""The metric with the names of the fields that have no column, as JSON."""
SCHEMA_NUMBER: Final = "headrace.schemaNumber"
"""An option that Spark ignores: the number of the schema of a read that takes up new fields."""
SCHEMA_MARK: Final = "schema"
"""The mark of a range with this number."""
EXAMPLE: Final = "unknown_example"
"""The metric with the place of one of these records, as JSON."""
_UNKNOWN, _AT = "__headrace_unknown", "__headrace_at"


@dataclass(frozen=True, kw_only=True)
class Evolving:
    """The schema of a read, which takes up new fields."""

    versions: SchemaVersions
    number: int  # the number of the version that the read has; 0 for the declared schema
    schema: StructType
    drift: Drift


@dataclass(frozen=True)
class NewFields:
    """The fields that records of a range have, and the schema of their read has not."""

    # One row: ``schema``, that of these records as ``schema_of_variant_agg`` gives it, and ``example``, the
    # place of one of them as JSON
    frame: DataFrame
    evolving: Evolving


def schema_mark(options: Mapping[str, str]) -> dict[str, int]:
    """The mark of the ranges of a read that takes up new fields; empty for other reads."""
    number = next((value for name, value in options.items() if name.lower() == SCHEMA_NUMBER.lower()), None)
    return {} if number is None else {SCHEMA_MARK: int(number)}


def find_new_fields(
    records: DataFrame, unknown: Column, at: Sequence[Column], evolving: Evolving
) -> NewFields:
    """Look for new fields."""
    text = F.try_parse_json(F.col("value").cast("string"))
    place = F.to_json(F.struct(*at))
    differing = records.where(F.size(unknown) > 0).select(text.alias("record"), place.alias("place"))
    found = differing.agg(F.schema_of_variant_agg("record").alias("schema"), F.min("place").alias("example"))
    return NewFields(found, evolving)


def mark_unknown(unknown: Column, at: Sequence[Column]) -> list[Column]:
    """Columns of a record for `unknown_metrics`."""
    return [unknown.alias(_UNKNOWN), F.struct(*at).alias(_AT)]


def unknown_metrics() -> list[Column]:
    """The metrics `NAMES` and `EXAMPLE` of records with the columns of `mark_unknown`."""
    differs = F.size(_UNKNOWN) > 0
    names = F.array_distinct(F.flatten(F.collect_set(F.when(differs, F.col(_UNKNOWN)))))
    return [F.to_json(names).alias(NAMES), F.min(F.when(differs, F.to_json(_AT))).alias(EXAMPLE)]
