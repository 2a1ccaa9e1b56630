"""Writes the data file of a few rows without Delta's writer, which plans a nested query and runs a job with
statistics for each batch: for a few hundred rows that is half of the time of the batch.

Only plain tables are written so (`is_plain`); for others, Delta's writer does more than to write rows. The
statistics have the same values as Delta's. A column whose values have no exact JSON form has no minimum and
maximum, as Delta allows.
"""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.model.maintenance import FILE_RETENTION, LOG_CLEANUP, LOG_RETENTION
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.delta.data_files import DataFile
from headrace.sinks.delta.table import as_nullable, delta_log, no_log
from headrace.sinks.delta.transaction import WrittenFiles, commit_actions, confirm_version, scala_list
from headrace.sinks.target import SMALL_BATCH
from headrace.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa


_FEATURES = {
    *("appendOnly", "changeDataFeed", "deletionVectors", "domainMetadata", "invariants", "timestampNtz")
}
_PROPERTIES = {
    *(FILE_RETENTION, LOG_CLEANUP, LOG_RETENTION),
    *("delta.appendOnly", "delta.checkpointInterval", "delta.enableDeletionVectors"),
    "delta.enableChangeDataFeed",
}
"""The properties with a prefix of Delta that change nothing of how rows are appended."""
_RANGED = {
    "byte",
    "short",
    "integer",
    "long",
    "float",
    "double",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
}
"""The types whose minimum and maximum Delta records, beside decimals."""
_TYPES = {*_RANGED, "boolean", "binary"}
_INDEXED = 32  # Delta records statistics of the first columns
_SMALL_BYTES = 4 << 20
"""The size of the file of a small batch, at most. Its rows are in memory twice."""
_PREFIX = 32  # characters of a string that its statistics keep
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = (day.toordinal() - _EPOCH for day in (date.min, date.max))
_DAY_US = 86_400_000_000


def is_plain(schema: Mapping[str, Any], properties: Mapping[str, str], features: set[str]) -> bool:
    """Whether a data file of a table without partitions needs no more than rows and statistics. `schema`: the
    columns, as Delta's metadata has them."""
    ours = all(name in _PROPERTIES for name in properties if name.startswith("delta."))
    fields = schema["fields"]
    kinds = all(map(_is_plain_field, fields))
    return ours and kinds and features <= _FEATURES and len(list(_leaves(fields))) <= _INDEXED


def _is_plain_field(field: Mapping[str, Any]) -> bool:
    # A comment changes nothing. A value that a column must have, or that Delta computes, does.
    return field["nullable"] and field["metadata"].keys() <= {"comment"} and _is_plain_type(field["type"])


