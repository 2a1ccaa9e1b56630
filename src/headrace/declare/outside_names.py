"""Names and paths of other systems in a pipeline's files, found in their texts without running them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.errors import SourceLocation
from headrace.model.mappings import FOREIGN_PATH
from headrace.model.project import code_language
from headrace.syntax.ipynb import InvalidNotebookError, cell_file, parse_notebook

_IDENTIFIER = r"(?:`[^`\n]+`|\w+)"
_NAME = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER}){{2}}"
_READS = re.compile(
    rf"\b(?:FROM|JOIN|STREAM)\b\s*\(?\s*(?:STREAM\b\s*\(?\s*)?({_NAME})(?![\w.`]|\s*\()", re.IGNORECASE
)
_MAKES = re.compile(rf"\b(?:TABLE|VIEW|INTO)\s+(?:IF\s+NOT\s+EXISTS\s+)?({_NAME})", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*")
_SQL_PATH = re.compile(rf"""['"`]({FOREIGN_PATH.pattern}[^'"`\n]*)""")
_READERS = frozenset(
    {"table", "read", "read_stream", "readStream", "changes", "read_table_stream", "read_changes"}
)
_UNKNOWN = "\0"  # the placeholder of an interpolated value


@dataclass(frozen=True)
class OutsideName:
    kind: Literal["table", "path"]
    text: str
    location: SourceLocation


def find_outside(files: Iterable[Path], root: Path) -> tuple[OutsideName, ...]:
    """The tables with three-part names that files read and do not make, and the paths of other systems."""
    found: dict[tuple[str, str], OutsideName] = {}
    made: set[str] = set()
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        for one in _in_file(file, text, os.path.relpath(file, root), made):
            found.setdefault((one.kind, one.text.casefold()), one)
    return tuple(one for one in found.values() if one.kind == "path" or one.text.casefold() not in made)


def _in_file(file: Path, text: str, shown: str, made: set[str]) -> Iterator[OutsideName]:
    match code_language(file):
        case "sql":
            yield from _in_sql(text, shown, 1, made)
        case "notebook":
            with suppress(InvalidNotebookError):
                # The loader reports a file that is not a notebook.
                for cell in parse_notebook(text):
                    name = cell_file(shown, cell.number)
                    if cell.magic == "sql":
                        yield from _in_sql(cell.source, name, 1, made)
                    elif cell.magic == "python":
                        yield from _in_python(cell.source, name, made)
        case _:
            yield from _in_python(text, shown, made)


def _in_sql(text: str, path: str, line: int, made: set[str]) -> Iterator[OutsideName]:
    text = _COMMENT.sub(lambda comment: " " * len(comment[0]), text)
    made.update(one[1].replace("`", "").casefold() for one in _MAKES.finditer(text))
    for kind, pattern in (("table", _READS), ("path", _SQL_PATH)):
        for one in pattern.finditer(text):
            place = SourceLocation(path, line + text.count("\n", 0, one.start(1)))
            name = one[1].replace("`", "") if kind == "table" else one[1]
            if _UNKNOWN not in name:
                yield OutsideName("table" if kind == "table" else "path", name, place)


def _in_python(text: str, path: str, made: set[str]) -> Iterator[OutsideName]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        # The loader reports a file that is not Python.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            made.update(_made(node))
            name = literal_text(node.args[0]) if node.args and called_name(node) in _READERS else ""
            if re.fullmatch(_NAME, name):
                yield OutsideName("table", name.replace("`", ""), SourceLocation(path, node.args[0].lineno))
        if isinstance(node, ast.Constant | ast.JoinedStr) and (value := literal_text(node)):
            known = value.partition(_UNKNOWN)[0]
            if FOREIGN_PATH.match(known) and " " not in known:
                yield OutsideName("path", known, SourceLocation(path, node.lineno))
            elif "\n" in value or re.match(r"\s*(SELECT|WITH|FROM|CREATE)\b", value, re.IGNORECASE):
                yield from _in_sql(value, path, node.lineno, made)


def called_name(node: ast.expr) -> str:
    """The name of a called function or of a decorator, without its module; empty for other expressions."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _made(node: ast.Call) -> Iterator[str]:
    arguments = [one.value for one in node.keywords if one.arg in ("name", "target")]
    if called_name(node) == "create_streaming_table":
        arguments += node.args[:1]
    yield from (literal_text(one).casefold() for one in arguments)


def literal_text(node: ast.expr) -> str:
    """The value of a string, with a placeholder for each interpolated value."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                literal_text(part) if isinstance(part, ast.Constant) else _UNKNOWN for part in parts
            )
        case _:
            return ""


def entry_lines(found: Sequence[OutsideName], *, indent: str = "") -> Iterator[str]:
    """The entries of the spec for names and paths of other systems, with paths to fill in."""
    entries: dict[str, dict[str, OutsideName]] = {"tables": {}, "paths": {}}
    for one in found:
        if one.kind == "table":
            entry = f"{one.text}: ./{one.text.rpartition('.')[2]}"
        else:
            entry = _path_entry(one.text)
        entries[f"{one.kind}s"].setdefault(entry, one)
    for key, lines in entries.items():
        if lines:
            yield f"{indent}{key}:"
        for entry, one in sorted(lines.items()):
            yield f"{indent}  {entry}   # {one.location}"


def _path_entry(path: str) -> str:
    """The entry of `paths` for the beginning of a path: the system, and the bucket if it has one."""
    found = FOREIGN_PATH.match(path)
    assert found is not None
    bucket = re.match(r"\w+://[^/]+", path)
    prefix = bucket[0] if bucket and found[0] != "dbfs:" else found[0]
    folder = prefix.partition("://")[2].partition("@")[0] or prefix.strip("/:").lower()
    return f"{prefix.rstrip('/')}: ./{folder}" if not prefix.endswith(":") else f'"{prefix}": ./{folder}'
