"""The JSON Schema of `headrace.yml`, for editors."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from headrace.declare import spec_model
from headrace.declare.spec_model import KAFKA_SETTINGS, Overridable, Spec

SCHEMA_FILE = "headrace.schema.json"
"""The name under which `headrace init` writes it beside the spec."""

_PLAIN = ["string", "number", "boolean"]


def build_schema() -> dict[str, Any]:
    """The schema of a spec with its profiles."""
    describe_fields()
    profile = Overridable.model_json_schema()
    parts = profile.pop("$defs")
    settings = profile["properties"]
    trigger = [{"$ref": "#/$defs/Interval"}, {"type": ["string", "number"]}]
    settings["trigger"] = {"description": settings["trigger"]["description"], "anyOf": trigger}
    for name in ("kafka", "configuration"):
        settings[name]["additionalProperties"] = {"type": _PLAIN}
    settings["kafka"]["properties"] = {key: {"type": _PLAIN} for key in sorted(KAFKA_SETTINGS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "headrace.yml",
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {
            "name": _relaxed(Spec.model_json_schema()["properties"]["name"]),
            **{key: {"$ref": f"#/$defs/Profile/properties/{key}"} for key in settings},
            "profiles": {
                "description": "values that replace those of the spec, by the name of the profile",
                "type": "object",
                "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Profile"}, {"type": "null"}]},
            },
        },
        "$defs": _relaxed({**parts, "Profile": profile}),
    }


@cache
def describe_fields() -> None:
    """Sets the docstring below each field of the spec's models as the description of the field."""
    texts: dict[type[BaseModel], dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(spec_model)).body:
        if isinstance(node, ast.ClassDef):
            model = getattr(spec_model, node.name)
            texts[model] = dict(_texts(node))
            for parent in model.__mro__:
                for name, text in texts.get(parent, {}).items():
                    model.model_fields[name].description = text
            model.model_rebuild(force=True)


def _texts(model: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The name of each field that has a docstring below it, with this docstring."""
    for field, below in pairwise(model.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)


def _relaxed(schema: Any) -> Any:
    """The schema with `${NAME}` allowed for numbers and flags, and without what editors do not show."""
    if isinstance(schema, list):
        return [_relaxed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _relaxed(value) for key, value in schema.items() if key not in ("title", "default")}
    if isinstance(kept.get("description"), str):
        kept["description"] = re.sub(r"``([^`]+)``", r"`\1`", " ".join(kept["description"].split()))
    if kept.get("type") in ("number", "boolean"):
        kept["type"] = [kept["type"], "string"]
    if "enum" in kept:
        values = {key: kept.pop(key) for key in ("enum", "type")}
        kept["anyOf"] = [values, {"type": "string", "pattern": r"^\$\{"}]
    return kept
