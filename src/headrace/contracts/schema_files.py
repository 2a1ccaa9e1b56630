"""The schema files of a pipeline: one JSON file of Spark's form for each topic or folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.contracts.schema_types import Type
from headrace.errors import SchemaInvalidError, SourceLocation

FOLDER = "schemas"


def load_schema_file(path: Path, shown: str) -> Type | None:
    """The schema in a file; None if there is no file.

    Raises:
        SchemaInvalidError: The file is not a schema.
    """
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
    """Write a schema; a reader never sees half of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(render_schema(schema) + "\n", encoding="utf-8")
    temporary.replace(path)


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
        params={"file": shown},
    )
