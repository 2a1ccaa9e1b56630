"""Reads a sample of a topic for `headrace ingest`: the schema of its values and the form of its keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.contracts.inference import Inference
from headrace.contracts.schema_types import Type
from headrace.model.kafka_settings import KafkaConnection
from headrace.project.inferring import choose_stretches
from headrace.sources.kafka.consumer import TopicReader, TopicRecord

RECORDS = 100_000
"""The number of records in a sample."""

_CONNECT_TYPES = {
    "boolean": "boolean",
    "int8": "long",
    "int16": "long",
    "int32": "long",
    "int64": "long",
    "float": "double",
    "double": "double",
    "string": "string",
    "bytes": "binary",
}
_CONNECT_NAMES = (
    (re.compile(r"(io\.debezium\.time|org\.apache\.kafka\.connect\.data)\.Date"), "date"),
    (
        re.compile(
            r"io\.debezium\.time\.(Timestamp|MicroTimestamp|NanoTimestamp|ZonedTimestamp)"
            r"|org\.apache\.kafka\.connect\.data\.Timestamp"
        ),
        "timestamp",
    ),
)


@dataclass
class TopicSample:
    inference: Inference = field(default_factory=Inference)
    records: int = 0
    held: int = 0
    without_key: int = 0
    binary_keys: int = 0  # the number of records whose key is not UTF-8 text
    key_fields: tuple[str, ...] = ()  # the field names of the first key that is a JSON object
    # The types that the records of Debezium declare, by column.
    declared: dict[str, Type] = field(default_factory=dict)


def read_sample(connection: KafkaConnection, topic: str, *, debezium: bool) -> TopicSample:
    """Read about `RECORDS` records of a topic, in groups that are spread evenly."""
    reader = TopicReader(connection, topic)
    span = reader.find_span("earliest")
    sample = TopicSample(held=sum(end - span.first[one] for one, end in span.end.items()))
    for stretch in choose_stretches(span, RECORDS):
        for record in reader.read(stretch):
            sample.records += 1
            _add_key(sample, record.key)
            at = (topic, record.partition, record.offset)
            if debezium:
                _add_change(sample, record, at)
            else:
                sample.inference.add_json(record.value, at)
    return sample


def _add_key(sample: TopicSample, key: bytes | None) -> None:
    if key is None:
        sample.without_key += 1
        return
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        sample.binary_keys += 1
        return
    if not sample.key_fields and text.lstrip().startswith("{"):
        parsed = _payload(_parsed(text))
        sample.key_fields = tuple(parsed) if isinstance(parsed, dict) else ()


def _add_change(sample: TopicSample, record: TopicRecord, at: tuple[str, int, int]) -> None:
    """Add the rows of a change event: those before and after the change."""
    inference = sample.inference
    if record.value is None:
        inference.tombstones += 1
        return
    envelope = _parsed(record.value)
    change = _payload(envelope)
    if not isinstance(change, dict) or "op" not in change:
        inference.leave_out(record.value, at, "not a change event of Debezium")
        return
    rows = [one for one in (change.get("after"), change.get("before")) if isinstance(one, dict)]
    for row in rows:
        inference.shape.add(row, at)
    inference.records += 1
    if change is not envelope and not sample.declared:
        sample.declared = _declared_types(envelope["schema"])


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _payload(value: Any) -> Any:
    """The value without the schema part that Kafka Connect can add."""
    has_schema = isinstance(value, dict) and isinstance(value.get("schema"), dict) and "payload" in value
    return value["payload"] if has_schema else value


def _declared_types(schema: Mapping[str, Any]) -> dict[str, Type]:
    """The types of the columns, of those that the schema part says exactly."""
    row: Mapping[str, Any] = next(
        (one for one in schema.get("fields", ()) if one.get("field") == "after"), {}
    )
    found = {one.get("field"): _declared_type(one) for one in row.get("fields", ())}
    return {name: kind for name, kind in found.items() if name and kind}


def _declared_type(column: Mapping[str, Any]) -> Type | None:
    name = column.get("name") or ""
    if name == "org.apache.kafka.connect.data.Decimal":
        parameters = column.get("parameters") or {}
        return f"decimal({parameters.get('connect.decimal.precision', 38)},{parameters.get('scale', 0)})"
    named = next((kind for pattern, kind in _CONNECT_NAMES if pattern.fullmatch(name)), None)
    return named or _CONNECT_TYPES.get(column.get("type", ""))
