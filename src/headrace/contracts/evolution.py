"""New columns for a schema whose records have changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.declarations import RESCUED, Drift, DriftAction, field_name

Type = str | Mapping[str, Any]
"""A type as ``StructType.jsonValue()`` gives it."""

_LARGEST = "decimal(38,0)"
_UNNAMEABLE = re.compile(r"[ ,;{}()\n\t=]")
_RESERVED = ("_source", "_metadata", RESCUED)  # columns that readers add


@dataclass(frozen=True, kw_only=True)
class Evolution:
    schema: Mapping[str, Any]
    added: tuple[str, ...] = ()  # the dotted names of the new fields
    # The names of new fields that cannot become columns, with the reason.
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.added)


def evolve(schema: Mapping[str, Any], found: Mapping[str, Any], drift: Drift) -> Evolution:
    change = _Change(drift)
    fields = change.merged(schema["fields"], found["fields"], "", drift.default)
    return Evolution(
        schema={"type": "struct", "fields": fields}, added=tuple(change.added), refused=tuple(change.refused)
    )


class _Change:
    def __init__(self, drift: Drift) -> None:
        self._drift = drift
        self.added: list[str] = []
        self.refused: list[tuple[str, str]] = []

    def merged(
        self,
        fields: Sequence[Mapping[str, Any]],
        found: Iterable[Mapping[str, Any]],
        path: str,
        inherited: DriftAction | None,
    ) -> list[Mapping[str, Any]]:
        """The fields of a struct together with the found fields; ``path`` ends with a dot, or is empty."""
        types = {one["name"]: one["type"] for one in found}
        actions = {name: self._drift.own(path, name) or inherited for name in types}
        kept = [
            {
                **one,
                "type": self._grown(one["type"], types.pop(name), f"{path}{field_name(name)}", actions[name]),
            }
            if (name := one["name"]) in types
            else one
            for one in fields
        ]
        new = {name: kind for name, kind in types.items() if actions[name] == "evolve"}
        added = self._usable(new, {one["name"].lower() for one in kept}, path)
        self.added += [f"{path}{one['name']}" for one in added]
        return [*kept, *added]

    def _usable(self, new: Mapping[str, Type], taken: set[str], path: str) -> list[Mapping[str, Any]]:
        """The new fields that can be columns and have values."""
        usable: list[Mapping[str, Any]] = []
        for name, found in new.items():
            if self._drift.own(path, name) not in ("evolve", None):
                continue
            reason = _unusable(name, taken)
            if reason is None and not path and name.lower() in _RESERVED:
                reason = "readers add a column of this name"
            if reason is not None:
                self.refused.append((f"{path}{name}", reason))
            elif (kind := self._storable(found, f"{path}{field_name(name)}.")) is not None:
                taken.add(name.lower())
                usable.append({"name": name, "type": kind, "nullable": True, "metadata": {}})
        return usable

    def _storable(self, kind: Type, path: str) -> Type | None:
        """A type without fields that cannot be columns or have no values; ``None`` if nothing is left."""
        if isinstance(kind, str):
            return None if kind == "void" else kind
        if kind["type"] == "array":
            element = self._storable(kind["elementType"], path)
            return None if element is None else {**kind, "elementType": element}
        fields = self._usable({one["name"]: one["type"] for one in kind["fields"]}, set(), path)
        return {**kind, "fields": fields} if fields else None

    def _grown(self, now: Type, found: Type, path: str, action: DriftAction | None) -> Type:
        if isinstance(now, Mapping) and isinstance(found, Mapping) and now["type"] == found["type"]:
            if now["type"] == "struct":
                return {**now, "fields": self.merged(now["fields"], found["fields"], f"{path}.", action)}
            if now["type"] == "array":
                element = self._grown(now["elementType"], found["elementType"], path, action)
                return {**now, "elementType": element}
            return now
        return now


def _unusable(name: str, taken: set[str]) -> str | None:
    """Why a field cannot become a column; ``None`` if it can."""
    if name.lower() in taken:
        return "another column has this name in other letter case"
    return "Delta does not allow its name" if not name or _UNNAMEABLE.search(name) else None


def from_variant(text: str) -> Mapping[str, Any]:
    """The schema of records from the result of ``schema_of_variant_agg``, as ``StructType.jsonValue()``.

    A field has the type of all its values: DOUBLE for numbers with decimals, DECIMAL(38,0) for integers
    beyond 64 bits, and STRING where types differ.
    """
    found = _Parser(text).parse()
    return found if isinstance(found, Mapping) and found["type"] == "struct" else _struct([])


def _struct(fields: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    return {"type": "struct", "fields": fields}


_TOKEN = re.compile(r"`(?:[^`]|``)*`|[^\s<>,:()`]+|[<>,:()]")
_SIMPLE = {"BIGINT": "long", "DOUBLE": "double", "FLOAT": "double", "BOOLEAN": "boolean", "VOID": "void"}


class _Parser:
    """Reads types such as ``OBJECT<a: BIGINT, b: ARRAY<VARIANT>>``."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._next = 0

    def parse(self) -> Type:
        name = self._take()
        if name == "OBJECT":
            return _struct(self._fields())
        if name == "ARRAY":
            self._take()
            element = self.parse()
            self._take()
            return {"type": "array", "elementType": element, "containsNull": True}
        if name == "DECIMAL":
            _, _, _, scale, _ = (self._take() for _ in range(5))
            return _LARGEST if scale == "0" else "double"
        # VARIANT: values of several types. Text is what all of them can be read as.
        return _SIMPLE.get(name, "string")

    def _fields(self) -> list[Mapping[str, Any]]:
        fields: list[Mapping[str, Any]] = []
        if self._peek() != "<":
            return fields
        while self._take() != ">":
            if self._peek() == ">":
                continue
            name = self._take()
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            self._take()
            fields.append({"name": name, "type": self.parse(), "nullable": True, "metadata": {}})
        return fields

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str:
        token = self._tokens[self._next]
        self._next += 1
        return str(token)
