"""The values of a spec: YAML with source locations, and variables from the environment and other files."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headrace.declare.spec_model import SETTINGS
from headrace.errors import (
    DotenvInvalidError,
    SourceLocation,
    SpecFileUnreadableError,
    SpecInvalidError,
    SpecVariableUnsetError,
)
from headrace.model.secrets import Redactor, is_secret_key

DOTENV = ".env"
BUNDLE_PREFIX = "BUNDLE_VAR_"
"""Environment variables with this prefix are the variables of a bundle."""
_VARIABLE = re.compile(r"\$(\$)?\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_LARGEST = 1 << 20  # the size limit in bytes of a file that holds a value


def shown_path(file: Path) -> str:
    """The path of a file as the user would type it."""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


def load_dotenv(folder: Path, shown: str) -> dict[str, str]:
    """The variables of the spec's ``.env`` file, taken literally: a password may contain a ``$``."""
    from dotenv.parser import parse_stream

    file = folder / DOTENV
    if not file.is_file():  # a virtual environment may have the name, too
        return {}
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DotenvInvalidError(f"{shown} cannot be read: {reason}", params={"path": shown}) from error
    found: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        # A statement begins with the empty lines before it.
        leading = binding.original.string[: -len(binding.original.string.lstrip()) or None]
        line = binding.original.line + leading.count("\n")
        if binding.error or (binding.key is not None and binding.value is None):
            raise DotenvInvalidError(
                f"{shown} has a line that is not NAME=value",
                location=SourceLocation(shown, line),
                remedies=["write NAME=value, with quotes around a value that has spaces or a #"],
                params={"path": shown, "line": line},
            )
        if binding.key is not None:
            found[binding.key] = binding.value or ""
    return found


class Filler:
    """Fills in variables, and adds secret values to the redactor."""

    def __init__(self, folder: Path, dotenv: Mapping[str, str], redactor: Redactor) -> None:
        self._folder = folder
        self._dotenv = dotenv
        self._redactor = redactor
        self._unset: dict[str, list[tuple[str, SourceLocation]]] = {}

    def fill(self, value: Value) -> Any:
        filled = self._plain(value, ())
        if self._unset:
            raise self._unset_error()
        return filled

    def _plain(self, value: Value, path: tuple[str, ...]) -> Any:
        match value:
            case Mapped():
                return {
                    key: self._plain(item, (*path, key))
                    for key, item in value.items.items()
                    if not (isinstance(item, Scalar) and item.value is None)
                }
            case Sequence():
                return [self._plain(item, path) for item in value.items]
            case Scalar():
                if isinstance(value.value, str):
                    return self._filled(value, path)
                # Settings are passed on literally: `1e3` and `true` are text to Kafka and Spark.
                return value.text if path and path[0] in SETTINGS and len(path) > 1 else value.value

    def _filled(self, scalar: Scalar, path: tuple[str, ...]) -> str:
        secret = any(map(is_secret_key, path[:1] + path[-1:]))

        def fill(found: re.Match[str]) -> str:
            if found[1]:  # $${NAME} stands for ${NAME} itself
                return "${" + found[2] + "}"
            if found[2].startswith(_FILE):
                return self._file(found[2].removeprefix(_FILE), scalar)
            value = self._variable(found[2], scalar, path)
            if secret or is_secret_key(found[2].partition(":-")[0]):
                self._redactor.add(value)
            return value

        if "${" in _VARIABLE.sub("", scalar.text):
            raise SpecInvalidError(
                "a `${` has no closing brace",
                location=scalar.location,
                remedies=["write ${NAME}, or $${ for the characters themselves"],
                params={"key": ".".join(path)},
            )
        filled = _VARIABLE.sub(fill, scalar.text)
        if secret:
            self._redactor.add(filled)
        self._redactor.add_logins(filled)
        return filled

    def _variable(self, text: str, scalar: Scalar, path: tuple[str, ...]) -> str:
        name, separator, default = text.partition(":-")
        if not _NAME.fullmatch(name):
            raise SpecInvalidError(
                f"`${{{text}}}` is not a variable",
                location=scalar.location,
                remedies=["write ${NAME}, ${NAME:-default} or ${file:PATH}"],
                params={"text": f"${{{text}}}"},
            )
        value = os.environ.get(name, self._dotenv.get(name))
        if separator and not value:
            return default
        if value is None:
            self._unset.setdefault(name, []).append((".".join(path), scalar.location))
            return ""
        return value

    def _file(self, text: str, scalar: Scalar) -> str:
        path = self._folder / Path(text.strip()).expanduser()
        wrong = None
        try:
            if not text.strip():
                wrong = "the path after `file:` is missing"
            elif path.is_dir():
                wrong = f"{path} is a folder"
            elif path.stat().st_size > _LARGEST:
                wrong = f"{path} is larger than {_LARGEST >> 20} MB"
            else:
                value = path.read_text(encoding="utf-8").rstrip("\r\n")
                self._redactor.add(value)
                return value
        except FileNotFoundError:
            wrong = f"{path} does not exist"
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            wrong = f"{path} is not UTF-8 text"
        raise SpecFileUnreadableError(
            f"`${{file:{text}}}`: {wrong}",
            location=scalar.location,
            remedies=[f"create {path}, or correct the path" if text.strip() else "add the path of a file"],
            params={"path": str(path)},
        )

    def _unset_error(self) -> SpecVariableUnsetError:
        names = list(self._unset)
        first = names[0]
        summary = f"the environment variables {', '.join(names)} are not set"
        if len(names) == 1:
            summary = f"the environment variable {first} is not set"
            if first.startswith(BUNDLE_PREFIX):
                summary = f"the variable `{first.removeprefix(BUNDLE_PREFIX)}` of the bundle has no value"
        return SpecVariableUnsetError(
            summary,
            location=self._unset[first][0][1],
            facts=[
                f"{name} is used by {key} ({location})"
                for name, uses in self._unset.items()
                for key, location in uses
            ],
            remedies=[
                f"export {first}=..",
                f"or write {first}=.. into {self._folder / '.env'}",
                *_defaults(first, self._unset[first][0][1]),
            ],
            params={
                "variable": first,
                "variables": {name: [key for key, _ in uses] for name, uses in self._unset.items()},
            },
        )


