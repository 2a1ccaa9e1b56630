"""The headers of CSV files: which columns each file has, in which order, and the errors where they do not
fit."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO, Final, Self, TextIO
from uuid import UUID

from headrace import errors
from headrace.errors import NOT_COMMITTED, HeadraceError, SourceLocation
from headrace.model.declarations import Drift, DriftAction
from headrace.model.folders import plain_path
from headrace.model.texts import counted, find_option
from headrace.storage.layout import locate

HEADERS_OPTION: Final = "headrace.files.headers"
"""An option without effect that carries the `HeaderRules` of a read of CSV files."""

_LONGEST = 1 << 24
"""The characters of a header that are read: a file without a line end has no header that can be known."""
_CHUNK = 1 << 16
_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}
"""PyArrow's names of the compressions, by the end of a file's name."""
_UNNAMED = re.compile(r"_c\d+")
"""A column without a name."""
_BLANKS = "".join(map(chr, range(33)))
"""What Java's ``trim`` removes."""
_AGAIN = "correct the header of the file, and start again:   headrace run"


@dataclass(frozen=True, kw_only=True)
class HeaderRules:
    """How a read takes the columns of its files by the names in their headers."""

    columns: tuple[str, ...]  # the columns that files have, in the order of the schema
    drift: Drift = field(default_factory=Drift)
    infers_types: bool = False  # whether the type of a new column is inferred; else it is a string
    ignores_case: bool = True
    evolving: Mapping[str, Any] | None = None  # the schema, if it takes up new columns: `Evolving.to_json`

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self | None:
        """The rules in the options of a read; ``None`` if it does not take columns by name."""
        if (text := find_option(options, HEADERS_OPTION)) is None:
            return None
        value = json.loads(text)
        drift = Drift(value["drift"]["default"], value["drift"]["columns"])
        return cls(
            columns=tuple(value["columns"]),
            drift=drift,
            infers_types=value["infers_types"],
            ignores_case=value["ignores_case"],
            evolving=value["evolving"],
        )

    def to_option(self) -> dict[str, str]:
        drift = {"default": self.drift.default, "columns": dict(self.drift.columns)}
        value = {"columns": self.columns, "drift": drift, "infers_types": self.infers_types}
        value |= {"ignores_case": self.ignores_case, "evolving": self.evolving}
        return {HEADERS_OPTION: json.dumps(value)}

    def action(self, name: str) -> DriftAction | None:
        return self.drift.own("", name) or self.drift.default

    def fold(self, name: str) -> str:
        return name.lower() if self.ignores_case else name

    def loses_all(self, layout: Layout) -> bool:
        """Whether the rows of files would have no value: they have no column of the schema, and their own
        columns are not taken up, or the first row of a file without a header stands in their place."""
        if not layout.is_foreign:
            return False
        kept = all(self.action(name) in ("evolve", "rescue") for name in layout.names)
        return not kept or any(map(_is_value, layout.names))


def _is_value(text: str) -> bool:
    """Whether a text is no name, but a value: nothing, a number, a date, a time, a UUID or a boolean."""
    if text.strip().lower() in ("", "true", "false") or _UNNAMED.fullmatch(text):
        return True
    for parse in (float, datetime.fromisoformat, UUID):
        with suppress(ValueError):
            parse(text.strip())
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class HeaderSyntax:
    """The options of Spark's CSV parser that decide where a header is, and where it ends."""

    quote: str = '"'
    comment: str = ""
    encoding: str = "utf-8"
    line_separator: str | None = None
    is_multiline: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        given = {name.lower(): value for name, value in options.items()}
        encoding = given.get("encoding") or given.get("charset") or "utf-8"
        return cls(
            quote=given.get("quote", '"'),
            comment=given.get("comment", "").strip("\0"),
            # A byte order mark belongs to no name.
            encoding="utf-8-sig" if encoding.lower().replace("-", "") == "utf8" else encoding,
            line_separator=given.get("linesep"),
            is_multiline=given.get("multiline", "").lower() == "true",
        )


def has_header(options: Mapping[str, str]) -> bool:
    return (find_option(options, "header") or "").lower() == "true"


@dataclass(frozen=True)
class HeaderText:
    """The text of a header, and the number of its first line."""

    text: str
    line: int


