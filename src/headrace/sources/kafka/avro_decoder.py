"""The decoder of Avro records, with or without the wire format of Confluent's schema registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Final

from headrace.runtime.lazy_pyspark import Column, DataType, F, T
from headrace.sources.decoders import UNPARSEABLE, Decoder

UNKNOWN_ID: Final = "HEADRACE_UNKNOWN_SCHEMA_ID "
"""Begins the message with which a query fails at a record whose schema id it does not know."""

_END = "headrace"
_END_BYTES = bytes([2 * len(_END)]) + _END.encode()
"""The end mark as Avro writes a string."""
_MOST_LEVELS = 50
"""Levels of fields that are looked at: a schema can refer to itself, which Spark refuses."""
_PREFIX = 5
"""The bytes before a record in the wire format: zero, and the id of its schema in four bytes."""


@dataclass(frozen=True)
class AvroDecoder(Decoder):
    """Avro; a record becomes the fields of the reader's schema."""

    mismatch = (
        "the record is not one Avro record of its schema, with strings in valid UTF-8, or its decimals have "
        "another scale than those of the reader's schema"
    )

    reader: str  # the schema to which all records are resolved, as JSON text
    # The schemas of records in the wire format, by id; None if records have no wire format and were written
    # with the reader's schema
    writers: Mapping[int, str] | None = None

    def decode(self, value: Column) -> Column:
        kind = self._type()
        if self.writers is None:
            return F.when(value.isNotNull(), self._resolve(value, self.reader, kind))
        prefix = F.substring(value, 1, _PREFIX)
        is_wire = (F.substring(value, 1, 1) == F.lit(b"\x00")) & (F.length(value) >= _PREFIX)
        number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
        unknown = F.when(is_wire, F.raise_error(F.concat(F.lit(UNKNOWN_ID), number)))
        payload = F.substring(value, _PREFIX + 1, 2**31 - 1)
        # One flat CASE: nested ones would be as deep as the subject has versions.
        cases: Any = F
        for known, writer in self.writers.items():
            is_known = prefix == F.lit(b"\x00" + known.to_bytes(4, "big"))
            # Avro resolves decimals as bytes: 1.50 would be read as 0.150.
            same = have_same_scales(json.loads(writer), json.loads(self.reader))
            record = self._resolve(payload, writer, kind) if same else F.lit(None).cast(kind)
            cases = cases.when(is_known, record)
        decoded: Column = cases.otherwise(unknown)
        return decoded

    def problem(self, value: Column) -> Column:
        return F.lit(UNPARSEABLE)

    def _type(self) -> DataType:
        from pyspark.sql import SparkSession
        from pyspark.sql.avro.functions import from_avro

        record = from_avro(F.lit(b""), self.reader)
        return SparkSession.active().range(0).select(record).schema[0].dataType

    def _resolve(self, payload: Column, writer: str, kind: DataType) -> Column:
        """The record of a payload; NULL if it is not one whole record of the writer's schema."""
        from pyspark.sql.avro.functions import from_avro

        # Spark gives a row of NULLs for a malformed record, and ignores bytes after the record. A string of
        # ours behind the record is read only if the record is whole.
        options = {"avroSchema": _with_end(self.reader), "mode": "PERMISSIVE"}
        parsed = from_avro(F.concat(payload, F.lit(_END_BYTES)), _with_end(writer), options)

        def whole(parsed: Column) -> Column:
            return F.when(
                (parsed["end"] == _END) & _has_valid_strings(parsed["record"], kind), parsed["record"]
            )

        # The array makes Spark parse once and use the result several times.
        return F.transform(F.array(parsed), whole)[0]


def _has_valid_strings(value: Column, kind: DataType) -> Column:
    """Whether all strings of a value are valid UTF-8; Spark does not check the bytes of Avro's strings."""
    match kind:
        case T.StringType():
            valid = F.is_valid_utf8(value)
        case T.StructType():
            parts = [_has_valid_strings(value[one.name], one.dataType) for one in kind.fields]
            valid = reduce(and_, parts, F.lit(True))
        case T.ArrayType():
            valid = F.forall(value, lambda item: _has_valid_strings(item, kind.elementType))
        case T.MapType():
            keys = F.forall(F.map_keys(value), F.is_valid_utf8)
            valid = keys & F.forall(
                F.map_values(value), lambda item: _has_valid_strings(item, kind.valueType)
            )
        case _:
            return F.lit(True)
    return F.coalesce(valid, F.lit(True))


def have_same_scales(writer: Any, reader: Any) -> bool:
    """Whether the decimals that two Avro schemas have in the same fields have the same scale."""
    ours = dict(_scales(reader, (), {}))
    return all(ours.get(path, scale) == scale for path, scale in _scales(writer, (), {}))


def _scales(kind: Any, path: tuple[str, ...], named: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    """The scales of the decimals of an Avro schema, by the names of the fields around them."""
    if len(path) > _MOST_LEVELS:
        return
    if isinstance(kind, dict) and "name" in kind:
        named[kind["name"]] = kind
    match kind:
        case {"logicalType": "decimal"}:
            yield path, int(kind.get("scale", 0))
        case {"fields": fields}:
            for one in fields:
                yield from _scales(one["type"], (*path, one["name"]), named)
        case {"items": inner} | {"values": inner}:
            yield from _scales(inner, (*path, ""), named)
        case {"type": dict() | list() as inner}:
            yield from _scales(inner, path, named)
        case list():
            for one in kind:
                yield from _scales(one, path, named)
        case str() if kind in named:
            yield from _scales(named[kind], path, named)


def _with_end(schema: str) -> str:
    record: Any = json.loads(schema)
    fields = [{"name": "record", "type": record}, {"name": "end", "type": "string"}]
    return json.dumps({"type": "record", "name": "HeadraceEnvelope", "fields": fields})
