"""Reads the records of JSON and CSV files, to infer their schema."""

from __future__ import annotations

import csv
import gzip
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast
from urllib.parse import unquote

from headrace.contracts.inference import Inference
from headrace.errors import FilesNotFoundError

FileFormat = Literal["json", "csv"]

_FORMATS: dict[str, FileFormat] = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv"}
_BOM = b"\xef\xbb\xbf"
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,99})(\.\d+)?")
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class RecordFiles:
    """The JSON or CSV files of a folder.

    Args:
        recursive: Whether some files are in other folders below; ``key=value`` folders are no columns then.
    """

    folder: Path
    format: FileFormat
    files: tuple[tuple[Path, dict[str, Any]], ...]  # each file with the values of its ``key=value`` folders
    recursive: bool


def find_files(folder: Path) -> RecordFiles:
    """The files of a folder and of all folders below it, or one file.

    Raises:
        FilesNotFoundError: There is no JSON or CSV file, or there are files of both formats.
    """
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
    columns = [{} if recursive else dict(map(_column, names)) for names in parts]
    files = tuple(zip((path for path, _ in known), columns, strict=True))
    return RecordFiles(folder, forms[0], files, recursive)


def infer_files(found: RecordFiles, sample: int | None = None) -> Inference:
    """Read the records of files.

    Args:
        sample: The number of records to read: the first ones of files that are spread evenly.
    """
    inference = Inference()
    files, limit = found.files, None
    if sample is not None:
        step = max(1, -(-len(files) // sample))
        files = files[::step]
        limit = -(-sample // len(files))
    for path, columns in files:
        with _open(path) as stream:
            if found.format == "json":
                _add_json(inference, stream, path, columns, limit)
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


def _column(folder: str) -> tuple[str, Any]:
    name, _, value = folder.partition("=")
    return unquote(name), None if value == _NULL_FOLDER else parse_cell(unquote(value))


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _add_json(
    inference: Inference, stream: IO[bytes], path: Path, columns: dict[str, Any], limit: int | None
) -> None:
    lines = ((number, line.strip()) for number, line in enumerate(stream, 1))
    for number, line in itertools.islice((one for one in lines if one[1]), limit):
        inference.add_json(line.removeprefix(_BOM) if number == 1 else line, (str(path), number), columns)


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