def find_header(path: str, syntax: HeaderSyntax) -> HeaderText | None:
    """The header of a file: its first line that is neither blank nor a comment.

    ``None`` if the file has none, or if it cannot be read here. Then Spark compares the header, if there is
    one, with the columns of the schema.
    """
    state = locate(path).look()
    if state is None:
        return None
    try:
        return _find_header(path, syntax, state.size, state.modified_ms)
    except (OSError, LookupError, ValueError):
        # Not within the cached function: the next try can succeed.
        return None


@lru_cache(maxsize=8192)
def _find_header(path: str, syntax: HeaderSyntax, size: int, modified_ms: int) -> HeaderText | None:
    with open_unpacked(path) as stream:
        return first_record(stream, syntax)


def first_record(stream: BinaryIO, syntax: HeaderSyntax) -> HeaderText | None:
    text = io.TextIOWrapper(stream, encoding=syntax.encoding, errors="replace", newline=None)
    try:
        return _first_record(_lines(text, syntax.line_separator), syntax)
    finally:
        # The stream stays open.
        text.detach()


def _first_record(lines: Iterator[str], syntax: HeaderSyntax) -> HeaderText | None:
    for number, line in enumerate(lines, 1):
        if not line.strip(_BLANKS) or (syntax.comment and line.startswith(syntax.comment)):
            continue
        while syntax.is_multiline and syntax.quote and line.count(syntax.quote) % 2:
            more = next(lines, None)
            if more is None:
                break
            line += f"\n{more}"
        return HeaderText(line, number)
    return None


def _lines(text: TextIO, separator: str | None) -> Iterator[str]:
    rest, read = "", 0
    while chunk := text.readline(_CHUNK) if separator is None else text.read(_CHUNK):
        read += len(chunk)
        if read > _LONGEST:
            raise ValueError("the header is too long")
        *whole, rest = (rest + chunk).split("\n" if separator is None else separator)
        yield from whole
    if rest:
        yield rest


@contextmanager
def open_unpacked(path: str) -> Iterator[BinaryIO]:
    """A file without its compression; `ValueError` for one that only Hadoop can read."""
    end = path.rpartition(".")[2].lower()
    if end in ("deflate", "lz4", "snappy"):
        raise ValueError(end)
    with locate(path).open() as packed:
        if end not in _CODECS:
            yield packed
            return
        import pyarrow as pa

        yield pa.CompressedInputStream(packed, _CODECS[end])


@dataclass(frozen=True)
class Layout:
    """The columns of files that have the same header. `names`: as the header has them; a column without a
    name is called after its number, as Spark does: ``_c0``."""

    header: tuple[str, ...]
    names: tuple[str, ...]
    # The position of each column of the schema in the files; ``None`` where they lack it
    positions: tuple[int | None, ...]
    unknown: tuple[int, ...]  # the positions of the columns that the schema does not have

    @property
    def is_planned(self) -> bool:
        """Whether the files have exactly the columns of the schema, in its order, and all have a name: Spark
        compares the header itself, and a column without a name has none there."""
        return self.positions == tuple(range(len(self.header))) and all(self.header)

    @property
    def is_foreign(self) -> bool:
        """Whether the files have no column of the schema."""
        return all(position is None for position in self.positions)


def lay_out(header: Sequence[str], rules: HeaderRules) -> Layout:
    names = _named(header)
    known = {rules.fold(name): index for index, name in enumerate(names)}
    positions = tuple(known.get(rules.fold(name)) for name in rules.columns)
    unknown = tuple(sorted(set(range(len(names))) - {one for one in positions if one is not None}))
    return Layout(tuple(header), names, positions, unknown)


def find_repeated(header: Sequence[str], rules: HeaderRules) -> str | None:
    """The first name that a header has a second time."""
    known: set[str] = set()
    for name in _named(header):
        if rules.fold(name) in known:
            return name
        known.add(rules.fold(name))
    return None


def _named(header: Sequence[str]) -> tuple[str, ...]:
    return tuple(name or f"_c{index}" for index, name in enumerate(header))


def find_misplaced(header: Sequence[str], columns: Sequence[str], fold: Callable[[str], str]) -> str | None:
    """A column of a schema that a header has at another position, where files are read by position."""
    names = [fold(name) for name in header]
    places = (names.index(fold(name)) if fold(name) in names else None for name in columns)
    wrong = (index for index, place in enumerate(places) if place not in (None, index))
    index = next((one for one in wrong if names[one : one + 1] != [fold(columns[one])]), None)
    return None if index is None else columns[index]


