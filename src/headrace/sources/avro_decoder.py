"""The decoder of Avro records, with or without the wire format of Confluent's schema registry."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.sources.decoders import UNPARSEABLE, Decoder

if TYPE_CHECKING:
    from pyspark.sql import Column

UNKNOWN_ID: Final = "HEADRACE_UNKNOWN_SCHEMA_ID "
"""Begins the message with which a query fails at a record whose schema id it does not know."""

_END = "headrace"
_END_BYTES = bytes([2 * len(_END)]) + _END.encode()
"""The end mark as Avro writes a string."""
_PREFIX = 5
"""The bytes before a record in the wire format: zero, and the id of its schema in four bytes."""


@dataclass(frozen=True)
class AvroDecoder(Decoder):
    """Avro; a record becomes the fields of the reader's schema.

    Args:
        reader: The schema to which all records are resolved, as JSON text.
        writers: The schemas of records in the wire format, by id; None if records have no wire format and
            were written with the reader's schema.
    """

    mismatch = "the record is not one Avro record of its schema"

    reader: str
    writers: Mapping[int, str] | None = None

    def decode(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        if self.writers is None:
            return F.when(value.isNotNull(), self._resolve(value, self.reader))
        prefix = F.substring(value, 1, _PREFIX)
        is_wire = (F.substring(value, 1, 1) == F.lit(b"\x00")) & (F.length(value) >= _PREFIX)
        number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
        decoded = F.when(is_wire, F.raise_error(F.concat(F.lit(UNKNOWN_ID), number)))
        for known, writer in self.writers.items():
            payload = F.substring(value, _PREFIX + 1, 2**31 - 1)
            is_known = prefix == F.lit(b"\x00" + known.to_bytes(4, "big"))
            decoded = F.when(is_known, self._resolve(payload, writer)).otherwise(decoded)
        return decoded

    def problem(self, value: Column) -> Column:
        from pyspark.sql import functions as F

        return F.lit(UNPARSEABLE)

    def _resolve(self, payload: Column, writer: str) -> Column:
        """The record of a payload; NULL if it is not one whole record of the writer's schema."""
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        # Spark gives a row of NULLs for a malformed record, and ignores bytes after the record. A string of
        # ours behind the record is read only if the record is whole.
        options = {"avroSchema": _with_end(self.reader), "mode": "PERMISSIVE"}
        parsed = from_avro(F.concat(payload, F.lit(_END_BYTES)), _with_end(writer), options)
        # The array makes Spark parse once and use the result twice.
        return F.transform(F.array(parsed), lambda one: F.when(one["end"] == _END, one["record"]))[0]


def find_unknown_id(message: str) -> int | None:
    """The schema id that a query did not know; None if it failed for another reason."""
    found = re.search(f"{UNKNOWN_ID}(\\d+)", message)
    return None if found is None else int(found[1])


def _with_end(schema: str) -> str:
    record: Any = json.loads(schema)
    fields = [{"name": "record", "type": record}, {"name": "end", "type": "string"}]
    return json.dumps({"type": "record", "name": "HeadraceEnvelope", "fields": fields})
