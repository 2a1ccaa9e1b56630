"""Infers the schema of JSON and CSV records, of topics and files; starts no Spark and keeps no record."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast
from urllib.parse import unquote

from headrace.contracts.schema_types import Coordinates, Kind, Shape, build_type, decode_json, to_ddl
from headrace.errors import FilesNotFoundError

_EXAMPLES = 5
_EXACT = 2**53  # the largest integer up to which a DOUBLE has all integers


@dataclass(frozen=True)
class CorruptRecord:
    at: Coordinates
    problem: str
    excerpt: str


@dataclass(frozen=True)
class Finding:
    path: str  # the field, such as ``order.lines[].price``
    problem: str
    became: str
    examples: tuple[tuple[Kind, int, Coordinates, str], ...] = ()


@dataclass
class Inference:
    """The records that were read so far, and their shape."""

    records: int = 0
    tombstones: int = 0
    corrupt: int = 0  # the number of records that were left out
    corrupt_records: list[CorruptRecord] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    tolerated: list[Finding] = field(
        default_factory=list
    )  # fields in which values of rare types are left out

    def add_json(
        self, value: bytes | None, at: Coordinates, columns: Mapping[str, Any] | None = None
    ) -> None:
        """Add a record in JSON; a record that is not a JSON object is counted as corrupt."""
        if value is None:
            self.tombstones += 1
            return
        try:
            record = decode_json(value.decode("utf-8"))
        except UnicodeDecodeError as error:
            self.leave_out(value, at, f"not valid UTF-8 at byte {error.start + 1}")
        except json.JSONDecodeError as error:
            problem = f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"
            self.leave_out(value, at, f"not valid JSON: {problem}")
        except (ValueError, RecursionError) as error:
            self.leave_out(value, at, f"not readable JSON: {error}")
        else:
            if type(record) is not tuple:
                self.leave_out(value, at, "not a JSON object")
            elif columns:
                own = tuple(pair for pair in record if pair[0] not in columns)
                self.add_object((*own, *columns.items()), at)
            else:
                self.add_object(record, at)

    def add_object(self, record: Mapping[str, Any] | tuple[tuple[str, Any], ...], at: Coordinates) -> None:
        self.records += 1
        self.shape.add(record, at)

    def tolerate(self, share: float) -> None:
        """Leave out the values of types that at most this share of a field's values has."""
        self.tolerated += _forget_rare(self.shape, share)

    def leave_out(self, value: bytes, at: Coordinates, problem: str) -> None:
        self.corrupt += 1
        if len(self.corrupt_records) < _EXAMPLES:
            excerpt = value[:60].decode("utf-8", errors="backslashreplace")
            self.corrupt_records.append(CorruptRecord(at, problem, excerpt))


def _forget_rare(shape: Shape, share: float, path: str = "") -> Iterator[Finding]:
    total = sum(shape.kinds.values())
    rare = {kind: count for kind, count in shape.kinds.items() if count <= share * total}
    if rare and len(rare) == len(shape.kinds) - 1:
        examples = tuple(_examples(shape, rare))
        for kind in rare:
            shape.forget(kind)
        problem = f"{sum(rare.values()):,} of {total:,} values have another type; their records are bad"
        yield Finding(path, problem, to_ddl(build_type(shape)), examples)
    if len(shape.kinds) == 1:
        for inner, inner_path in _inner(shape, path):
            yield from _forget_rare(inner, share, inner_path)


def _examples(shape: Shape, kinds: Mapping[Kind, int]) -> Iterator[tuple[Kind, int, Coordinates, str]]:
    for kind, count in kinds.items():
        yield kind, count, shape.examples[kind].at, shape.examples[kind].value


def find_conflicts(shape: Shape, path: str = "") -> Iterator[Finding]:
    """The fields whose values have several types or are rounded, or whose names differ only in case."""
    kinds = shape.kinds
    if len(kinds) > 1:
        yield Finding(path, "values of several types", "STRING", tuple(_examples(shape, kinds)))
        return
    rounded = [one for one in (shape.low, shape.high) if isinstance(one, int) and abs(one) > _EXACT]
    if rounded and build_type(shape) == "double":
        yield Finding(path, f"integers such as {rounded[0]} are rounded", "DOUBLE")
    first: dict[str, str] = {}
    for name in shape.fields:
        other = first.setdefault(name.lower(), name)
        if other != name:
            problem = f"differs from `{_join(path, other)}` only in case; a table cannot have both columns"
            yield Finding(_join(path, name), problem, "a field of its own")
    for inner, inner_path in _inner(shape, path):
        yield from find_conflicts(inner, inner_path)


