"""The shapes of JSON values, and types in Spark's JSON form: inferred, as DDL, widened, and in files. No
PySpark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from headrace.errors import SchemaInvalidError, SourceLocation
from headrace.runtime.places import replace_file

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


Type = Any
"""A type in Spark's JSON form: its name, or an object for a struct, an array or a map."""

_INTEGERS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_DDL = {"integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_MAX_DIGITS = 38
_KEEPS_ALL = ("string", "variant")


def build_type(shape: Shape) -> Type:
    """The type of a shape; STRING if its values have several types, or none."""
    kinds = shape.kinds
    if len(kinds) != 1:
        return "string"
    match next(iter(kinds)):
        case "boolean":
            return "boolean"
        case "number":
            return _number("long", shape)
        case "string":
            return shape.texts if shape.texts in ("date", "timestamp") else "string"
        case "array":
            element = build_type(shape.items or Shape())
            return {"type": "array", "elementType": element, "containsNull": True}
        case "object" if shape.values is not None:
            return _map(build_type(shape.values))
        case "object":
            fields = [_field(name, build_type(one)) for name, one in shape.fields.items()]
            return {"type": "struct", "fields": fields} if fields else "string"


def widen(kind: Type, shape: Shape) -> Type:
    """A declared type that holds the values of a shape, too; fields are never removed, else it is STRING."""
    kinds = shape.kinds
    if not kinds or kind in _KEEPS_ALL:
        return kind
    if len(kinds) > 1:
        return "string"
    name = kind if isinstance(kind, str) else kind.get("type")
    match next(iter(kinds)), name:
        case "object", "struct" if shape.values is None:
            return {**kind, "fields": list(_widen_fields(kind["fields"], shape.fields))}
        case "object", "struct":
            return _map(build_type(shape.values or Shape()))
        case "object", "map":
            values = shape.values or reduce(merge, shape.fields.values(), Shape())
            return {**kind, "valueType": widen(kind["valueType"], values)}
        case "array", "array":
            return {**kind, "elementType": widen(kind["elementType"], shape.items or Shape())}
        case "boolean", "boolean":
            return kind
        case "number", _ if isinstance(kind, str):
            return _number(kind, shape)
        case "string", _ if isinstance(kind, str) and _holds_texts(kind, shape.texts):
            return _number(kind, shape) if _DECIMAL.fullmatch(kind) else kind
    return "string"


def to_ddl(kind: Type) -> str:
    """A type as DDL; a struct as in ``STRUCT<id: LONG>``."""
    if isinstance(kind, str):
        return _DDL.get(kind, kind.upper().replace(",", ", ").replace(",  ", ", "))
    match kind["type"]:
        case "array":
            return f"ARRAY<{to_ddl(kind['elementType'])}>"
        case "map":
            return f"MAP<{to_ddl(kind['keyType'])}, {to_ddl(kind['valueType'])}>"
        case "struct":
            fields = (f"{quote(one['name'])}: {to_ddl(one['type'])}" for one in kind["fields"])
            return f"STRUCT<{', '.join(fields)}>"
    return str(kind["type"]).upper()


def columns_ddl(schema: Type) -> str:
    """The columns of a schema as DDL, such as ``id LONG, name STRING``."""
    return ", ".join(f"{quote(one['name'])} {to_ddl(one['type'])}" for one in schema["fields"])


def quote(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"


@dataclass(frozen=True)
class TypeChange:
    """A field that a schema gains, or whose type changes."""

    path: str  # the field, such as ``order.lines[].price``
    before: str | None  # its type as DDL; None for a new field
    after: str


def find_changes(before: Type, after: Type, path: str = "") -> Iterator[TypeChange]:
    if before == after:
        return
    kinds = [one.get("type") if isinstance(one, Mapping) else None for one in (before, after)]
    match kinds:
        case ["struct", "struct"]:
            known = {one["name"]: one["type"] for one in before["fields"]}
            for one in after["fields"]:
                name = f"{path}.{one['name']}" if path else one["name"]
                if one["name"] in known:
                    yield from find_changes(known[one["name"]], one["type"], name)
                else:
                    yield TypeChange(name, None, to_ddl(one["type"]))
        case ["array", "array"]:
            yield from find_changes(before["elementType"], after["elementType"], f"{path}[]")
        case ["map", "map"]:
            yield from find_changes(before["valueType"], after["valueType"], f"{path}{{}}")
        case _:
            yield TypeChange(path, to_ddl(before), to_ddl(after))


def _widen_fields(declared: list[Any], fields: Mapping[str, Shape]) -> Iterator[Any]:
    names = {one["name"] for one in declared}
    for one in declared:
        shape = fields.get(one["name"])
        yield one if shape is None else {**one, "type": widen(one["type"], shape)}
    for name, shape in fields.items():
        if name not in names:
            yield _field(name, build_type(shape))


def _number(kind: str, shape: Shape) -> Type:
    """A numeric type, or a timestamp as seconds, as wide as the numbers of a shape need it."""
    if kind in ("float", "double"):
        return kind
    if kind in ("timestamp", "timestamp_ntz") and shape.whole:
        return kind
    if found := _DECIMAL.fullmatch(kind):
        return _decimal(int(found[1]), int(found[2]), shape)
    if kind not in _INTEGERS:
        return "string"
    if not shape.whole:
        return "double"
    for name, bits in _INTEGERS.items():
        if bits >= _INTEGERS[kind] and -(2**bits) <= shape.low and shape.high < 2**bits:
            return name
    return _decimal(19, 0, shape)


def _decimal(precision: int, scale: int, shape: Shape) -> Type:
    largest = max(abs(shape.low), abs(shape.high)) if shape.low <= shape.high else 0
    if largest == float("inf"):
        return "double"
    digits = len(str(int(largest))) if largest >= 1 else 0
    whole, scale = max(precision - scale, digits), max(scale, shape.scale)
    precision = whole + scale
    return f"decimal({precision},{scale})" if precision <= _MAX_DIGITS else "double"


def _holds_texts(kind: str, texts: str) -> bool:
    match kind:
        case "date":
            return texts == "date"
        case "timestamp" | "timestamp_ntz":
            return texts in ("date", "timestamp")
        case "binary":
            return True
    return bool(_DECIMAL.fullmatch(kind)) and texts == "number"


def _field(name: str, kind: Type) -> Mapping[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _map(value: Type) -> Mapping[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


FOLDER = "schemas"


def load_schema_file(path: Path, shown: str) -> Type | None:
    try:
        text = path.read_text(encoding="utf-8-sig")
        value: Any = json.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _invalid(shown, str(error)) from error
    if not isinstance(value, dict) or value.get("type") != "struct" or not _is_type(value):
        raise _invalid(shown, 'it is not an object such as {"type": "struct", "fields": [..]}')
    return value


def write_schema_file(path: Path, schema: Type) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, render_schema(schema) + "\n")


def render_schema(kind: Type, indent: str = "") -> str:
    """A type as JSON text, with one line for each field of a struct, so that changes are easy to review."""
    if isinstance(kind, str):
        return json.dumps(kind)
    if kind["type"] == "struct":
        deeper = indent + "  "
        lines = ",\n".join(f"{deeper}{_render_members(one, deeper)}" for one in kind["fields"])
        return f'{{"type": "struct", "fields": [\n{lines}\n{indent}]}}'
    return _render_members(kind, indent)


def _render_members(value: dict[str, Any], indent: str) -> str:
    parts = []
    for name, one in value.items():
        is_type = isinstance(one, dict) and "type" in one
        text = render_schema(one, indent) if is_type else json.dumps(one, ensure_ascii=False)
        parts.append(f"{json.dumps(name)}: {text}")
    return "{" + ", ".join(parts) + "}"


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return True
    if not isinstance(value, dict):
        return False
    match value.get("type"):
        case "struct":
            fields = value.get("fields")
            return isinstance(fields, list) and all(
                isinstance(one, dict) and isinstance(one.get("name"), str) and _is_type(one.get("type"))
                for one in fields
            )
        case "array":
            return _is_type(value.get("elementType"))
        case "map":
            return _is_type(value.get("keyType")) and _is_type(value.get("valueType"))
    return False


def _invalid(shown: str, problem: str) -> SchemaInvalidError:
    return SchemaInvalidError(
        f"the schema file {shown} cannot be parsed as a StructType",
        location=SourceLocation(shown, 1),
        facts=[problem, "nothing was written"],
        remedies=["correct the file, or remove it and infer the schema again"],
        params={"path": shown},
    )
