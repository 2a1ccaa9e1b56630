"""`read_files`, `read_table_stream` and `read_changes`: files and Delta tables in query functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from headrace.declare.arguments import Arguments, arguments_of, evolving_schema, parse_drift
from headrace.declare.reads import declared_schema, value_limit
from headrace.declare.registry import ActivePipeline, require_pipeline
from headrace.model.declarations import DriftAction
from headrace.model.folders import FileFolder
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, StructType, T
from headrace.storage.layout import locate_supported
from headrace.storage.location import Location
from headrace.storage.mapped_files import mapped_path


def read_files(
    path: str | Path,
    *,
    format: Literal["json", "csv", "parquet", "avro", "text", "orc"],
    schema: str | StructType | None = None,
    recursive: bool = False,
    glob: str | None = None,
    invalid_utf8: Literal["reject", "replace"] = "reject",
    bad_records: Literal["quarantine", "stop"] = "quarantine",
    max_value_bytes: int | None = None,
    drift: DriftAction | Mapping[str, DriftAction] | None = None,
    max_files_per_trigger: int | None = None,
    max_bytes_per_trigger: int | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The new files of a folder as a streaming DataFrame; each file is read exactly once.

    Every row has a struct ``_source``: path, size and modified of its file. A query may keep,
    flatten or drop it.

    Args:
        path: The folder, relative to the pipeline's folder; ``*``, ``?``, ``[..]`` and ``{a,b}`` match names.
        format: The format of the files.
        schema: The columns, as a DDL string, a ``StructType`` or a file. Without one they are inferred
            from the files that exist at the first run, and kept. Text has the one column ``value``.
        recursive: Whether all folders below are read. Without it, only folders named ``key=value`` are,
            and each key is a column.
        glob: A pattern for the names of files, such as ``*.json``.
        invalid_utf8: What to do with a line of JSON or text that is not valid UTF-8: ``reject``
            makes it a bad record, ``replace`` replaces invalid bytes by U+FFFD.
        bad_records: What to do with a line of JSON or text that cannot be decoded: move it to the
            ``quarantine`` table, or ``stop`` the flow. Files of other formats always stop the flow.
        max_value_bytes: A longer line of JSON or text is a bad record; by default the spec's, else 8 MiB.
        max_files_per_trigger: The maximum number of files in a batch.
        max_bytes_per_trigger: The maximum number of bytes in a batch, but at least one file; in place
            of the limit of files. The default keeps a batch under about 30 seconds.
        drift: What to do with a JSON record that differs from the schema, as in `read_kafka`, or with a
            column of a CSV file's header that the schema does not have.
        options: Further options of Spark's reader for this format.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def visits():
        ...     return hr.read_files("landing", format="json", schema="id LONG, page STRING")
    """
    active = require_pipeline("read_files")
    arguments = arguments_of("hr.read_files")
    from headrace.sources.files import read as files
    from headrace.sources.files.headers import has_header
    from headrace.sources.files.options import check_options

    with arguments.located():
        chosen = arguments.settings("options", options)
        files.check_format(arguments.text("format", format))
        check_options(arguments.call, format, chosen)
        location = folder_path(active, arguments, path)
        folder = FileFolder(
            path=location.path,
            storage=location.files,
            recursive=arguments.flag("recursive", recursive),
            glob=_glob(arguments, glob),
        )
        limits = _limits(arguments, max_files_per_trigger, max_bytes_per_trigger)
        named = {key.lower() for key in chosen}
        if len(limits) > 1 or any(option.lower() in named for option in limits):
            problem = "is set together with another limit"
            raise arguments.invalid("max_bytes_per_trigger", problem, "keep one")
        arguments.one_of("bad_records", bad_records, "quarantine", "stop")
        if format == "text" and schema is not None:
            raise arguments.invalid(
                "schema", 'cannot be used with format="text", which has one column, `value`'
            )
        columns = declared_schema(arguments, schema)
        if active.folders is not None:
            folder = active.folders(folder, format, columns, chosen, arguments.location)
        files.check_folder(folder)
        if columns is None and format != "text":
            columns = kept_schema(active, folder, format, chosen)
        by_name = format == "csv" and has_header(chosen)
        actions = parse_drift(arguments, drift, columns if format == "json" or by_name else None)
        if by_name and actions.has("quarantine"):
            problem = "cannot be 'quarantine' for CSV files: a new column is in all rows of a file"
            raise arguments.invalid("drift", problem, "write evolve, rescue or fail")
        evolving = evolving_schema(active, arguments, f"files {folder.path}", columns, actions)
        return files.read(
            active.session(),
            folder,
            format=format,
            schema=columns if evolving is None else evolving.schema,
            limits=limits,
            options=chosen,
            invalid_utf8=invalid_utf8,
            bad_records=bad_records if active.quarantines else "stop",
            max_value_bytes=value_limit(active, arguments, max_value_bytes),
            drift=actions,
            evolving=evolving,
            notes_unknown=active.quarantines,
            found=active.bad_records,
        )


