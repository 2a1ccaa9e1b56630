"""Finds the damaged file of a Delta log, after a reader has failed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import HeadraceError, LogUnreadableError, first_line
from headrace.storage.layout import locate, locate_supported, table_name
from headrace.storage.location import Location

_LOG = "_delta_log"
_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\..*(?:parquet|json)|\d{20}\.checkpoint\.parquet")
_UNREAD = re.compile(r"\bfile \S*?([^/\s]+\.parquet): .*?([^:]+)$")
_URI = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://")
_READ = ("protocol", "metaData", "txn")  # small columns of a checkpoint
_CHARACTERS = 60


def find_damage(table: Location) -> LogUnreadableError | None:
    """The error for the newest file of a log that cannot be read; ``None`` if all files can be read."""
    log = table / _LOG
    for name in reversed(log.list_files()):
        if not (_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name)):
            continue
        file = log / name
        if (fault := next(_faults(file), None)) is not None:
            return log_unreadable(file, fault)
    return None


@contextmanager
def naming_damage(table: Location) -> Iterator[None]:
    """Raise the error for a damaged file of a table's log in place of the failure that it causes."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if (damaged := find_damage(table)) is None:
            raise
        raise damaged from error


def find_damage_named(text: str) -> LogUnreadableError | None:
    """The error for a log that the text of a failure names; ``None`` if it names none, or all is readable."""
    for line in unquote(text).splitlines():
        before, found, _ = line.partition(f"/{_LOG}")
        if found and (table := _table_of_uri(before)) is not None:
            return find_damage(table)
        # A path can have spaces, so that the text does not show where it starts.
        paths = (before[start:] for start, letter in enumerate(before) if found and letter == "/")
        for path in paths:
            # Unlike `Path.is_dir`, this is also false for a text that is too long for a path.
            if os.path.isdir(f"{path}/{_LOG}"):  # noqa: PTH112
                return find_damage(locate(Path(path)))
    return None


def data_file_faults(text: str) -> tuple[str, ...]:
    """The first lines of a reader's error. If it names a data file: only the file and its fault."""
    lines = text.strip().splitlines()[:2]
    found = next(filter(None, map(_UNREAD.search, lines)), None)
    return tuple(lines) if found is None else (f"its file {found[1]}: {found[2].strip()}",)


def _table_of_uri(text: str) -> Location | None:
    begins = [one.start() for one in _URI.finditer(text)]
    located = locate_supported(text[begins[-1] :]) if begins else None
    return None if located is None or located.is_local else located


def log_unreadable(file: Location, fault: str) -> LogUnreadableError:
    table = file.parent.parent
    name = table_name(table).short
    version = f" at v{int(file.name[:20])}" if file.name[:20].isdigit() else ""
    is_ours = table.parent.parent.name == "tables"
    away = table.move_command(f"{table.name}-damaged")
    again = (
        f"or, if its sources still have all records, move the table out of the storage:   {away}",
        f"then compute it again:   headrace full-refresh {name}",
    )
    return LogUnreadableError(
        f"the log of the table {name if is_ours else table} is damaged{version}",
        facts=(f"{file} {fault}", "nothing was written"),
        remedies=("restore the file from a copy of the table", *(again if is_ours else ())),
        params={"table": str(table), "path": str(file), "fault": fault},
    )


def _faults(file: Location) -> Iterator[str]:
    try:
        if file.name.endswith(".json"):
            yield from _faults_of_lines(file.read_bytes())
        else:
            yield from _faults_of_parquet(file)
    except FileNotFoundError:
        # A cleanup of the log has removed it.
        return


def _faults_of_lines(data: bytes) -> Iterator[str]:
    if not data.strip():
        yield "is empty"
    # Only \n ends a line: JSON may have other separators, such as U+2028, in its texts.
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            is_action = isinstance(json.loads(line), dict)
        except ValueError:
            is_action = False
        if not is_action:
            shown = line.decode(errors="replace")[:_CHARACTERS]
            # A crash of the machine can leave a file of zero bytes.
            yield f"is not JSON in line {number}" + (f": {shown!r}" if shown.isprintable() else "")


def _faults_of_parquet(file: Location) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            held = pq.ParquetFile(stream)
            held.read(columns=[name for name in _READ if name in held.schema_arrow.names])
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        yield f"is not a whole Parquet file: {first_line(error)[:200]}"
