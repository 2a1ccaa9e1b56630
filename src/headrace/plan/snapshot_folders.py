"""Folders of snapshots: which versions they have, and the format of their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path

from headrace.model.snapshots import Version

_FORMATS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".orc": "orc",
}
_COMPRESSED = re.compile(r"\.(gz|bz2|zst)$")
_SUFFIXES = re.compile(r"(\.(gz|bz2|zst|snappy|parquet|json|jsonl|ndjson|csv|orc))+$")
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})[T_ ](\d{2})[-:]?(\d{2})(?:[-:]?(\d{2}))?Z?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

KNOWN_SUFFIXES = ", ".join(_FORMATS)


def list_snapshots(folder: Path) -> list[tuple[Path, Version | None]]:
    """What is in a folder, without hidden names, and the versions; ``None`` if a name is not a version."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [(path, parse_name(path.name)) for path in paths if not _is_hidden(Path(path.name))]


def is_complete(path: Path) -> bool:
    """Whether a snapshot has files, and Spark is not writing it."""
    return not (path / "_temporary").exists() and bool(_data_files(path))


def parse_name(name: str) -> Version | None:
    """The version in the name of a folder or a file, such as ``date=2026-01-31`` or ``7.csv``.

    Returns:
        A number, a date, or a datetime without a zone; ``None`` if the name is none of them.
    """
    text = _SUFFIXES.sub("", name).rpartition("=")[2]
    try:
        if text.isdecimal():
            return int(text)
        if (found := _TIME.fullmatch(text)) is not None:
            day, hour, minute, second = found.groups()
            return datetime.fromisoformat(f"{day}T{hour}:{minute}:{second or '00'}")
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def format_of(path: Path) -> str | None:
    """Spark's format of the files of a snapshot; ``None`` if they have none of the suffixes, or several."""
    suffixes = {Path(_COMPRESSED.sub("", one.name)).suffix for one in _data_files(path)}
    formats = {_FORMATS.get(one) for one in suffixes}
    return formats.pop() if len(formats) == 1 else None


def _data_files(path: Path) -> list[Path]:
    """The files of a snapshot that Spark reads."""
    if path.is_file():
        return [path]
    return [one for one in path.rglob("*") if one.is_file() and not _is_hidden(one.relative_to(path))]


def _is_hidden(path: Path) -> bool:
    """Whether Spark ignores a relative path: a name in it begins with ``.`` or ``_``."""
    return any(part.startswith((".", "_")) for part in path.parts)