def _is_plain_type(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _TYPES or kind.startswith("decimal(")
    match kind["type"]:
        case "struct":
            return all(map(_is_plain_field, kind["fields"]))
        case "array":
            return _is_plain_type(kind["elementType"])
        case "map":
            return _is_plain_type(kind["keyType"]) and _is_plain_type(kind["valueType"])
    return False


def _leaves(fields: Sequence[Mapping[str, Any]], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for one in fields:
        kind = one["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _leaves(kind["fields"], (*path, one["name"]))
        else:
            yield (*path, one["name"])


@dataclass
class SmallBatches:
    """Writes the batches of one flow that are small, and plain for their table."""

    _metadata: tuple[str, str] = ("", "")  # of the table and its protocol, as Delta's JSON
    _schema: Mapping[str, Any] | None = None  # the columns of the table; ``None`` if it is not plain
    _row_bytes: float | None = None  # of the batch before, in its file

    def write(
        self, transaction: Any, rows: DataFrame, table: Location, most: int | None
    ) -> WrittenFiles | None:
        """Write the rows of a batch; ``None`` if Delta must do it. `most`: the number of records that they
        come from, at most; ``None`` if it is not known."""
        if most is None or self._row_bytes is None:
            return None
        if most > SMALL_BATCH or most * self._row_bytes > _SMALL_BYTES:
            return None
        if (schema := self._plain_schema(transaction, rows.sparkSession)) is None:
            return None
        held = to_arrow(rows, schema)
        jvm: Any = rows.sparkSession._jvm
        if not held.num_rows:
            return WrittenFiles(actions=scala_list(jvm))
        text = write_data_file(held, table, schema, rows.sparkSession.version)
        action = jvm.org.apache.spark.sql.delta.actions.Action.fromJson(json.dumps({"add": text}))
        return self.note(WrittenFiles(actions=scala_list(jvm, [action]), added=((action, text),)))

    def note(self, written: WrittenFiles) -> WrittenFiles:
        """Take note of how large the rows of a batch are."""
        if count := written.rows:
            self._row_bytes = sum(int(text["size"]) for _, text in written.added) / count
        return written

    def _plain_schema(self, transaction: Any, session: SparkSession) -> Mapping[str, Any] | None:
        metadata, protocol = transaction.metadata(), transaction.protocol()
        texts = metadata.json(), protocol.json()
        if texts != self._metadata:
            self._metadata, self._schema = texts, plain_schema(session, metadata, protocol)
        return self._schema


def to_arrow(rows: DataFrame, schema: Mapping[str, Any]) -> pa.Table:
    """The rows for a table with these columns."""
    from pyspark.sql.types import StructType

    if all(isinstance(one["type"], str) for one in schema["fields"]):
        return rows.toArrow()
    # PyArrow refuses NULL for a struct with fields that are never NULL.
    kinds = StructType.fromJson(as_nullable(schema))
    columns = (F.col(quoted_column(one.name)).cast(one.dataType).alias(one.name) for one in kinds)
    return rows.select(*columns).toArrow()


def plain_schema(session: SparkSession, metadata: Any, protocol: Any) -> Mapping[str, Any] | None:
    """The columns of a table, if its data files need no more than rows and statistics; else ``None``."""
    table, allowed = json.loads(metadata.json())["metaData"], json.loads(protocol.json())["protocol"]
    features = {*allowed.get("readerFeatures", ()), *allowed.get("writerFeatures", ())}
    schema: Mapping[str, Any] = json.loads(table["schemaString"])
    hadoop: Any = session.sparkContext._jsc.hadoopConfiguration()
    fits = (
        not table["partitionColumns"]
        and is_plain(schema, table["configuration"], features)
        and session.conf.get("spark.sql.parquet.compression.codec", "snappy") == "snappy"
        and hadoop.get("parquet.crypto.factory.class") is None
    )
    return schema if fits else None


def write_data_file(
    rows: pa.Table,
    table: Location,
    schema: Mapping[str, Any],
    spark_version: str,
    *,
    changes_data: bool = True,
) -> dict[str, Any]:
    """Write rows to a new data file of a table, and return the action that adds it. `schema`: the columns of
    the table. `changes_data`: whether the rows are new."""
    import pyarrow.parquet as pq

    # As Spark does: with it, older versions of Spark read dates before 1900 as they are.
    marks = {
        "org.apache.spark.version": spark_version,
        "org.apache.spark.sql.parquet.row.metadata": json.dumps(schema),
    }
    data, statistics = io.BytesIO(), build_statistics(rows, schema)
    # Statistics within the file leave NaN out, the largest value for Spark, which would then skip its rows.
    # Those of Delta are enough for a small file.
    options: dict[str, Any] = {"compression": "snappy", "store_schema": False, "write_statistics": False}
    pq.write_table(rows.replace_schema_metadata(marks), data, **options)
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    try:
        (table / name).add(data.getvalue())
    except FileNotFoundError as error:
        raise no_log(table) from error
    return {
        "path": name,
        "partitionValues": {},
        "size": data.tell(),
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": changes_data,
        "stats": statistics,
    }


def build_statistics(rows: pa.Table, schema: Mapping[str, Any]) -> str:
    """Delta's statistics of a file with these rows, as JSON."""
    lowest, highest, nulls = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for kind, path, values in _columns(schema["fields"], rows):
        _put(nulls, path, str(values.null_count))
        found = _range(kind, values) if isinstance(kind, str) else None
        if found is not None:
            _put(lowest, path, found[0])
            _put(highest, path, found[1])
    bounds = f'"minValues":{_json(lowest)},"maxValues":{_json(highest)}'
    return f'{{"numRecords":{rows.num_rows},{bounds},"nullCount":{_json(nulls)}}}'


def _put(values: dict[str, Any], path: Sequence[str], text: str) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = text


def _json(values: Any) -> str:
    """A JSON object whose values are texts: Python's `json` writes no exact decimals."""
    if isinstance(values, str):
        return values
    return "{" + ",".join(f"{json.dumps(name)}:{_json(value)}" for name, value in values.items()) + "}"


def _columns(
    fields: Sequence[Mapping[str, Any]], rows: pa.Table | pa.ChunkedArray, path: tuple[str, ...] = ()
) -> Iterator[tuple[Any, tuple[str, ...], pa.ChunkedArray]]:
    """The columns with their types and names; those of structs one by one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for one in fields:
        name = one["name"]
        values = rows.column(name) if isinstance(rows, pa.Table) else pc.struct_field(rows, [name])
        inner = (*path, one["name"])
        if isinstance(one["type"], dict) and one["type"]["type"] == "struct":
            yield from _columns(one["type"]["fields"], values, inner)
        else:
            yield one["type"], inner, values


def _range(kind: str, values: pa.ChunkedArray) -> tuple[str, str] | None:
    """The minimum and maximum of a column as JSON; ``None`` where Delta has none, or JSON cannot tell."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (kind in _RANGED or kind.startswith("decimal(")) or values.null_count == len(values):
        return None
    if kind in ("float", "double") and not pc.all(pc.is_finite(values)).as_py():
        return None
    if kind in ("date", "timestamp", "timestamp_ntz"):
        values = values.cast(pa.int32() if kind == "date" else pa.int64())
    found = pc.min_max(values)
    try:
        low, high = found["min"].as_py(), found["max"].as_py()
    except UnicodeDecodeError:  # Spark's strings can hold any bytes
        return None
    match kind:
        case "string":
            return _string_range(low, high)
        case "date":
            return (_date_text(low), _date_text(high)) if low >= _FIRST_DAY and high <= _LAST_DAY else None
        case "timestamp" | "timestamp_ntz":
            if low // _DAY_US < _FIRST_DAY or high // _DAY_US > _LAST_DAY:
                return None
            zone = "Z" if kind == "timestamp" else ""
            return _time_text(low, zone), _time_text(high, zone)
        case "float" | "double":
            return found["min"].cast(pa.string()).as_py(), found["max"].cast(pa.string()).as_py()
        case _:
            return _number(low), _number(high)


def _number(value: int | Decimal) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _string_range(low: str, high: str) -> tuple[str, str] | None:
    if _LAST_CHARACTER in high:
        return None
    # A prefix with the last of all characters behind it is above all strings that begin with it.
    upper = high if len(high) <= _PREFIX else high[:_PREFIX] + _LAST_CHARACTER
    return json.dumps(low[:_PREFIX], ensure_ascii=False), json.dumps(upper, ensure_ascii=False)


def _date_text(day: int) -> str:
    return f'"{date.fromordinal(day + _EPOCH).isoformat()}"'


def _time_text(us: int, zone: str) -> str:
    """A time in milliseconds, rounded down, as Delta has it."""
    at = datetime(1970, 1, 1) + timedelta(microseconds=us)
    return f'"{at.isoformat(timespec="milliseconds")}{zone}"'


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
    operation = delta.DeltaOperations.Optimize(nil, nil, False, none, False)
    version = commit_actions(session, transaction, scala_list(jvm, actions), operation)
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
