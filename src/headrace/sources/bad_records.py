"""Bad records of a reader: left out of its rows and counted, and found again in the ranges of a batch."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.model.declarations import Drift
from headrace.model.texts import find_option
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType, T
from headrace.sources.decoders import TOO_LARGE, Decoder, decode_within
from headrace.sources.records import CARRIED, BadRecord, decode_or_stop, stop_at

if TYPE_CHECKING:
    from headrace.state.kept_schemas import SchemaVersions
    from headrace.storage.location import Location


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

    def to_json(self) -> dict[str, Any]:
        """The schema and the number; `from_json` reads them."""
        return {"source": self.versions.source, "number": self.number, "schema": self.schema.jsonValue()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], folder: Location, drift: Drift) -> Self:
        from headrace.state.kept_schemas import SchemaVersions

        versions = SchemaVersions(folder, value["source"])
        schema = T.StructType.fromJson(dict(value["schema"]))
        return cls(versions=versions, number=value["number"], schema=schema, drift=drift)


@dataclass(frozen=True)
class NewFields:
    """The fields that records of a range have, and the schema of their read has not."""

    # One row: ``schema``, that of these records as ``schema_of_variant_agg`` gives it, and ``example``, the
    # place of one of them as JSON
    frame: DataFrame
    evolving: Evolving


def schema_mark(options: Mapping[str, str]) -> dict[str, int]:
    """The mark of the ranges of a read that takes up new fields; empty for other reads."""
    number = find_option(options, SCHEMA_NUMBER)
    return {} if number is None else {SCHEMA_MARK: int(number)}


BadRecordRule = Literal["quarantine", "stop"]
"""Whether a bad record is moved to the quarantine table or stops the flow."""

TombstoneRule = Literal["quarantine", "skip", "keep"]
"""Whether a record without a value is a bad record, is dropped and counted, or becomes a row of NULLs."""

MAX_VALUE_BYTES: Final = 8 << 20
"""The default for the longest value that is decoded: eight times the default limit of a broker."""

VALUE_LIMIT: Final = "headrace.maxValueBytes"
"""An option that Spark ignores: the longest value that a read decodes, if it is not `MAX_VALUE_BYTES`."""

METRICS: Final = "headrace:records:"
"""How the name of the counts of a read begins; Spark keeps them with each batch of a query."""
SEEN, GOOD, SKIPPED = "seen", "good", "skipped"
"""The counts of a read: all records, those that become rows, and tombstones that are skipped."""

CODE = "__headrace_code"
"""The column with the reason why a record is bad."""
TOMBSTONE: Final = "TOMBSTONE"
RECORD: Final = "_record"
"""The column with the decoded record, before its fields become columns."""
_IS_NULL = "_is_null"


@dataclass(frozen=True)
class BadRecords:
    """The bad records that one read finds in a range of its source."""

    frame: DataFrame  # the records, with the column `CODE` and the parts of the original record
    counts: str  # the name of the counts of the range: `SEEN`, `GOOD` and `SKIPPED`
    rules: RecordRules
    new_fields: NewFields | None = None  # the fields that have no column, if the schema of the read evolves


@dataclass(frozen=True, kw_only=True)
class RecordRules:
    decoder: Decoder
    # Whether a bad record is moved to the quarantine table or stops the flow
    bad_records: BadRecordRule = "quarantine"
    tombstones: TombstoneRule = "quarantine"
    max_value_bytes: int = MAX_VALUE_BYTES
    notes_unknown: bool = False  # whether fields that have no column are counted
    evolving: Evolving | None = None  # the schema of the read, if it takes up new fields

    def decode(self, records: DataFrame, at: Sequence[Column], kept: Mapping[str, Column]) -> DataFrame:
        value, limit = F.col("value"), self.max_value_bytes
        further = [column.alias(name) for name, column in kept.items()]
        unknown = self.decoder.unknown(value) if self.notes_unknown else None
        if self.bad_records == "stop":
            on_null: Literal["refuse", "keep"] = "refuse" if self.tombstones == "quarantine" else "keep"
            record = decode_or_stop(self.decoder, value, at=at, on_null=on_null, max_bytes=limit, stops=True)
            if self.tombstones != "skip" and unknown is None:
                return records.select(record.alias(RECORD), *further).select(f"{RECORD}.*", *kept)
        else:
            record = decode_within(self.decoder, value, limit)
            if (stops := self.decoder.stops(value)) is not None:
                record = F.coalesce(record, F.when(stops, stop_at(self.decoder, value, at=at)))
        is_null, is_good = F.col(_IS_NULL), F.col(RECORD).isNotNull()
        if self.tombstones == "keep":
            is_good = is_good | is_null
        marks, metrics = [value.isNull().alias(_IS_NULL)], list[Column]()
        if unknown is not None:
            marks += [unknown.alias(_UNKNOWN), F.struct(*at).alias(_AT)]
            differs = F.size(_UNKNOWN) > 0
            names = F.array_distinct(F.flatten(F.collect_set(F.when(differs, F.col(_UNKNOWN)))))
            example = F.min(F.when(differs, F.to_json(_AT)))
            metrics = [F.to_json(names).alias(NAMES), example.alias(EXAMPLE)]
        decoded = records.select(record.alias(RECORD), *marks, *further)
        # Spark does not move the filter below the counts, so each record is decoded once.
        counted = decoded.observe(_name(), *self._counts(is_good), *metrics)
        return counted.where(is_good).select(f"{RECORD}.*", *kept)

    def find_bad(self, records: DataFrame, at: Sequence[Column], record: Sequence[Column]) -> BadRecords:
        """The bad records, and the new fields if the schema of the read evolves."""
        value = F.col("value")
        tombstone = F.lit(TOMBSTONE if self.tombstones == "quarantine" else None)
        code = (
            F.when(value.isNull(), tombstone)
            .when(F.octet_length(value) > self.max_value_bytes, F.lit(TOO_LARGE))
            .when(self.decoder.decode(value).isNull(), self.decoder.problem(value))
        )
        found = records.select(code.alias(CODE), value.isNull().alias(_IS_NULL), *record)
        is_good = F.col(CODE).isNull()
        if self.tombstones == "skip":
            is_good = is_good & ~F.col(_IS_NULL)
        name = _name()
        bad = found.observe(name, *self._counts(is_good)).where(F.col(CODE).isNotNull())
        return BadRecords(bad.drop(_IS_NULL), name, self, self._new_fields(records, at))

    def _new_fields(self, records: DataFrame, at: Sequence[Column]) -> NewFields | None:
        unknown = self.decoder.unknown(F.col("value"))
        if self.evolving is None or unknown is None:
            return None
        text = F.try_parse_json(F.col("value").cast("string"))
        place = F.to_json(F.struct(*at))
        differing = records.where(F.size(unknown) > 0).select(text.alias("record"), place.alias("place"))
        example, schema = F.min("place").alias("example"), F.schema_of_variant_agg("record").alias("schema")
        return NewFields(differing.agg(schema, example), self.evolving)

    def explain(self, code: str, value: bytes | None, size: int | None) -> str:
        if code == TOO_LARGE:
            return f"the value has {size:,} bytes; max_value_bytes is {self.max_value_bytes:,}"
        expected = self.decoder.expected
        bad = BadRecord(
            code=code,
            at={},
            value=value,
            is_cut=value is not None and len(value) >= CARRIED,
            schema=None if expected is None else json.loads(expected),
            mismatch=self.decoder.mismatch,
        )
        return bad.describe()

    def _counts(self, is_good: Column) -> tuple[Column, ...]:
        is_skipped = F.col(_IS_NULL) if self.tombstones == "skip" else F.lit(False)
        return (
            F.count(F.lit(1)).alias(SEEN),
            F.count_if(is_good).alias(GOOD),
            F.count_if(is_skipped).alias(SKIPPED),
        )


def _name() -> str:
    return f"{METRICS}{uuid.uuid4()}"
