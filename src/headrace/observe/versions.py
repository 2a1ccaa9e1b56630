"""The version of a table that a user asks for: by number, or as the newest at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from headrace.errors import ReadVersionGoneError, ReadVersionUnknownError
from headrace.storage.locate import locate
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import load_commit, readable_versions

_WALKED = 100  # the versions that are looked at to find one whose files are still there


def find_version(
    table: Location, *, version: int | None = None, timestamp: datetime | None = None
) -> int | None:
    """The chosen version; ``None`` for the newest."""
    if version is None and timestamp is None:
        return None
    known = readable_versions(table)
    if version is not None:
        if version not in known:
            raise _no_version(table, known, f"has no version {version}", {"version": version})
        return version
    assert timestamp is not None
    return _newest_at(table, known, timestamp)


def check_files(table: Location, version: int) -> None:
    """Check that the data files of a version still exist: a vacuum removes files, but no versions."""
    missing = _missing_file(table, version)
    if missing is None:
        return
    known = readable_versions(table)
    whole = [known[-1]] if known and _missing_file(table, known[-1]) is None else []
    if whole:
        for older in list(reversed(known))[1:_WALKED]:
            if older <= version or _missing_file(table, older) is not None:
                break
            whole.append(older)
    raise ReadVersionGoneError(
        f"version {version} of the table {table.name} cannot be read: a vacuum has removed data files",
        facts=(f"missing: {missing}", *([f"can be read: {_span(whole[-1], whole[0])}"] if whole else ())),
        remedies=(f"read the newest version:   headrace read {table.name}",)
        if whole
        else ("headrace verify",),
        params={"dataset": table.name, "version": version, "whole": [whole[-1], whole[0]] if whole else None},
    )


def _newest_at(table: Location, known: Sequence[int], moment: datetime) -> int:
    asked = {"timestamp": moment.isoformat()}
    if moment > datetime.now(UTC):
        raise _no_version(table, known, f"has no version at {_shown(moment)}, which is in the future", asked)
    low, high = 0, len(known)
    # Commits follow each other in time; a writer whose clock is behind moves the answer by as much.
    while low < high:
        middle = (low + high) // 2
        committed = _committed(table, known[middle])
        if committed is None or committed <= moment:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        first = _committed(table, known[0]) if known else None
        when = "" if first is None else f"; the first was committed at {_shown(first)}"
        raise _no_version(table, known, f"has no version as old as {_shown(moment)}", asked, when)
    return known[low - 1]


def _committed(table: Location, version: int) -> datetime | None:
    """When a version was committed; ``None`` if only a checkpoint of Delta still has it."""
    try:
        return load_commit(table, version).at
    except FileNotFoundError:
        return None


def _missing_file(table: Location, version: int) -> str | None:
    """The first file of a version that does not exist; ``None`` if all exist."""
    for uri in open_delta(table, version).file_uris():
        file = locate(uri)
        if not file.exists() and not locate(unquote(file.path)).exists():
            return file.name
    return None


def _no_version(
    table: Location, known: Sequence[int], what: str, params: Mapping[str, object], first: str = ""
) -> ReadVersionUnknownError:
    held = f"its log has {_span(known[0], known[-1])}{first}" if known else "its log has no version"
    return ReadVersionUnknownError(
        f"the table {table.name} {what}",
        facts=(held,),
        remedies=(f"read the newest version:   headrace read {table.name}",),
        params={"dataset": table.name, **params, "versions": [known[0], known[-1]] if known else None},
    )


def _span(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
