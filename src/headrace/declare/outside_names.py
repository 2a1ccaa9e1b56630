"""Names and paths of other systems in a pipeline's files, found in their texts without running them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import SourceLocation
from headrace.model.kafka_settings import EMBEDDED
from headrace.model.project import FOREIGN_PATH, code_language, split_addresses
from headrace.syntax.ipynb import InvalidNotebookError, NotebookCell, cell_file, parse_notebook, python_cells

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


_IDENTIFIER = r"(?:`[^`\n]+`|\w+)"
_NAME = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER}){{2}}"
_READS = re.compile(
    rf"\b(?:FROM|JOIN|STREAM)\b\s*\(?\s*(?:STREAM\b\s*\(?\s*)?({_NAME})(?![\w.`]|\s*\()", re.IGNORECASE
)
_MAKES = re.compile(rf"\b(?:TABLE|VIEW|INTO)\s+(?:IF\s+NOT\s+EXISTS\s+)?({_NAME})", re.IGNORECASE)
_COMMENT_OR_TEXT = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)|`[^`]*`|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""", re.DOTALL
)
_SQL_PATH = re.compile(rf"""['"`]({FOREIGN_PATH.pattern}[^'"`\n]*)""")
_SERVERS = re.compile(r"(?:kafka\.)?bootstrap[._]?servers", re.IGNORECASE)
_SQL_SERVERS = re.compile(r"\bbootstrap_?servers`?\s*=>\s*'([^'\n]*)'", re.IGNORECASE)
_READERS = frozenset(
    {"table", "read", "read_stream", "readStream", "changes", "read_table_stream", "read_changes"}
)
_ONE_OR_MORE = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER}){{0,2}}"
_SHORT_READS = re.compile(
    rf"\b(?:FROM|JOIN)\b\s*\(?\s*(?:STREAM\b\s*\(?\s*)?({_ONE_OR_MORE})(?![\w.`]|\s*\()", re.IGNORECASE
)
_NO_READ = re.compile(
    r"(?:\bDISTINCT|\b(?:EXTRACT|TRIM|SUBSTRING|OVERLAY|POSITION)\s*\([^()]*)\s*$", re.IGNORECASE
)
"""The text before a FROM that names no table."""
_SHORT_MADE = re.compile(rf"\b(?:TABLE|VIEW|INTO)\s+(?:IF\s+NOT\s+EXISTS\s+)?({_ONE_OR_MORE})", re.IGNORECASE)
_QUERY_MADE = re.compile(r"\b(\w+)\s+AS\s*\(", re.IGNORECASE)  # a query of ``WITH``
_NO_NAMES = frozenset({"select", "stream", "values", "lateral", "unnest", "event_log", "table", "with"})
_NO_SCHEMAS = frozenset({"delta", "parquet", "json", "csv", "text", "orc", "avro", "system", "global_temp"})
_DECORATORS = frozenset(
    {"table", "view", "materialized_view", "temporary_view", "create_table", "create_view"}
)
_TABLES = _DECORATORS & {"table", "materialized_view", "create_table"}
_CALLS = frozenset({"create_streaming_table", "create_target_table", "create_streaming_live_table"})
_TABLE_MADE = re.compile(
    rf"\b(?:TABLE|MATERIALIZED\s+VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?({_IDENTIFIER})(?![\w.`])", re.IGNORECASE
)
_WRITERS = frozenset({"saveAsTable", "insertInto", "toTable", "forName"})
_VIEWS = frozenset({"createOrReplaceTempView", "createTempView", "registerTempTable"})
_SQL = re.compile(
    r"(?:\s|--[^\n]*\n)*(?:SELECT|WITH|FROM|CREATE\s+(?:OR|TABLE|(?:MATERIALIZED\s+|TEMP\w*\s+)?VIEW|STREAMING"
    r"|LIVE|FLOW)|MERGE\s+INTO|INSERT\s+(?:INTO|OVERWRITE))\b",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"\$\{\s*([\w.:-]+)\s*\}")
