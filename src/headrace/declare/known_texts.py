"""Texts of a Python file that are known without running it: constants, f-strings, and configuration."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

UNKNOWN = "\0"
"""The placeholder of a value that is not known."""


def called_name(node: ast.expr) -> str:
    """The name of a called function or of a decorator, without its module; empty for other expressions."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def read_key(node: ast.expr) -> tuple[str, ast.expr | None] | None:
    """The key of a ``spark.conf.get`` or a widget, and the default that the call gives."""
    match node:
        case ast.Call(
            func=ast.Attribute(attr="get", value=ast.Attribute(attr="conf" | "widgets")),
            args=[ast.Constant(value=str(key)), *rest],
        ):
            return key, rest[0] if rest else None
        case _:
            return None


class KnownTexts:
    """The texts of a file's expressions; names count if the file assigns them once, and nothing else does."""

    def __init__(self, tree: ast.AST, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._assigned: dict[str, list[ast.expr | None]] = {}
        self._open: set[str] = set()
        for node in ast.walk(tree):
            for name, value in _assignments(node):
                self._assigned.setdefault(name, []).append(value)
            match node:
                # The default of a widget.
                case ast.Call(
                    func=ast.Attribute(
                        attr="text" | "dropdown" | "combobox", value=ast.Attribute(attr="widgets")
                    ),
                    args=[ast.Constant(value=str(key)), ast.Constant(value=str(default)), *_],
                ):
                    self._values.setdefault(key, default)

    def text(self, node: ast.expr) -> str:
        """The value of an expression, with `UNKNOWN` for each part that is not known."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(self.text(part) for part in parts)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.text(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.text(left) + self.text(right)
            case ast.Name(id=name):
                return self._named(name)
            case ast.Call():
                return self._configured(node)
            case _:
                return UNKNOWN

    def _named(self, name: str) -> str:
        found = self._assigned.get(name, [])
        if len(found) != 1 or found[0] is None or name in self._open:
            return UNKNOWN
        self._open.add(name)
        try:
            return self.text(found[0])
        finally:
            self._open.remove(name)

    def _configured(self, node: ast.Call) -> str:
        found = read_key(node)
        if found is None:
            return UNKNOWN
        key, default = found
        return self._values.get(key, UNKNOWN if default is None else self.text(default))


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a node sets, with their values; ``None`` for those of loops and parameters."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            yield name, value
        case ast.arg(arg=name):
            yield name, None
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _names(target)
        case ast.For(target=target) | ast.comprehension(target=target) | ast.AugAssign(target=target):
            yield from _names(target)


def _names(target: ast.expr) -> Iterator[tuple[str, None]]:
    yield from ((one.id, None) for one in ast.walk(target) if isinstance(one, ast.Name))