def kept_schema(
    active: ActivePipeline, folder: FileFolder, format: str, options: Mapping[str, str]
) -> StructType:
    """The schema that the first run has kept, else the one of the files now."""
    from headrace.sources.files import read as files
    from headrace.state.kept_schemas import SchemaKey, load_schema

    choosing = {"recursive": str(folder.recursive), "glob": folder.glob or ""}
    key = SchemaKey(format=format, path=folder.path, options={**options, **choosing})
    known = load_schema(active.settings.storage.schemas, key)
    if known is None:
        known = next((schema for one, schema in active.inferred if one == key), None)
    if known is not None:
        return T.StructType.fromJson(dict(known))
    from pyspark.errors import PySparkException

    try:
        schema = files.infer_schema(active.session(), folder, format, options)
    except PySparkException as error:
        raise files.inference_failed(error, folder, format) from error
    active.inferred.append((key, schema.jsonValue()))
    return schema


def folder_path(active: ActivePipeline, arguments: Arguments, path: Any) -> Location:
    """The location of a folder, as the spec maps it."""
    text = arguments.text("path", os.fspath(path) if isinstance(path, os.PathLike) else path)
    if not text.strip():
        raise arguments.invalid("path", "must not be empty")
    location = locate_supported(mapped_path(text, active.settings, arguments.location))
    if location is None:
        raise arguments.invalid(
            "path",
            f"{text} is neither a local folder nor one of a bucket (s3://BUCKET/FOLDER)",
            "or name a local copy in headrace.yml:   paths: {s3a://bucket: ./bucket}",
        )
    return location


def _glob(arguments: Arguments, value: Any) -> str | None:
    glob = arguments.optional_text("glob", value)
    if glob is not None and (not glob or "/" in glob):
        raise arguments.invalid(
            "glob",
            f"is a pattern for file names, not {glob!r}",
            'folders go into the path: hr.read_files("landing/2024-*", glob="*.json")',
        )
    return glob


def _limits(arguments: Arguments, files: Any, size: Any) -> dict[str, str]:
    limits = {}
    for name, option, value in (
        ("max_files_per_trigger", "maxFilesPerTrigger", files),
        ("max_bytes_per_trigger", "maxBytesPerTrigger", size),
    ):
        if value is not None:
            limits[option] = str(arguments.positive(name, value))
    return limits


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
    options |= _limits(arguments, max_files_per_trigger, max_bytes_per_trigger)
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
    arguments.one_of("images", images, "latest", "all")
    options = _start(arguments, starting_version, starting_timestamp)
    changes = _read(active.session(), arguments.text("table", table), {**options, "readChangeFeed": "true"})
    return changes if images == "all" else changes.where("_change_type <> 'update_preimage'")


def _read(session: SparkSession, table: str, options: dict[str, str]) -> DataFrame:
    reader = session.readStream.options(**options)
    return reader.format("delta").load(table) if "/" in table else reader.table(table)


def _start(arguments: Arguments, version: Any, moment: Any) -> dict[str, str]:
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
