"""Infers the schema of JSON and CSV records; starts no Spark, and keeps no record in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.contracts.schema_types import build_type
from headrace.contracts.shapes import Coordinates, Kind, Shape, decode_json

_EXAMPLES = 5
_EXACT = 2**53
"""The largest integer up to which a DOUBLE has all integers."""


@dataclass(frozen=True)
class CorruptRecord:
    """A record that is not a JSON object."""

    at: Coordinates
    problem: str
    excerpt: str


@dataclass
class Inference:
    """The records that were read so far, and their shape."""

    records: int = 0
    tombstones: int = 0
    corrupt: int = 0  # the number of records that were left out
    corrupt_records: list[CorruptRecord] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)

    def add_json(
        self, value: bytes | None, at: Coordinates, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add a record in JSON; a record that is not a JSON object is counted as corrupt."""
        if value is None:
            self.tombstones += 1
            return
        try:
            record = decode_json(value.decode("utf-8"))
        except UnicodeDecodeError as error:
            self.leave_out(value, at, f"not valid UTF-8 at byte {error.start + 1}")
        except json.JSONDecodeError as error:
            problem = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"
            self.leave_out(value, at, f"not valid JSON: {problem}")
        except (ValueError, RecursionError) as error:
            self.leave_out(value, at, f"not readable JSON: {error}")
        else:
            if type(record) is not tuple:
                self.leave_out(value, at, "not a JSON object")
            elif columns:
                own = tuple(pair for pair in record if pair[0] not in columns)
                self.add_object((*own, *columns.items()), at)
            else:
                self.add_object(record, at)

    def add_object(self, record: Mapping[str, Any] | tuple[tuple[str, Any], ...], at: Coordinates) -> None:
        """Add a parsed record."""
        self.records += 1
        self.shape.add(record, at)

    def leave_out(self, value: bytes, at: Coordinates, problem: str) -> None:
        """Count a corrupt record."""
        self.corrupt += 1
        if len(self.corrupt_records) < _EXAMPLES:
            excerpt = value[:60].decode("utf-8", errors="backslashreplace")
            self.corrupt_records.append(CorruptRecord(at, problem, excerpt))


@dataclass(frozen=True)
class Finding:
    """A field that needs a decision."""

    path: str  # the field, such as ``order.lines[].price``
    problem: str
    became: str
    examples: tuple[tuple[Kind, int, Coordinates, str], ...] = ()


def find_conflicts(shape: Shape, path: str = "") -> Iterator[Finding]:
    """The fields whose values have several types or are rounded, or whose names differ only in case."""
    kinds = shape.kinds
    if len(kinds) > 1:
        examples = tuple(
            (kind, count, shape.examples[kind].at, shape.examples[kind].value)
            for kind, count in kinds.items()
        )
        yield Finding(path, "values of several types", "STRING", examples)
        return
    rounded = [one for one in (shape.low, shape.high) if isinstance(one, int) and abs(one) > _EXACT]
    if rounded and build_type(shape) == "double":
        yield Finding(path, f"integers such as {rounded[0]} are rounded", "DOUBLE")
    first: dict[str, str] = {}
    for name in shape.fields:
        other = first.setdefault(name.lower(), name)
        if other != name:
            problem = f"differs from `{_join(path, other)}` only in case; a table cannot have both columns"
            yield Finding(_join(path, name), problem, "a field of its own")
    for inner, inner_path in _inner(shape, path):
        yield from find_conflicts(inner, inner_path)


def find_empty(shape: Shape, path: str = "") -> Iterator[Finding]:
    """The fields that have only nulls, only empty objects or only empty arrays."""
    kinds = shape.kinds
    if not kinds:
        yield Finding(path, "only nulls" if shape.nulls else "only empty arrays", "STRING")
    elif "object" in kinds and len(kinds) == 1 and not shape.fields and shape.values is None:
        yield Finding(path, "only empty objects", "STRING")
    elif len(kinds) == 1:
        for inner, inner_path in _inner(shape, path):
            yield from find_empty(inner, inner_path)


def _inner(shape: Shape, path: str) -> Iterator[tuple[Shape, str]]:
    for name, one in shape.fields.items():
        yield one, _join(path, name)
    if shape.values is not None:
        yield shape.values, f"{path}{{}}"
    if shape.items is not None:
        yield shape.items, f"{path}[]"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
