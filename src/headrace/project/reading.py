"""Tables for scripts and notebooks, read without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.declare.spec import load_project
from headrace.errors import ArgumentInvalidError, SpecNotFoundError
from headrace.model.project import ProjectSettings
from headrace.observe.read import Selection, find_table, read_rows
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa


def read_delta(
    table: str | Path,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    limit: int | None = None,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    project: str | Path | None = None,
    profile: str | None = None,
) -> pa.Table:
    """Read rows of a Delta table into memory, as an Arrow table; starts no JVM.

    It supports deletion vectors and column mapping, like `headrace read`.

    Example:
        >>> import headrace as hr
        >>> hr.read_delta("revenue", where="revenue > 1000", limit=10).to_pandas()  # doctest: +SKIP

    Args:
        table: A dataset of the pipeline, or the path or URI of any Delta table.
        columns: The columns, by dotted path; by default all.
        where: A condition in SQL.
        limit: The maximum number of rows; their order is not defined.
        version: The table's version; by default the newest.
        timestamp: In place of a version, a time (in UTC without a zone): the version that was the newest
            then.
        project: The pipeline's folder or spec; by default found from the current folder upward.
        profile: The profile's name; by default ``HEADRACE_PROFILE``, else ``dev``.

    Raises:
        TableUnknownError: There is no such table.
        StorageUnsupportedError: The table is a URI of a kind of storage that is not supported.
        ReadColumnUnknownError: The table has no such column.
        ReadConditionInvalidError: The condition cannot be evaluated.
        ReadVersionUnknownError: The table has no such version.
        ReadVersionGoneError: A vacuum has removed the version's files.
        TableUnreadableError: The table is damaged, or has a feature that the reader does not support.
        ArgumentInvalidError: An argument has an invalid value.
    """
    if version is not None and timestamp is not None:
        raise _wrong("version", version, "`version` and `timestamp` cannot both be given")
    for name, value, least in (("version", version, 0), ("limit", limit, 0)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise _wrong(name, value, f"`{name}` must be a whole number of at least {least}, not {value!r}")
    if isinstance(columns, str):
        raise _wrong("columns", columns, f"`columns` must be a list of names, not {columns!r}")
    selection = Selection(
        where=where, limit=limit, columns=tuple(columns or ()), version=version, timestamp=_moment(timestamp)
    )

    def settings() -> ProjectSettings:
        return load_project(None if project is None else Path(project), profile=profile)

    if isinstance(table, Path):
        return read_rows(find_table(str(table.absolute()), None, "default"), selection).to_arrow()
    return read_rows(locate_table(table, settings), selection).to_arrow()


def locate_table(table: str, settings: Callable[[], ProjectSettings]) -> Location:
    """The folder of a dataset, or of the path of a Delta table, which needs no pipeline."""
    try:
        found = settings()
    except SpecNotFoundError:
        if "/" not in table:
            raise
        return find_table(table, None, "default")
    return find_table(table, found.storage, found.database)


def _moment(value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, AttributeError, TypeError) as error:
        problem = f"`timestamp` must be a datetime or text such as 2026-11-20T08:14, not {value!r}"
        raise _wrong("timestamp", value, problem) from error


def _wrong(name: str, value: object, problem: str) -> ArgumentInvalidError:
    return ArgumentInvalidError(problem, params={"argument": name, "value": str(value)})