@dataclass(frozen=True)
class HeaderGroup:
    """Files that have the same header. Files whose header is not known have the columns of the schema."""

    layout: Layout
    paths: tuple[str, ...]
    line: int  # the line of the header in the first file


def header_splitter(session: Any, options: Mapping[str, str]) -> Callable[[str], Sequence[str]]:
    """Splits a header with the parser of Spark, so that a read of the file finds the same names."""
    jvm = session._jvm
    given = jvm.java.util.HashMap()
    for name, value in options.items():
        given.put(name, value)
    parameters = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(given)
    known = jvm.org.apache.spark.sql.catalyst.csv.CSVOptions(parameters, False, "UTC")
    parser = jvm.com.univocity.parsers.csv.CsvParser(known.asParserSettings())
    split: dict[str, Sequence[str]] = {}

    def values(text: str) -> Sequence[str]:
        if text not in split:
            split[text] = tuple("" if one is None else str(one) for one in parser.parseLine(text) or ())
        return split[text]

    return values


def repeated_name(path: str, line: int, name: str) -> HeadraceError:
    return _unreadable(
        None, path, line, f"has the name `{name}` twice in its header", None, remedies=(_AGAIN,)
    )


def foreign_header(
    flow: str, group: HeaderGroup, rules: HeaderRules, location: SourceLocation
) -> HeadraceError:
    """The error for files without any column of the schema: their rows would have no value."""
    facts = (f"header: {_listed(group.layout.names)}", f"columns: {_listed(rules.columns)}")
    problem = "has no column of the schema in its header"
    remedies = (_AGAIN, 'or set header to "false", if the files have no header')
    return _unreadable(flow, group.paths[0], group.line, problem, location, facts, remedies)


def stateful_header(
    flow: str, group: HeaderGroup, rules: HeaderRules, location: SourceLocation
) -> HeadraceError:
    return _unreadable(
        flow,
        group.paths[0],
        group.line,
        "has other columns in its header than the schema, and the query of the flow keeps state",
        location,
        (f"header: {_listed(group.layout.names)}", f"columns: {_listed(rules.columns)}"),
        (
            "read the files into a table of their own, and stream from that table: files with other headers "
            "can then be read",
        ),
    )


def misplaced_column(flow: str, path: str, line: int, column: str, location: SourceLocation) -> HeadraceError:
    problem = f"has the column `{column}` at another position in its header than the schema"
    facts = ("Spark reads CSV files by position: the rows would have the values of other columns",)
    remedies = (
        'read the files by name:   hr.read_files(.., format="csv", options={"header": "true"})',
        'or let Spark ignore the headers:   .option("enforceSchema", "true")',
    )
    return _unreadable(flow, path, line, problem, location, facts, remedies)


def new_columns(
    flow: str, group: HeaderGroup, names: Sequence[str], location: SourceLocation
) -> HeadraceError:
    path = plain_path(group.paths[0])
    several = len(names) > 1
    return errors.RecordDriftedError(
        f"flow {flow}: the file {path}, line {group.line}, has {counted(len(names), 'column')} "
        f"that the schema does not have: {_listed(names)}",
        location=location,
        facts=(NOT_COMMITTED,),
        remedies=(
            f"add {'them' if several else 'it'} to the schema, and start again:   headrace run",
            'or let the table get new columns: drift="evolve" of hr.read_files, '
            "or cloudFiles.schemaEvolutionMode addNewColumns",
        ),
        params={"flow": flow, "path": path, "line": group.line, "columns": list(names)},
    )


def _unreadable(
    flow: str | None,
    path: str,
    line: int,
    problem: str,
    location: SourceLocation | None,
    facts: Sequence[str] = (),
    remedies: Sequence[str] = (),
) -> HeadraceError:
    path = plain_path(path)
    more = (
        () if path.endswith((".gz", ".bz2", ".zst")) else (f"print it:   sed -n {line}p {shlex.quote(path)}",)
    )
    away: tuple[str, ...] = ()
    if flow is not None:
        away = (f"or move the file away, and drop the planned batch:   headrace reset {flow}",)
    return errors.FileUnreadableError(
        f"{'' if flow is None else f'flow {flow}: '}the file {path}, line {line}, {problem}",
        location=location,
        facts=(*facts, NOT_COMMITTED),
        remedies=(*more, *remedies, *away),
        params={"path": path, "line": line, **({} if flow is None else {"flow": flow})},
    )


def _listed(names: Sequence[str], shown: int = 12) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {counted(more, 'more column')}" if more > 0 else "")
