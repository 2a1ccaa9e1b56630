"""YAML text as values with their source locations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headrace.errors import SourceLocation, SpecInvalidError


@dataclass(frozen=True)
class Scalar:
    """A plain value."""

    text: str
    value: str | int | float | bool | None  # the value in YAML: text, number, boolean or None
    location: SourceLocation


@dataclass(frozen=True)
class Sequence:
    items: tuple[Value, ...]
    location: SourceLocation


@dataclass(frozen=True)
class Mapped:
    """A mapping, with the locations of its keys."""

    items: Mapping[str, Value]
    keys: Mapping[str, SourceLocation] = field(default_factory=dict)
    location: SourceLocation = field(default_factory=lambda: SourceLocation("", 1))


Value = Scalar | Sequence | Mapped


def build_values(text: str, path: str) -> Mapped:
    """The document's values.

    Raises:
        SpecInvalidError: The text is not YAML, not a mapping, or names a key twice.
    """
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = (
            SourceLocation(path, mark.line + 1, mark.column + 1, 1) if mark else SourceLocation(path, 1)
        )
        remedies = []
        if "\t" in _line(text, location.line):
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


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1] if number <= len(lines) else ""


class _Builder:
    """Turns ruamel's nodes into values."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._open: list[Node] = []

    def location(self, node: Node) -> SourceLocation:
        start, end = node.start_mark, node.end_mark
        length = end.column - start.column if end.line == start.line else None
        return SourceLocation(self.path, start.line + 1, start.column + 1, length or None)

    def value(self, node: Node) -> Value:
        match node:
            case ScalarNode():
                return Scalar(node.value, _converted(str(node.tag), node.value), self.location(node))
            case SequenceNode():
                return Sequence(tuple(self.value(item) for item in node.value), self.location(node))
            case MappingNode():
                return self.mapping(node)
            case _:
                raise SpecInvalidError(
                    f"{self.path}: {node.tag} is not supported", location=self.location(node)
                )

    def mapping(self, node: MappingNode) -> Mapped:
        if any(outer is node for outer in self._open):
            raise SpecInvalidError(
                f"{self.path}: an alias must not contain itself", location=self.location(node)
            )
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
                raise SpecInvalidError(f"{self.path}: a key must be text", location=location)
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge" or (key == "<<" and key_node.style is None):
                for base in self.merge_bases(value_node):
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

    def merge_bases(self, node: Node) -> Iterator[Mapped]:
        """The mappings of ``<<: *anchor`` or ``<<: [*one, *two]``."""
        for base in node.value if isinstance(node, SequenceNode) else [node]:
            value = self.value(base)
            if not isinstance(value, Mapped):
                raise SpecInvalidError(f"{self.path}: << needs a mapping", location=self.location(base))
            yield value


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