_SET = re.compile(r"^\s*SET\s+([\w.:-]+)\s*=\s*([^;\n]*)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class OutsideName:
    kind: Literal["table", "path"]
    text: str
    location: SourceLocation


@dataclass
class FoundNames:
    """What the files of a pipeline name."""

    outside: tuple[OutsideName, ...] = ()
    # The keys of configuration that are read without a default.
    keys: dict[str, SourceLocation] = field(default_factory=dict)
    # The addresses of brokers, with `*` for each part that is not known.
    brokers: dict[str, SourceLocation] = field(default_factory=dict)
    catalog: str | None = None  # the catalog of all tables that the files make with three-part names
    datasets: frozenset[str] = frozenset()  # the declared datasets with a known name
    # Tables of other schemas that are named like a table of the files: `shop.raw.orders` beside `orders`.
    alike: tuple[str, ...] = ()


def find_outside(
    files: Iterable[Path], root: Path, values: Mapping[str, str] | None = None
) -> tuple[OutsideName, ...]:
    """The tables with three-part names that files read and do not make, and the paths of other systems."""
    return find_names(files, root, values or {}).outside


def find_names(
    files: Iterable[Path], root: Path, values: Mapping[str, str], *, short: bool = False
) -> FoundNames:
    """All names of files, with some values of their configuration. ``short``: also tables with one or two
    parts that no file makes."""
    reading = _Reading(values, short)
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        shown = os.path.relpath(file, root)
        match code_language(file):
            case "sql":
                reading.sql_file(text, shown)
            case "notebook":
                with suppress(InvalidNotebookError):
                    # The loader reports a file that is not a notebook.
                    reading.notebook(parse_notebook(text), shown)
            case _:
                reading.python(text, shown)
    outside = tuple(one for one in reading.found.values() if one.kind == "path" or reading.is_outside(one))
    catalogs = {
        name.partition(".")[0] for name in reading.made if name.count(".") == 2 and UNKNOWN not in name
    }
    catalog = next(iter(catalogs)) if len(catalogs) == 1 else None
    tables = (one.text for one in outside if one.kind == "table" and one.text.count(".") == 2)
    alike = () if catalog else tuple(one for one in tables if _last(one) in reading.tables)
    datasets = frozenset(name for name in map(_without_live, reading.datasets) if name and name.isprintable())
    return FoundNames(outside, reading.keys, reading.brokers, catalog, datasets, alike)


class _Reading:
    def __init__(self, values: Mapping[str, str], short: bool) -> None:
        self._values = values
        self._short = short
        self.found: dict[tuple[str, str], OutsideName] = {}
        self.made: set[str] = set()  # in lower case
        self.datasets: set[str] = set()
        self.tables: set[str] = set()  # the names with one part of tables and materialized views
        self.keys: dict[str, SourceLocation] = {}
        self.brokers: dict[str, SourceLocation] = {}

    def is_outside(self, one: OutsideName) -> bool:
        name = one.text.casefold()
        if name in self.made:
            return False
        if name.count(".") == 2:
            return True
        # A name that is partly unknown can be this one.
        last = _last(name)
        for made in self.made:
            parts = map(re.escape, made.rpartition(".")[2].split(UNKNOWN))
            if re.fullmatch(".+".join(parts), last):
                return False
        return True

    def _make(self, names: Iterable[str]) -> None:
        self.made |= {_without_live(name).casefold() for name in names}

    def _add(self, kind: Literal["table", "path"], text: str, location: SourceLocation) -> None:
        if UNKNOWN not in text:
            self.found.setdefault((kind, text.casefold()), OutsideName(kind, text, location))

    def sql_file(self, text: str, path: str) -> None:
        text = _blank(text, "comment")
        values = {**self._values, **{one[1]: one[2].strip().strip("'\"") for one in _SET.finditer(text)}}
        for one in _PARAMETER.finditer(text):
            if one[1] not in values:
                self._key(one[1], SourceLocation(path, 1 + text.count("\n", 0, one.start())))
        self.sql(_PARAMETER.sub(lambda one: values.get(one[1], UNKNOWN), text), path, 1, declares=True)

    def sql(self, text: str, path: str, line: int, *, declares: bool = False) -> None:
        text = _blank(text, "comment")
        names = _blank(text, "text")  # without "orders from the shop"
        if declares:
            found = _SHORT_MADE.finditer(names)
            self.datasets |= {one[1] for one in found if not one[0].upper().startswith("INTO")}
        made, reads = (_SHORT_MADE, _SHORT_READS) if self._short else (_MAKES, _READS)
        tables = [one[1].strip("`") for one in _TABLE_MADE.finditer(names)]
        self.tables.update(map(str.casefold, tables))
        self._make([*tables, *(one[1] for one in made.finditer(names))])
        if self._short:
            self._make(one[1] for one in _QUERY_MADE.finditer(names))
        for one in reads.finditer(names):
            name = _without_live(one[1])
            if self._short and (_NO_READ.search(names[: one.start()]) or not _is_table(name)):
                continue
            self._add("table", name, SourceLocation(path, line + text.count("\n", 0, one.start(1))))
        for one in _SQL_SERVERS.finditer(text):
            self._servers(one[1], SourceLocation(path, line + text.count("\n", 0, one.start(1))))
        for one in _SQL_PATH.finditer(text):
            self._add("path", one[1], SourceLocation(path, line + text.count("\n", 0, one.start(1))))

    def notebook(self, cells: Iterable[NotebookCell], path: str) -> None:
        code = {cell_file(path, one.number): one for one in cells if one.magic in ("python", "sql")}
        trees = {name: _parsed(one.source) for name, one in code.items() if one.magic == "python"}
        whole = ast.Module([one for tree in trees.values() for one in tree.body], [])
        known = KnownTexts(whole, self._values)
        for name, cell in code.items():
            if name in trees:
                self._tree(trees[name], known, name)
            else:
                self.sql(cell.source, name, 1, declares=True)

    def python(self, text: str, path: str) -> None:
        text, cells = python_cells(text)
        tree = _parsed(text)
        self._tree(tree, KnownTexts(tree, self._values), path)
        for cell in cells:
            if cell.magic == "sql":
                lines = text.split("\n")[cell.line - 1 : cell.stop - 1]
                query = "\n".join(re.sub(r"^# MAGIC( %sql)?", "", one) for one in lines)
                self.sql(query, path, cell.line, declares=True)

    def _tree(self, tree: ast.Module, known: KnownTexts, path: str) -> None:
        prose = {id(one) for one in _prose(tree)}
        for node in ast.walk(tree):
            if id(node) in prose:
                continue
            if isinstance(node, ast.Call):
                self._call(node, known, path)
            for servers in _servers(node):
                self._servers(known.text(servers), SourceLocation(path, servers.lineno))
            if isinstance(node, ast.FunctionDef):
                names = {called_name(one): one for one in node.decorator_list}
                for decorator in (one for name, one in names.items() if name in _DECORATORS):
                    keywords = decorator.keywords if isinstance(decorator, ast.Call) else ()
                    given = next((one.value for one in keywords if one.arg == "name"), None)
                    self.datasets.add(node.name if given is None else known.text(given))
                    self._make([node.name] if given is None else [])
                if _TABLES & names.keys():
                    self.tables.add(node.name.casefold())
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.Call) and (value := known.text(node)):
                begins = value.partition(UNKNOWN)[0]
                if FOREIGN_PATH.match(begins) and " " not in begins:
                    self._add("path", begins, SourceLocation(path, node.lineno))
                elif _SQL.match(value):
                    self.sql(value, path, node.lineno)

    def _call(self, node: ast.Call, known: KnownTexts, path: str) -> None:
        name = called_name(node)
        made = list(_made(node, known))
        self._make(made)
        if name in _TABLES | _CALLS:
            self.tables.update(map(str.casefold, made))
        if name in _CALLS:
            self.datasets.update(made)
        key = read_key(node)
        if key is not None and key[1] is None and known.text(node) == UNKNOWN:
            self._key(key[0], SourceLocation(path, node.lineno))
        read: list[ast.expr] = []
        if name in _READERS:
            read = node.args[:1]
        elif name in _WRITERS:
            read = node.args
        elif name == "create_sink":
            given = [*node.args, *(one.value for one in node.keywords)]
            read = [value for one in given if isinstance(one, ast.Dict) for value in _named_table(one)]
        for one in read:
            text = _without_live(known.text(one))
            if re.fullmatch(_ONE_OR_MORE if self._short else _NAME, text) and _is_table(text):
                self._add("table", text, SourceLocation(path, one.lineno))

    def _servers(self, text: str, location: SourceLocation) -> None:
        addresses = [one.replace(UNKNOWN, "*") for one in split_addresses(text)]
        if (
            addresses
            and addresses != [EMBEDDED]
            and all(re.search(r"\w", one.split(":")[0]) for one in addresses)
        ):
            self.brokers.setdefault(",".join(addresses), location)

    def _key(self, key: str, location: SourceLocation) -> None:
        if not key.startswith("spark."):
            self.keys.setdefault(key, location)


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        # The loader reports a file that is not Python.
        return ast.Module([], [])


