"""The variables of an asset bundle: ``${var.x}``, ``${bundle.x}``, ``${resources.x}``, ``${workspace.x}``."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.declare.spec_values import BUNDLE_PREFIX, Mapped, Scalar, Sequence, Value
from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.texts import option_text

_REFERENCE = re.compile(r"\$\{([A-Za-z][\w-]*(?:\.[\w-]+|\[\d+\])+)\}")
_DECLARING = frozenset({"default", "description", "lookup", "type"})
"""The keys of a variable's declaration; any other mapping is the value of a complex variable."""


@dataclass
class BundleVariables:
    """Replaces variables by their values; a variable without one becomes a variable of the environment."""

    document: Mapped  # the bundle with its included files and its target
    declared: Mapping[str, Value]  # the declarations of variables, those of the target last
    target: str
    folder: Path
    unset: dict[str, None] = field(default_factory=dict)

    def fill(self, value: Value, within: tuple[str, ...] = ()) -> Value:
        match value:
            case Mapped():
                filled = {key: self.fill(item, within) for key, item in value.items.items()}
                return Mapped(filled, value.keys, value.location)
            case Sequence():
                return Sequence(tuple(self.fill(item, within) for item in value.items), value.location)
            case Scalar(value=str(text)):
                return self._filled(text, value, within)
            case _:
                return value

    def _filled(self, text: str, scalar: Scalar, within: tuple[str, ...]) -> Value:
        if (whole := _REFERENCE.fullmatch(text)) is not None:
            return self._value(whole[1], scalar.location, within)
        location = scalar.location
        pieces: list[str] = []
        start = 0
        for one in _REFERENCE.finditer(text):
            known = len(self.unset)
            found = self._value(one[1], scalar.location, within)
            if not isinstance(found, Scalar):
                raise SpecInvalidError(
                    f"`{one[0]}` is not a text, so it cannot be a part of one",
                    location=scalar.location,
                    remedies=[f"name one of its fields:   ${{{one[1]}.FIELD}}"],
                    params={"variable": one[1]},
                )
            if len(self.unset) > known:
                # The line that names the variable without a value, maybe the default of another variable.
                location = found.location
            pieces += [text[start : one.start()], option_text(found.value)]
            start = one.end()
        joined = "".join([*pieces, text[start:]])
        return Scalar(joined, joined, location)

    def _value(self, name: str, location: SourceLocation, within: tuple[str, ...]) -> Value:
        if name in within:
            raise SpecInvalidError(
                f"the variable `{name}` refers to itself",
                location=location,
                facts=[" -> ".join((*within[within.index(name) :], name))],
                remedies=["give one of them a value"],
                params={"variable": name},
            )
        first, *rest = re.findall(r"[\w-]+", name)
        found: Value | str | None
        if first in ("var", "variables"):
            if first == "variables" and rest[-1:] in (["default"], ["value"]):
                del rest[-1]
            bare = f"{BUNDLE_PREFIX}{rest[0]}"
            found = os.environ.get(bare, _below(_default(self.declared.get(rest[0])), rest[1:]))
        else:
            bare = re.sub(r"\W+", "_", name).upper()
            found = os.environ.get(bare) or self._computed(name)
            if found is None:
                found = _below(self.document, [first, *rest])
        if found is None or (isinstance(found, Scalar) and found.value is None):
            # Databricks takes the values of variables from the same names.
            self.unset[bare] = None
            text = f"${{{bare}}}"
            return Scalar(text, text, location)
        if isinstance(found, str):
            found = Scalar(found, found, location)
        return self.fill(found, (*within, name))

    def _computed(self, name: str) -> str | None:
        """A value that no file has: of the chosen target, of this machine, or of a schema or volume."""
        match name.split("."):
            case ["bundle", "target" | "environment"]:
                return self.target
            case ["bundle", "git", "branch"]:
                return _git(self.folder, "--abbrev-ref", "HEAD")
            case ["bundle", "git", "commit"]:
                return _git(self.folder, "HEAD")
            case ["workspace", "file_path" | "root_path"]:
                return str(self.folder)
            case ["workspace", "current_user", one]:
                user = getpass.getuser()
                replaced = {"short_name": "_", "domain_friendly_name": "-"}.get(one)
                return user if replaced is None else re.sub(r"[^A-Za-z0-9]", replaced, user)
            case ["resources", "schemas", key, "id"]:
                return f"${{resources.schemas.{key}.catalog_name}}.${{resources.schemas.{key}.name}}"
            case ["resources", "volumes", key, "id" | "volume_path" as one]:
                parts = [
                    f"${{resources.volumes.{key}.{part}}}" for part in ("catalog_name", "schema_name", "name")
                ]
                return ".".join(parts) if one == "id" else f"/Volumes/{'/'.join(parts)}"
            case _:
                return None


def _default(declared: Value | None) -> Value | None:
    """The value of a variable: its default, or the value that the target gives it."""
    if isinstance(declared, Mapped) and declared.items and set(declared.items) <= _DECLARING:
        return declared.items.get("default")
    return declared


def _below(value: Value | None, path: list[str]) -> Value | None:
    for part in path:
        if isinstance(value, Mapped):
            value = value.items.get(part)
        elif isinstance(value, Sequence) and part.isdigit() and int(part) < len(value.items):
            value = value.items[int(part)]
        else:
            return None
    return value


def _git(folder: Path, *what: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", *what], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
