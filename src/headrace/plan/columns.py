"""Columns of queries and tables: comparison, lookup, and whether Delta can store them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Schema = Mapping[str, Any]  # columns as ``StructType.jsonValue()`` gives them
WIDENED = frozenset({("TINYINT", "SMALLINT"), ("TINYINT", "INT"), ("SMALLINT", "INT")})
"""Pairs of types (of the query, of the table) that Delta's writer converts."""

_UNSTORABLE = frozenset({"void", "null", "interval"})
_CHARACTERS = " ,;{}()\n\t="  # the characters that Delta refuses in a column's name


def redact_comments(part: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(part, Mapping):
        return {
            key: redact(value)
            if key == "comment" and isinstance(value, str)
            else redact_comments(value, redact)
            for key, value in part.items()
        }
    return [redact_comments(one, redact) for one in part] if isinstance(part, list) else part


def fields(schema: Schema) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = schema["fields"]
    return found


def find(schema: Schema, path: str) -> Mapping[str, Any] | None:
    """The column or struct field of a dotted path; case is ignored, as in Spark."""
    head, _, rest = path.partition(".")
    for field in fields(schema):
        if field["name"].lower() == head.lower():
            inner = field["type"]
            if not rest:
                return field
            return find(inner, rest) if isinstance(inner, dict) and inner.get("type") == "struct" else None
    return None


def paths(schema: Schema, prefix: str = "") -> Iterator[str]:
    """The dotted paths of columns and struct fields."""
    for field in fields(schema):
        inner = field["type"]
        yield f"{prefix}{field['name']}"
        if isinstance(inner, dict) and inner.get("type") == "struct":
            yield from paths(inner, f"{prefix}{field['name']}.")


def type_text(data_type: Any) -> str:
    if isinstance(data_type, str):
        return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(
            data_type, data_type.upper()
        )
    match data_type["type"]:
        case "struct":
            inner = ", ".join(f"{f['name']}: {type_text(f['type'])}" for f in data_type["fields"])
            return f"STRUCT<{inner}>"
        case "array":
            return f"ARRAY<{type_text(data_type['elementType'])}>"
        case "map":
            return f"MAP<{type_text(data_type['keyType'])}, {type_text(data_type['valueType'])}>"
        case other:
            return type_text(data_type.get("sqlType", other)) if other == "udt" else str(other)


def same_type(left: Any, right: Any) -> bool:
    """Whether two types are equal, apart from nullability, metadata and the case of names."""
    return bool(_shape(left) == _shape(right))


def is_wider(now: str, before: str) -> bool:
    """Whether Delta can change a column to a wider type without a rewrite (type widening)."""
    if now in _WIDER.get(before, ()):
        return True
    digits = _decimal(now)
    held = _decimal(before) or _AS_DECIMAL.get(before)
    if digits is None or held is None:
        return False
    (whole, fraction), (held_whole, held_fraction) = digits, held
    return whole >= held_whole and fraction >= held_fraction


_WIDER: Mapping[str, tuple[str, ...]] = {
    "TINYINT": ("SMALLINT", "INT", "BIGINT", "DOUBLE"),
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DATE": ("TIMESTAMP_NTZ",),
}
_AS_DECIMAL = {"TINYINT": (10, 0), "SMALLINT": (10, 0), "INT": (10, 0), "BIGINT": (20, 0)}
"""The digits before and after the point that Delta requires of a decimal for these types."""


def _decimal(text: str) -> tuple[int, int] | None:
    """The digits of a decimal before and after the point."""
    found = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", text)
    return None if found is None else (int(found[1]) - int(found[2]), int(found[2]))


def altered(schema: Schema, renamed: Mapping[str, str], dropped: Iterable[str]) -> Schema:
    names = {path.lower(): name for path, name in renamed.items()}
    gone = {path.lower() for path in dropped}

    def struct(schema: Schema, above: str) -> Schema:
        kept = []
        for field in fields(schema):
            path = f"{above}{field['name'].lower()}"
            inner = field["type"]
            if isinstance(inner, dict) and inner.get("type") == "struct":
                inner = struct(inner, f"{path}.")
            if path not in gone:
                kept.append({**field, "name": names.get(path, field["name"]), "type": inner})
        return {**schema, "fields": kept}

    return struct(schema, "")


def sibling(path: str, name: str) -> str:
    """The dotted path of the field with another name in the same struct."""
    above = path.rpartition(".")[0]
    return f"{above}.{name}" if above else name


def has_grown(now: Any, before: Any) -> bool:
    """Whether a type is another one with further struct fields, each after those that were there."""
    if isinstance(now, str) or isinstance(before, str) or now["type"] != before["type"]:
        return same_type(now, before)
    match now["type"]:
        case "struct":
            pairs = list(zip(now["fields"], before["fields"], strict=False))
            return len(pairs) == len(before["fields"]) and all(
                one["name"].lower() == other["name"].lower() and has_grown(one["type"], other["type"])
                for one, other in pairs
            )
        case "array":
            return has_grown(now["elementType"], before["elementType"])
        case _:
            return same_type(now, before)


def new_fields(now: Any, before: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The columns and fields that were added, where `has_grown`; with paths for Delta's ``ADD COLUMNS``."""
    if isinstance(now, str) or isinstance(before, str) or now["type"] != before["type"]:
        return
    if now["type"] == "array":
        yield from new_fields(now["elementType"], before["elementType"], (*path, "element"))
    elif now["type"] == "struct":
        for field in now["fields"]:
            held = find_column(before, field["name"])
            if held is None:
                yield (*path, field["name"]), field
            elif has_grown(field["type"], held["type"]):
                yield from new_fields(field["type"], held["type"], (*path, field["name"]))


def _shape(data_type: Any) -> Any:
    if isinstance(data_type, str):
        return data_type
    match data_type["type"]:
        case "struct":
            return ["struct", *((f["name"].lower(), _shape(f["type"])) for f in data_type["fields"])]
        case "array":
            return ["array", _shape(data_type["elementType"])]
        case "map":
            return ["map", _shape(data_type["keyType"]), _shape(data_type["valueType"])]
        case _:
            return json.dumps(data_type, sort_keys=True)


def merged(schemas: Iterable[Schema]) -> Schema:
    """The columns of several schemas, each once, in the order of their first occurrence."""
    columns: dict[str, Mapping[str, Any]] = {}
    for schema in schemas:
        for field in fields(schema):
            columns.setdefault(field["name"].lower(), field)
    return {"type": "struct", "fields": list(columns.values())}


def widened(now: Schema, before: Schema, keys: Iterable[str]) -> list[tuple[str, str, str]]:
    """The columns but keys that Delta can make wider: name, new type and type in the table."""
    return [
        (name, to, was)
        for name, to, was in conflicts(now, before)
        if (to, was) not in WIDENED and name not in keys and is_wider(to, was)
    ]


def refused_changes(
    now: Schema, before: Schema, allowed: Iterable[tuple[str, str, str]] = (), fixed: Collection[str] = ()
) -> list[tuple[str, str, str]]:
    """The columns with another type, which a run does not change: name, new type and type in the table."""
    changed = set(allowed)
    return [
        one
        for one in conflicts(now, before)
        if one[1:] not in WIDENED
        and one not in changed
        and (
            one[0] in fixed
            or not has_grown(find_column(now, one[0])["type"], find_column(before, one[0])["type"])  # type: ignore[index]
        )
    ]


def conflicts(left: Schema, right: Schema) -> list[tuple[str, str, str]]:
    """Columns with the same name and different types: the name and both types."""
    return [
        (field["name"], type_text(field["type"]), type_text(other["type"]))
        for field in fields(left)
        if (other := find_column(right, field["name"])) is not None
        and not same_type(field["type"], other["type"])
    ]


def missing(schema: Schema, within: Schema) -> list[str]:
    return [field["name"] for field in fields(schema) if find_column(within, field["name"]) is None]


def find_column(schema: Schema, name: str) -> Mapping[str, Any] | None:
    """The column of a name; case is ignored, as Spark does."""
    return next((field for field in fields(schema) if field["name"].lower() == name.lower()), None)


class Unstorable(NamedTuple):
    column: str
    reason: str
    remedies: tuple[str, ...]


def unstorable(schema: Schema, *, maps_names: bool = False) -> Unstorable | None:
    """The first column that Delta cannot store; mapped names may have any character."""
    seen: dict[str, str] = {}
    for field in fields(schema):
        name = field["name"]
        if name.lower() in seen:
            other = f"the column `{seen[name.lower()]}` has the same name (Delta ignores case)"
            return Unstorable(name, other, ("drop one of the two columns, or give it another name",))
        seen[name.lower()] = name
        if not maps_names and any(character in _CHARACTERS for character in name):
            plain = re.sub(r"\W+", "_", name).strip("_") or "name"
            return Unstorable(
                name,
                f"its name has {_shown(name)}, which Delta allows only with column mapping",
                (
                    f'rename it: .withColumnRenamed("{name}", "{plain}"), or in SQL: `{name}` AS {plain}',
                    "or keep the name with column mapping, which Polars and delta-rs cannot read:   "
                    'table_properties={"delta.columnMapping.mode": "name"}',
                ),
            )
        if reason := _unstorable_type(field["type"]):
            cast = f'cast it, for example: F.col("{name}").cast("STRING"), or in SQL: CAST({name} AS STRING)'
            inner = "cast that part of it, or leave it out"
            return Unstorable(name, reason, (cast if isinstance(field["type"], str) else inner,))
    return None


def _shown(name: str) -> str:
    """The first character of a name that Delta does not allow, as messages name it."""
    found = next(one for one in name if one in _CHARACTERS)
    return {" ": "a space", "\n": "a line break", "\t": "a tab"}.get(found, f"the character `{found}`")


def _unstorable_type(data_type: Any) -> str | None:
    if isinstance(data_type, str):
        if data_type in _UNSTORABLE or data_type.startswith("interval"):
            return f"Delta cannot store the type {data_type.upper()}"
        return None
    inner = [data_type.get(key) for key in ("elementType", "keyType", "valueType")]
    inner += [field["type"] for field in data_type.get("fields", ())]
    return next((reason for one in inner if one is not None and (reason := _unstorable_type(one))), None)
