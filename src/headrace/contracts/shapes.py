"""The shape of JSON values: the types that were seen in each field, merged record by record."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import reduce
from typing import Any, Literal

Kind = Literal["boolean", "number", "string", "object", "array"]
"""The type of a JSON value."""

Texts = Literal["", "date", "timestamp", "number", "text"]
"""The kind of all strings of a field; the empty text if there are none."""

Coordinates = tuple[str | int, ...]
"""The coordinates of a record: topic, partition and offset, or path and line."""

MAX_FIELDS = 1_000  # an object with more field names is a map
MAX_DEPTH = 100  # A value below this depth is kept as text
_SHOWN = 60
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-](0\d|1[0-4]):[0-5]\d)?"
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True, order=True)
class Example:
    at: Coordinates
    value: str


@dataclass(slots=True)
class Shape:
    """The types of all values of one field, each counted on its own: nothing is lost if they disagree."""

    nulls: int = 0
    booleans: int = 0
    numbers: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    whole: bool = True  # whether all numbers are integers
    scale: int = 0  # the most digits after the point, also of numbers in texts
    strings: int = 0
    texts: Texts = ""
    objects: int = 0
    fields: dict[str, Shape] = field(default_factory=dict)
    values: Shape | None = None
    arrays: int = 0
    items: Shape | None = None
    examples: dict[Kind, Example] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[Kind, int]:
        """The number of values of each kind that was seen; nulls have no kind."""
        found: dict[Kind, int] = {
            "boolean": self.booleans,
            "number": self.numbers,
            "string": self.strings,
            "object": self.objects,
            "array": self.arrays,
        }
        return {kind: count for kind, count in found.items() if count}

    def add(self, value: Any, at: Coordinates, depth: int = 0) -> None:
        # The order is that of frequency; this runs once for each value of each record.
        kind = type(value)
        if kind is str:
            self._add_text(value, at)
        elif kind is int or kind is float:
            if not self.numbers:
                self._keep_example("number", value, at)
            self.numbers += 1
            if value < self.low:
                self.low = value
            if value > self.high:
                self.high = value
            if kind is float:
                self.whole = False
                self.scale = max(self.scale, _digits_after_point(repr(value)))
        elif value is None:
            self.nulls += 1
        elif kind is bool:
            if not self.booleans:
                self._keep_example("boolean", value, at)
            self.booleans += 1
        elif depth >= MAX_DEPTH:
            self._add_text("a value below the maximum depth", at)
        elif kind is tuple:
            self._add_object(value, at, depth)
        elif kind is dict:
            self._add_object(tuple(value.items()), at, depth)
        else:
            self._add_array(value, at, depth)

    def forget(self, kind: Kind) -> None:
        """Forget the values of a kind."""
        match kind:
            case "boolean":
                self.booleans = 0
            case "number":
                self.numbers, self.low, self.high, self.whole = 0, float("inf"), float("-inf"), True
            case "string":
                self.strings, self.texts = 0, ""
            case "object":
                self.objects, self.fields, self.values = 0, {}, None
            case "array":
                self.arrays, self.items = 0, None

    def _add_text(self, value: str, at: Coordinates) -> None:
        if not self.strings:
            self._keep_example("string", value, at)
        self.strings += 1
        if self.texts != "text":
            self.texts = _merge_texts(self.texts, classify(value))
            if self.texts == "number" and "." in value:
                self.scale = max(self.scale, _digits_after_point(value))

    def _add_object(self, value: tuple[tuple[str, Any], ...], at: Coordinates, depth: int) -> None:
        if not self.objects:
            self._keep_example("object", value, at)
        self.objects += 1
        fields, depth = self.fields, depth + 1
        if self.values is not None:
            for _, one in value:
                self.values.add(one, at, depth)
            return
        for name, one in value:
            shape = fields.get(name)
            if shape is None:
                shape = fields[name] = Shape()
            shape.add(one, at, depth)
        if len(fields) > MAX_FIELDS:
            self._make_map()

    def _add_array(self, value: list[Any], at: Coordinates, depth: int) -> None:
        if not self.arrays:
            self._keep_example("array", value, at)
        self.arrays += 1
        if self.items is None:
            self.items = Shape()
        for item in value:
            self.items.add(item, at, depth + 1)

    def _make_map(self) -> None:
        self.values = reduce(merge, self.fields.values(), self.values or Shape())
        self.fields = {}

    def _keep_example(self, kind: Kind, value: Any, at: Coordinates) -> None:
        text = json.dumps(_with_dicts(value), ensure_ascii=False)
        self.examples[kind] = Example(at, text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ...")


decode_json = json.JSONDecoder(object_pairs_hook=tuple).decode
"""Parses JSON text. An object is a tuple of its names with their values, since a name can occur twice: Spark
parses each of the values, and keeps the last."""


def merge(left: Shape, right: Shape) -> Shape:
    """The shape of the values of both. It does not depend on the order, and changes neither of them."""
    merged = Shape(
        nulls=left.nulls + right.nulls,
        booleans=left.booleans + right.booleans,
        numbers=left.numbers + right.numbers,
        low=min(left.low, right.low),
        high=max(left.high, right.high),
        whole=left.whole and right.whole,
        scale=max(left.scale, right.scale),
        strings=left.strings + right.strings,
        texts=_merge_texts(left.texts, right.texts),
        objects=left.objects + right.objects,
        fields={
            name: _merge_optional(left.fields.get(name), right.fields.get(name)) or Shape()
            for name in (*left.fields, *(name for name in right.fields if name not in left.fields))
        },
        values=_merge_optional(left.values, right.values),
        arrays=left.arrays + right.arrays,
        items=_merge_optional(left.items, right.items),
        examples={
            kind: min(one for one in (left.examples.get(kind), right.examples.get(kind)) if one)
            for kind in (*left.examples, *(kind for kind in right.examples if kind not in left.examples))
        },
    )
    if merged.values is not None or len(merged.fields) > MAX_FIELDS:
        merged._make_map()
    return merged


def classify(text: str) -> Texts:
    """What a string is; a date or a timestamp only if Spark's readers read it as the same value."""
    start = text[:1]
    if not (start.isdecimal() or start == "-"):
        return "text"
    if _NUMBER.fullmatch(text):
        return "number"
    date = _DATE.fullmatch(text)
    if not date and not _TIMESTAMP.fullmatch(text):
        return "text"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return "text"
    return "date" if date else "timestamp"


def _digits_after_point(text: str) -> int:
    """The digits after the point of a number, without zeros at the end."""
    exponent = Decimal(text).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _with_dicts(value: Any) -> Any:
    match value:
        case tuple():
            return {name: _with_dicts(one) for name, one in value}
        case list():
            return [_with_dicts(one) for one in value]
    return value


def _merge_optional(left: Shape | None, right: Shape | None) -> Shape | None:
    if left is None or right is None:
        # A copy: shapes change when values are added.
        return merge(left or Shape(), right or Shape()) if left or right else None
    return merge(left, right)


def _merge_texts(left: Texts, right: Texts) -> Texts:
    if left == right or not right:
        return left
    return "text" if left else right