def find_empty(shape: Shape, path: str = "") -> Iterator[Finding]:
    """The fields that have only nulls, only empty objects or only empty arrays."""
    kinds = shape.kinds
    if not kinds:
        yield Finding(path, "only nulls" if shape.nulls else "only empty arrays", "STRING")
    elif "object" in kinds and len(kinds) == 1 and not shape.fields and shape.values is None:
        yield Finding(path, "only empty objects", "STRING")
    elif len(kinds) == 1:
        for inner, inner_path in _inner(shape, path):
            yield from find_empty(inner, inner_path)


def _inner(shape: Shape, path: str) -> Iterator[tuple[Shape, str]]:
    for name, one in shape.fields.items():
        yield one, _join(path, name)
    if shape.values is not None:
        yield shape.values, f"{path}{{}}"
    if shape.items is not None:
        yield shape.items, f"{path}[]"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


FileFormat = Literal["json", "csv"]

_FORMATS: dict[str, FileFormat] = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
_BOM = b"\xef\xbb\xbf"
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d+)?")
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class RecordFiles:
    format: FileFormat
    files: tuple[tuple[Path, dict[str, Any]], ...]  # each file with the values of its ``key=value`` folders
    # Whether some files are in subfolders that are not named ``key=value``; then no folder becomes a column.
    recursive: bool


def find_files(folder: Path) -> RecordFiles:
    found = sorted(_walk(folder)) if folder.is_dir() else [folder] if folder.is_file() else []
    known = [(path, form) for path in found if (form := _format(path)) is not None]
    forms = sorted({form for _, form in known})
    if len(forms) != 1:
        problem = "has JSON files and CSV files" if forms else "has no JSON or CSV file"
        raise FilesNotFoundError(
            f"{folder} {problem}" if folder.exists() else f"there is no folder {folder}",
            facts=[f"looked for *{', *'.join(_FORMATS)}, also with .gz"],
            remedies=["name a folder or a file with records of one format, such as ./landing"],
            params={"path": str(folder), "formats": forms},
        )
    base = folder if folder.is_dir() else folder.parent
    parts = [path.parent.relative_to(base).parts for path, _ in known]
    recursive = any("=" not in name for names in parts for name in names)
    columns = [{} if recursive else dict(map(_folder_column, names)) for names in parts]
    files = tuple(zip((path for path, _ in known), columns, strict=True))
    return RecordFiles(forms[0], files, recursive)


def infer_files(found: RecordFiles, sample: int | None = None) -> Inference:
    """Read the records of files; a sample has the first records of files that are spread evenly."""
    inference = Inference()
    files, limit = found.files, None
    if sample is not None:
        step = max(1, -(-len(files) // sample))
        files = files[::step]
        limit = -(-sample // len(files))
    for path, columns in files:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as opened:
            stream = cast(IO[bytes], opened)
            if found.format == "json":
                lines = ((number, line.strip()) for number, line in enumerate(stream, 1))
                for number, line in itertools.islice((one for one in lines if one[1]), limit):
                    inference.add_json(
                        line.removeprefix(_BOM) if number == 1 else line, (str(path), number), columns
                    )
            else:
                _add_csv(inference, stream, path, columns, limit)
    return inference


def parse_cell(text: str) -> Any:
    """The value of a CSV cell: null, a boolean, a number without leading zeros, or text."""
    if not text:
        return None
    if text in ("true", "false"):
        return text == "true"
    if found := _NUMBER.fullmatch(text):
        return float(text) if found[2] else int(text)
    return text


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        # Spark's readers skip these names, too.
        folders[:] = [name for name in folders if "=" in name or not name.startswith(("_", "."))]
        yield from (Path(parent, name) for name in names if not name.startswith(("_", ".")))


def _format(path: Path) -> FileFormat | None:
    return _FORMATS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _folder_column(folder: str) -> tuple[str, Any]:
    name, _, value = folder.partition("=")
    return unquote(name), None if value == _NULL_FOLDER else parse_cell(unquote(value))


def _add_csv(
    inference: Inference, stream: IO[bytes], path: Path, columns: dict[str, Any], limit: int | None
) -> None:
    # A line that is not valid UTF-8 must not end the file: its bytes are kept as surrogates.
    lines = (line.decode("utf-8", "surrogateescape") for line in stream)
    rows = csv.reader(lines)
    header = next((row for row in rows if row), [])
    # Spark compares the names of the header with those of the schema, and removes no spaces.
    names = [name.removeprefix("\ufeff") for name in header]
    for row in itertools.islice((row for row in rows if row), limit):
        at = (str(path), rows.line_num)
        text = ",".join(row)
        value = text.encode("utf-8", "surrogateescape")
        if len(row) != len(names):
            inference.leave_out(value, at, f"{len(row)} values for {len(names)} columns")
        elif not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
            inference.leave_out(value, at, "not valid UTF-8")
        else:
            inference.add_object(dict(zip(names, map(parse_cell, row), strict=True)) | columns, at)
