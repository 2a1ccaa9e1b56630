"""`read_table_stream` and `read_changes`: the rows and the changes of Delta tables in query functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.registry import require_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table_stream(
    table: str,
    *,
    starting_version: int | Literal["latest"] | None = None,
    starting_timestamp: datetime | str | None = None,
    max_files_per_trigger: int | None = None,
    max_bytes_per_trigger: int | None = None,
) -> DataFrame:
    """The rows of a Delta table, and then the rows that are added to it, as a streaming DataFrame.

    A table whose rows are updated or merged cannot be read so: read its changes with `read_changes`.

    Args:
        table: The name of a table, or the path of a Delta table.
        starting_version: The first table version whose added rows are read, or ``latest`` for the version
            after the newest one. By default, the whole table is read first.
        starting_timestamp: In place of a version: the first version at or after a ``datetime`` or text in
            ISO 8601, which is in UTC if it has no zone.
        max_files_per_trigger: The maximum number of files in a batch.
        max_bytes_per_trigger: The maximum number of bytes in a batch, but at least one file. Without any
            limit, Headrace keeps a batch under about 30 seconds.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def large_orders():
        ...     return hr.read_table_stream("orders", max_files_per_trigger=100).where("amount > 1000")
    """
    active = require_pipeline("read_table_stream")
    arguments = arguments_of("hr.read_table_stream")
    options = _start(arguments, starting_version, starting_timestamp)
    for name, option, value in (
        ("max_files_per_trigger", "maxFilesPerTrigger", max_files_per_trigger),
        ("max_bytes_per_trigger", "maxBytesPerTrigger", max_bytes_per_trigger),
    ):
        if value is not None:
            options[option] = str(_positive(arguments, name, value))
    return _read(active.session(), arguments.text("table", table), options)


def read_changes(
    table: str,
    *,
    starting_version: int | Literal["latest"] | None = None,
    starting_timestamp: datetime | str | None = None,
    images: Literal["latest", "all"] = "latest",
) -> DataFrame:
    """The changes of a Delta table's rows, from its change data feed, as a streaming DataFrame.

    Each row has the columns of the table and ``_change_type`` (``insert``, ``update_preimage``,
    ``update_postimage`` or ``delete``), ``_commit_version`` and ``_commit_timestamp``. A run enables the
    change data feed of a table of the pipeline.

    Args:
        table: The name of a table, or the path of a Delta table.
        starting_version: The first table version whose changes are read, or ``latest`` for the version after
            the newest one. By default, the rows of the whole table come first, as inserts.
        starting_timestamp: In place of a version: the first version at or after a ``datetime`` or text in
            ISO 8601, which is in UTC if it has no zone.
        images: ``latest`` gives the rows of inserts and deletes, and of updates the row after the change;
            ``all`` also gives the row before an update.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def customer_history():
        ...     return hr.read_changes("customers", images="all")
    """
    active = require_pipeline("read_changes")
    arguments = arguments_of("hr.read_changes")
    if images not in ("latest", "all"):
        raise arguments.invalid("images", f"must be latest or all, not {images!r}")
    options = _start(arguments, starting_version, starting_timestamp)
    changes = _read(active.session(), arguments.text("table", table), {**options, "readChangeFeed": "true"})
    return changes if images == "all" else changes.where("_change_type <> 'update_preimage'")


def _read(session: SparkSession, table: str, options: dict[str, str]) -> DataFrame:
    reader = session.readStream.options(**options)
    return reader.format("delta").load(table) if "/" in table else reader.table(table)


def _start(arguments: Arguments, version: Any, moment: Any) -> dict[str, str]:
    """The options of Delta for the start of a stream."""
    if version is not None and moment is not None:
        raise arguments.invalid("starting_timestamp", "and starting_version cannot both be set", "keep one")
    if version is not None:
        is_number = isinstance(version, int) and not isinstance(version, bool) and version >= 0
        if not (is_number or version == "latest"):
            raise arguments.invalid("starting_version", f"must be a table version or latest, not {version!r}")
        return {"startingVersion": str(version)}
    return {} if moment is None else {"startingTimestamp": _utc(arguments, moment)}


def _utc(arguments: Arguments, moment: Any) -> str:
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        zoned = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, AttributeError, OverflowError) as error:
        problem = f"must be a datetime or text in ISO 8601, not {moment!r}"
        raise arguments.invalid("starting_timestamp", problem) from error
    return str(zoned.isoformat().replace("+00:00", "Z"))


def _positive(arguments: Arguments, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise arguments.invalid(name, f"must be a whole number above 0, not {value!r}")
    return value
