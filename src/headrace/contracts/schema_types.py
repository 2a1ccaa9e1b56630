"""Types in Spark's JSON form: inferred, as DDL, widened by new records, and in files; needs no PySpark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from headrace.contracts.shapes import Shape, merge
from headrace.errors import SchemaInvalidError, SourceLocation
from headrace.runtime.places import replace_file

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
