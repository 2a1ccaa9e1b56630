"""Bad records of a reader: left out of its rows and counted, and found again in the ranges of a batch."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from headrace.sources.decoders import Decoder
from headrace.sources.records import CARRIED, BadRecord, decode_or_stop

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

BadRecordRule = Literal["quarantine", "stop"]
"""Whether a bad record is moved to the quarantine table or stops the flow."""

METRICS: Final = "headrace:records:"
"""How the name of the counts of a read begins; Spark keeps them with each batch of a query."""
SEEN, GOOD = "seen", "good"
"""The counts of a read: all records, and those that become rows."""

CODE = "__headrace_code"
"""The column with the reason why a record is bad."""
TOMBSTONE: Final = "TOMBSTONE"
_RECORD = "_record"


@dataclass(frozen=True)
class BadRecords:
    """The bad records that one read finds in a range of its source.

    Args:
        frame: The records, with the column `CODE` and the parts of the original record.
        seen: Counts all records of the range as `SEEN`, while the frame is computed.
        schema: The declared schema in Spark's JSON form, for messages.
    """

    frame: DataFrame
    seen: Observation
    schema: str | None


@dataclass(frozen=True, kw_only=True)
class RecordRules:
    """What a reader does with records that do not become rows.

    Args:
        decoder: The decoder of the format.
        bad_records: Whether a bad record is moved to the quarantine table or stops the flow.
        on_null: What to do with a record without a value.
    """

    decoder: Decoder
    bad_records: BadRecordRule = "quarantine"
    on_null: Literal["refuse", "drop", "keep"] = "refuse"

    def decode(self, records: DataFrame, at: Sequence[Column], kept: Mapping[str, Column]) -> DataFrame:
        """The rows of the records.

        Args:
            records: The records, with the column ``value``.
            at: Columns that identify a record in the error that stops the flow.
            kept: Further columns of the rows, by name.

        Returns:
            The fields of the record and the columns of ``kept``.
        """
        from pyspark.sql import functions as F

        value = F.col("value")
        further = [column.alias(name) for name, column in kept.items()]
        keeps = self.on_null == "keep"
        if self.on_null == "drop":
            records = records.where(value.isNotNull())
        if self.bad_records == "stop":
            record = decode_or_stop(self.decoder, value, at=at, on_null="keep" if keeps else "refuse")
            return records.select(record.alias(_RECORD), *further).select(f"{_RECORD}.*", *kept)
        record = self.decoder.decode(value).alias(_RECORD)
        is_good = F.col(_RECORD).isNotNull()
        marks = []
        if keeps:
            marks = [value.isNull().alias("_is_null")]
            is_good = is_good | F.col("_is_null")
        decoded = records.select(record, *marks, *further)
        # Spark does not move the filter below the counts, so each record is decoded once.
        counted = decoded.observe(
            f"{METRICS}{uuid.uuid4()}",
            F.count(F.lit(1)).alias(SEEN),
            F.count_if(is_good).alias(GOOD),
        )
        return counted.where(is_good).select(f"{_RECORD}.*", *kept)

    def find_bad(self, records: DataFrame, record: Sequence[Column]) -> BadRecords:
        """The bad records.

        Args:
            records: The records, with the column ``value``.
            record: The parts of the original record, under the names of the quarantine's ``source``.
        """
        from pyspark.sql import Observation, functions as F

        value = F.col("value")
        code = F.when(self.decoder.decode(value).isNull(), self.decoder.problem(value))
        null = F.lit(TOMBSTONE if self.on_null == "refuse" else None)
        code = F.when(value.isNull(), null).otherwise(code).alias(CODE)
        seen = Observation()
        counted = records.select(code, *record).observe(seen, F.count(F.lit(1)).alias(SEEN))
        return BadRecords(counted.where(F.col(CODE).isNotNull()), seen, self.decoder.expected)


def explain(code: str, value: bytes | None, schema: str | None) -> str:
    """Why a record is bad, in one sentence.

    Args:
        code: The reason.
        value: The first bytes of the record; None if it has no value.
        schema: The declared schema, in Spark's JSON form.
    """
    bad = BadRecord(
        code=code,
        at={},
        value=value,
        is_cut=value is not None and len(value) >= CARRIED,
        schema=None if schema is None else json.loads(schema),
    )
    return bad.describe()
