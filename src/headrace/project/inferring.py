"""Reads the records of a topic or folder for `headrace infer`, and compares their schema with its file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.contracts.inference import Finding, Inference, find_conflicts, find_empty
from headrace.contracts.schema_types import (
    Type,
    TypeChange,
    build_type,
    columns_ddl,
    find_changes,
    load_schema_file,
    to_ddl,
    widen,
    write_schema_file,
)
from headrace.errors import FileExistsInTheWayError, SchemaNotInferredError
from headrace.model.kafka_settings import KafkaConnection
from headrace.sources.kafka.consumer import Span, TopicReader, TopicRecord

if TYPE_CHECKING:
    from headrace.contracts.schema_types import Coordinates

_STRETCHES = 10  # a sample of a partition is taken from so many places, spread evenly


@dataclass(frozen=True)
class InferredSchema:
    """The schema of a topic or folder, and how it differs from its file."""

    source: str
    inference: Inference
    schema: Type  # the schema to write: that of the records, or the file's schema, widened by them
    changes: tuple[TypeChange, ...] | None  # how `schema` differs from the file; None if there is no file
    seconds: float

    @property
    def ddl(self) -> str:
        return columns_ddl(self.schema)

    @property
    def conflicts(self) -> list[Finding]:
        return list(find_conflicts(self.inference.shape))

    @property
    def empty(self) -> list[Finding]:
        return list(find_empty(self.inference.shape))

    def to_json(self) -> dict[str, Any]:
        found = self.inference
        return {
            "source": self.source,
            "records": found.records,
            "tombstones": found.tombstones,
            "corrupt": found.corrupt,
            "corrupt_records": [
                {"position": at_text(one.at), "problem": one.problem, "excerpt": one.excerpt}
                for one in found.corrupt_records
            ],
            "duration_s": round(self.seconds, 2),
            "schema": self.schema,
            "ddl": self.ddl,
            "conflicts": [_finding_json(one) for one in self.conflicts],
            "tolerated": [_finding_json(one) for one in found.tolerated],
            "empty": [{"field": one.path, "problem": one.problem, "type": one.became} for one in self.empty],
            "changes": None
            if self.changes is None
            else [{"field": one.path, "before": one.before, "after": one.after} for one in self.changes],
        }


def _finding_json(one: Finding) -> dict[str, Any]:
    return {
        "field": one.path,
        "problem": one.problem,
        "type": one.became,
        "examples": [
            {"kind": kind, "values": count, "position": at_text(at), "value": value}
            for kind, count, at, value in one.examples
        ],
    }


def infer_topic(connection: KafkaConnection, topic: str, *, sample: int | None = None) -> Inference:
    """Read a topic up to its current end. `sample`: the number of records to read, from stretches that are
    spread evenly over each partition."""
    reader = TopicReader(connection, topic)
    span = reader.find_span("earliest")
    inference = Inference()
    for stretch in [span] if sample is None else choose_stretches(span, sample):
        for record in reader.read(stretch):
            inference.add_json(record.value, (topic, record.partition, record.offset))
    return inference


def choose_stretches(span: Span, sample: int) -> list[Span]:
    """The spans of a sample: of each partition the first records, the last, and stretches between them."""
    sizes = {one: end - span.first[one] for one, end in span.end.items() if end > span.first[one]}
    total = sum(sizes.values())
    if total <= sample:
        return [span]
    stretches: list[tuple[dict[int, int], dict[int, int]]] = [({}, {}) for _ in range(_STRETCHES)]
    for partition, size in sizes.items():
        share = max(1, sample * size // total)
        count = min(_STRETCHES, share)
        length = share // count
        for number in range(count):
            offset = span.first[partition] + (size - length) * number // max(count - 1, 1)
            stretches[number][0][partition] = offset
            stretches[number][1][partition] = offset + length
    return [Span(first, end) for first, end in stretches if first]


def compare(source: str, inference: Inference, file: Path, shown: str, seconds: float) -> InferredSchema:
    if not inference.records:
        raise _no_records(source, inference)
    before = load_schema_file(file, shown)
    after = build_type(inference.shape) if before is None else widen(before, inference.shape)
    if after == "string" or after["type"] != "struct":
        raise _no_columns(source, inference)
    changes = None if before is None else tuple(find_changes(before, after))
    return InferredSchema(source, inference, after, changes, seconds)


def save(found: InferredSchema, file: Path, shown: str, *, update: bool) -> bool:
    """Write the schema file; returns whether the file was written."""
    if found.changes is not None and not found.changes:
        return False
    if found.changes is not None and not update:
        raise FileExistsInTheWayError(
            f"the schema file {shown} does not have all fields and types of {found.source}",
            facts=[*change_lines(found.changes), "the file was not changed"],
            remedies=[
                f"merge them into the file:   headrace infer {found.source} --update",
                "or remove the file, and infer the schema again",
            ],
            params={"path": shown, "changes": [one.path for one in found.changes]},
        )
    write_schema_file(file, found.schema)
    return True


def change_lines(changes: tuple[TypeChange, ...]) -> Iterator[str]:
    for one in changes:
        if one.before is None:
            yield f"+ {one.path} {one.after}"
        else:
            yield f"~ {one.path} {one.before} -> {one.after}"


def at_text(at: Coordinates) -> str:
    """The coordinates of a record: ``orders/0/17``, or ``landing/a.json:3``."""
    return ("/" if len(at) == 3 else ":").join(map(str, at))


def _place_text(at: Coordinates) -> str:
    """The coordinates of a record in words: ``partition 0, offset 17``, or ``landing/a.json:3``."""
    return f"partition {at[1]}, offset {at[2]}" if len(at) == 3 else at_text(at)


def field_lines(schema: Type) -> list[tuple[str, str]]:
    return [(one["name"], to_ddl(one["type"])) for one in schema["fields"]]


def _no_records(source: str, inference: Inference) -> SchemaNotInferredError:
    facts = [
        f"records that are not JSON objects: {inference.corrupt:,}",
        *([f"records without a value: {inference.tombstones:,}"] if inference.tombstones else []),
        *(f"{_place_text(one.at)}: {one.problem}: {one.excerpt}" for one in inference.corrupt_records),
    ]
    return SchemaNotInferredError(
        f"{source} has no record from which a schema can be inferred",
        facts=facts if inference.corrupt or inference.tombstones else ["it has no records"],
        remedies=['read records that are not JSON as text, with format="text" in the reader']
        if inference.corrupt
        else ['declare the columns in the reader: schema="id LONG, name STRING"'],
        params={"source": source, "corrupt": inference.corrupt, "tombstones": inference.tombstones},
    )


def _no_columns(source: str, inference: Inference) -> SchemaNotInferredError:
    is_map = inference.shape.values is not None
    problem = "have more different field names than a table can have" if is_map else "have no fields"
    return SchemaNotInferredError(
        f"the records of {source} {problem}",
        facts=[f"records that were read: {inference.records:,}"],
        remedies=['read them as text: format="text"'],
        params={"source": source, "records": inference.records},
    )


_SAMPLE_RECORDS = 100_000

_CONNECT_TYPES = dict.fromkeys(("int8", "int16", "int32", "int64"), "long") | {
    "float": "double",
    "double": "double",
    "bytes": "binary",
    "boolean": "boolean",
    "string": "string",
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
    """Read about `_SAMPLE_RECORDS` records of a topic, in groups that are spread evenly."""
    reader = TopicReader(connection, topic)
    span = reader.find_span("earliest")
    sample = TopicSample(held=sum(end - span.first[one] for one, end in span.end.items()))
    for stretch in choose_stretches(span, _SAMPLE_RECORDS):
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
    """The types of the columns whose type the given schema sets."""
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
