"""Merges the small files of a plain table without a Spark job, which takes seconds for some hundred files and
slows the batches that share the cores with it."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.arrow_files import plain_schema, write_data_file
from headrace.sinks.delta.data_files import DataFile
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import confirm_version, scala_list
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES = 4 << 20
"""The largest size of a file that is merged. A merged file soon exceeds it, and is not read again."""
_MOST_BYTES = 64 << 20
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""Marks of files whose dates have another calendar."""


def merge_files(
    session: SparkSession, table: Location, snapshot: Any, files: Sequence[DataFile]
) -> tuple[int, int] | None:
    """Merge files into one, in one commit that changes no rows. Returns the number of bytes before and after;
    ``None`` if a Spark job must do it. `snapshot`: Delta's snapshot of the version that has the files."""
    schema = plain_schema(session, snapshot.metadata(), snapshot.protocol())
    before = sum(one.size for one in files)
    if schema is None or before > _MOST_BYTES:
        return None
    if any(one.deleted_rows or one.partition or one.rows is None for one in files):
        return None
    rows = _read(table, [one.name for one in files], schema["fields"])
    if rows is None or rows.num_rows != sum(one.rows or 0 for one in files):
        return None
    added = write_data_file(rows, table, schema, session.version, changes_data=False)
    now = time.time_ns() // 1_000_000
    jvm: Any = session._jvm
    actions = [one.in_jvm(jvm).removeWithTimestamp(now, False) for one in files]
    none, nil = jvm.scala.Option.empty(), scala_list(jvm)
    delta = jvm.org.apache.spark.sql.delta
    transaction = delta_log(session, table).startTransaction(none, jvm.scala.Some(snapshot))
    actions.append(delta.actions.Action.fromJson(json.dumps({"add": added})))
    version = int(
        transaction.commit(
            scala_list(jvm, actions), delta.DeltaOperations.Optimize(nil, nil, False, none, False)
        )
    )
    confirm_version(session, table, snapshot.version(), version, "a compaction")
    return before, int(added["size"])


def _read(table: Location, names: Sequence[str], fields: Sequence[Mapping[str, Any]]) -> pa.Table | None:
    """The rows of files; ``None`` if one of them has not the columns of the table as they are written now."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    held = table.read_files(names)
    instants = {one["name"] for one in fields if one["type"] == "timestamp"}
    tables: list[pa.Table] = []
    for name in names:
        if name not in held:
            return None
        # Spark's own files have instants in the form INT96, which says no time zone: it is UTC.
        file = pq.ParquetFile(io.BytesIO(held[name]), coerce_int96_timestamp_unit="us")
        if _has_old_calendar(file.metadata.metadata or {}):
            return None
        found = file.read().replace_schema_metadata(None)
        if found.column_names != [one["name"] for one in fields]:
            return None
        for index, column in enumerate(found.schema):
            if column.name in instants:
                utc = found.column(index).cast(pa.timestamp("us", "UTC"))
                found = found.set_column(index, pa.field(column.name, utc.type), utc)
        if not all(_fits(one.type, field["type"]) for one, field in zip(found.schema, fields, strict=True)):
            return None
        if tables and found.schema != tables[0].schema:
            return None
        tables.append(found)
    return pa.concat_tables(tables)


def _has_old_calendar(marks: Mapping[bytes, bytes]) -> bool:
    """Whether a file can have dates of the calendar before 1582: Spark wrote them so until version 3.1."""
    version = marks.get(b"org.apache.spark.version", b"").split(b".")[:2]
    is_old = len(version) == 2 and tuple(map(int, version)) < (3, 1)
    return is_old or any(mark in marks for mark in _LEGACY)


def _fits(found: pa.DataType, kind: Any) -> bool:
    """Whether the values of a column, also nested ones, have the form in which they are written now."""
    import pyarrow as pa

    if isinstance(kind, str):
        return kind != "timestamp" or found == pa.timestamp("us", "UTC")
    match kind["type"]:
        case "struct":
            held = [found.field(index) for index in range(found.num_fields)]
            return [one.name for one in held] == [one["name"] for one in kind["fields"]] and all(
                _fits(one.type, field["type"]) for one, field in zip(held, kind["fields"], strict=True)
            )
        case "array":
            return _fits(found.value_type, kind["elementType"])
        case _:
            return _fits(found.key_type, kind["keyType"]) and _fits(found.item_type, kind["valueType"])