def _defaults(name: str, location: SourceLocation) -> list[str]:
    """How to give a variable a default; those of a bundle have their own names there."""
    in_bundle = Path(location.path).name.startswith("databricks.")
    if name.startswith(BUNDLE_PREFIX):
        variable = name.removeprefix(BUNDLE_PREFIX)
        return [f"or give it a value in the bundle:   variables: {{{variable}: {{default: VALUE}}}}"]
    return [] if in_bundle else [f"or give a default in the spec: ${{{name}:-default}}"]


def collect_literals(value: Value, redactor: Redactor, path: tuple[str, ...] = ()) -> None:
    """Tell the redactor the secrets in the text of the spec, before a check shows a line of it."""
    for key, scalar in _scalars(value, path):
        redactor.add_logins(scalar.text)
        if any(map(_may_be_secret, key)):
            for piece in _VARIABLE.split(scalar.text)[::3]:
                redactor.add(piece)


def find_variables(value: Value) -> Iterator[str]:
    """The environment variables in a value; some occur several times."""
    for _, scalar in _scalars(value, ()):
        for is_escaped, text in _VARIABLE.findall(scalar.text):
            name = text.partition(":-")[0]
            if not is_escaped and _NAME.fullmatch(name):
                yield name


def _scalars(value: Value, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    match value:
        case Scalar():
            yield path, value
        case Mapped():
            for key, item in value.items.items():
                yield from _scalars(item, (*path, key))
        case Sequence():
            for item in value.items:
                yield from _scalars(item, path)


def collect_from_text(text: str, redactor: Redactor) -> None:
    """The same for a text that is not YAML, from its lines of the form ``key: value``."""
    for key, written in re.findall(r"([\w.-]+)[\"']?[ \t]*[:=][ \t]*([^\n]+)", text):
        value = re.sub(r"\s+#.*$", "", written).strip().strip("\"',}")
        if _may_be_secret(key):
            for piece in _VARIABLE.split(value)[::3]:
                redactor.add(piece)


def _may_be_secret(key: str) -> bool:
    """Whether a key names a secret, also if it is misspelt."""
    return is_secret_key(key) or any(
        difflib.get_close_matches(part, ("password", "secret", "jaas"), n=1, cutoff=0.8)
        for part in re.split(r"[._-]", key.lower())
    )


@dataclass(frozen=True)
class Scalar:
    text: str
    value: str | int | float | bool | None  # the value in YAML: text, number, boolean or None
    location: SourceLocation


@dataclass(frozen=True)
class Sequence:
    items: tuple[Value, ...]
    location: SourceLocation


@dataclass(frozen=True)
class Mapped:
    items: Mapping[str, Value]
    keys: Mapping[str, SourceLocation] = field(default_factory=dict)
    location: SourceLocation = field(default_factory=lambda: SourceLocation("", 1))


Value = Scalar | Sequence | Mapped


def build_values(text: str, path: str) -> Mapped:
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = (
            SourceLocation(path, mark.line + 1, mark.column + 1, 1) if mark else SourceLocation(path, 1)
        )
        remedies = []
        if "\t" in "".join(text.splitlines()[location.line - 1 : location.line]):
            remedies.append("indent with spaces; YAML does not allow tabs")
        raise SpecInvalidError(
            f"{path} is not valid YAML: {error.problem or error.context or 'it cannot be read'}",
            location=location,
            facts=[str(error.context)] if error.context and error.problem else [],
            remedies=remedies,
            params={"path": path},
        ) from error
    except YAMLError as error:  # characters that YAML does not allow
        raise SpecInvalidError(
            f"{path} cannot be read as text: {error}", location=SourceLocation(path, 1), params={"path": path}
        ) from error
    if node is None:
        return Mapped({}, {}, SourceLocation(path, 1))
    value = _Builder(path).value(node)
    if not isinstance(value, Mapped):
        raise SpecInvalidError(
            f"{path} must be a mapping of keys to values",
            location=value.location,
            remedies=["begin with name: my_pipeline"],
            params={"path": path},
        )
    return value


class _Builder:
    def __init__(self, path: str) -> None:
        self.path = path
        self._open: list[Node] = []

    def location(self, node: Node) -> SourceLocation:
        start, end = node.start_mark, node.end_mark
        length = end.column - start.column if end.line == start.line else None
        return SourceLocation(self.path, start.line + 1, start.column + 1, length or None)

    def _invalid(self, node: Node, problem: str) -> SpecInvalidError:
        return SpecInvalidError(f"{self.path}: {problem}", location=self.location(node))

    def value(self, node: Node) -> Value:
        match node:
            case ScalarNode():
                return Scalar(node.value, _converted(str(node.tag), node.value), self.location(node))
            case SequenceNode():
                return Sequence(tuple(self.value(item) for item in node.value), self.location(node))
            case MappingNode():
                return self.mapping(node)
            case _:
                raise self._invalid(node, f"{node.tag} is not supported")

    def mapping(self, node: MappingNode) -> Mapped:
        if any(outer is node for outer in self._open):
            raise self._invalid(node, "an alias must not contain itself")
        self._open.append(node)
        try:
            return self._entries(node)
        finally:
            self._open.pop()

    def _entries(self, node: MappingNode) -> Mapped:
        items: dict[str, Value] = {}
        keys: dict[str, SourceLocation] = {}
        merged: dict[str, Value] = {}
        for key_node, value_node in node.value:
            location = self.location(key_node)
            if not isinstance(key_node, ScalarNode):
                raise self._invalid(key_node, "a key must be text")
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge" or (key == "<<" and key_node.style is None):
                for one in value_node.value if isinstance(value_node, SequenceNode) else [value_node]:
                    base = self.value(one)
                    if not isinstance(base, Mapped):
                        raise self._invalid(one, "<< needs a mapping")
                    merged = {**base.items, **merged}
                    keys = {**base.keys, **keys}
                continue
            if key in items:
                raise SpecInvalidError(
                    f"{self.path}: the key `{key}` appears twice",
                    location=location,
                    facts=[f"first at {keys[key]}"],
                    remedies=["remove one of the two"],
                    params={"key": key},
                )
            items[key], keys[key] = self.value(value_node), location
        return Mapped({**merged, **items}, keys, self.location(node))


def _converted(tag: str, text: str) -> Any:
    """A scalar's value by its tag; text that cannot be converted is left to the model."""
    kind = tag.rsplit(":", 1)[-1]
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return text.lower() in ("true", "yes", "on")
            case "int":
                return (
                    int(text.replace("_", ""), 0)
                    if text.lstrip("+-")[:1] == "0"
                    else int(text.replace("_", ""))
                )
            case "float":
                return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
            case _:
                return text
    except ValueError:
        return text


def build_scalar(text: str, location: SourceLocation) -> Scalar:
    """A text as one YAML scalar; quotes make it text."""
    yaml = YAML(typ="safe", pure=True)
    if text[:1] in ("'", '"'):
        try:
            node = yaml.compose(text)
        except YAMLError:
            return Scalar(text, text, location)
        if isinstance(node, ScalarNode):
            return Scalar(node.value, str(node.value), location)
    tag = yaml.resolver.resolve(ScalarNode, text, (True, False))
    return Scalar(text, _converted(str(tag), text), location)