def _servers(node: ast.AST) -> Iterator[ast.expr]:
    """The values of an option with the addresses of brokers."""
    match node:
        case ast.Call(func=ast.Attribute(attr="option"), args=[ast.Constant(value=key), value]):
            given: list[tuple[object, ast.expr]] = [(key, value)]
        case ast.Call(keywords=keywords):
            given = [(one.arg, one.value) for one in keywords]
        case ast.Dict(keys=keys, values=values):
            given = [(getattr(key, "value", None), one) for key, one in zip(keys, values, strict=True)]
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=key))], value=value):
            given = [(key, value)]
        case _:
            given = []
    yield from (value for key, value in given if isinstance(key, str) and _SERVERS.fullmatch(key))


def _named_table(options: ast.Dict) -> Iterator[ast.expr]:
    for key, value in zip(options.keys, options.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "tableName":
            yield value


def _blank(text: str, part: Literal["comment", "text"]) -> str:
    """An SQL text with blanks in place of its comments, or of its string literals."""

    def blank(found: re.Match[str]) -> str:
        return found[0] if found[part] is None else re.sub(r"[^\n]", " ", found[0])

    return _COMMENT_OR_TEXT.sub(blank, text)


def _prose(tree: ast.Module) -> Iterator[ast.AST]:
    """The texts of a file that are written for people: docstrings and comments of tables."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as text):
                yield text
            case ast.keyword(arg="comment" | "description", value=value):
                yield from ast.walk(value)


def _without_live(name: str) -> str:
    return re.sub(r"^live\.", "", name.replace("`", ""), flags=re.IGNORECASE)


def _last(name: str) -> str:
    return name.rpartition(".")[2].casefold()


def _is_table(name: str) -> bool:
    parts = name.casefold().split(".")
    return not (len(parts) == 1 and parts[0] in _NO_NAMES) and parts[0] not in _NO_SCHEMAS


def _made(node: ast.Call, known: KnownTexts) -> Iterator[str]:
    arguments = [one.value for one in node.keywords if one.arg in ("name", "target")]
    if called_name(node) in {"create_sink", *_CALLS, *_VIEWS}:
        arguments += node.args[:1]
    yield from (_without_live(known.text(one)) for one in arguments)


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
