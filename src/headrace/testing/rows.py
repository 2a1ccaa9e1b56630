"""Converts the rows of a test to the form of a topic, a table or a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.errors import FeatureUnsupportedError, RowsInvalidError, SourceLocation
from headrace.model.texts import json_text
from headrace.runtime.lazy_pyspark import StructType, T
from headrace.sources.requests import ReadRequest

if TYPE_CHECKING:
    import pyarrow as pa


Batch = Sequence[Any]
Given = Sequence[Batch]


@dataclass(frozen=True)
class Record:
    """A Kafka record, for a test that needs more than the value.

    Args:
        value: A mapping or a list becomes JSON; text and bytes are the raw value; ``None`` is a record
            without a value.
        key: Its key.
        timestamp: Its timestamp; by default the time of the test. Without a time zone it is UTC.
        partition: Its partition; the first by default.
        headers: Its headers.

    Example:
        >>> Record({"id": 1}, key="ada", partition=2)
        Record(value={'id': 1}, key='ada', timestamp=None, partition=2, headers=())
    """

    value: Any
    key: str | bytes | None = None
    timestamp: datetime | None = None
    partition: int = 0
    headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] = ()


@dataclass(frozen=True)
class Batches:
    """The rows of a Delta table or of files, batch by batch, with their columns as DDL or as a
    ``StructType``."""

    batches: Given
    schema: str | StructType | None = None


def invalid(
    source: str, problem: str, *, batch: int, row: int | None = None, remedies: tuple[str, ...] = ()
) -> RowsInvalidError:
    """The error for a row that does not match its source; batches and rows are counted from 1."""
    place = f"batch {batch + 1}" + ("" if row is None else f", row {row + 1}")
    return RowsInvalidError(
        f"the rows of `{source}`, {place}: {problem}",
        remedies=remedies,
        params={"source": source, "batch": batch + 1, "row": None if row is None else row + 1},
    )


def checked_sources(rows: Any) -> dict[str, Batches]:
    if not isinstance(rows, Mapping) or not all(isinstance(name, str) for name in rows):
        raise RowsInvalidError(
            f"the rows of a test must be a dict of sources, not a {type(rows).__name__}",
            remedies=('write {"orders": [[row, row], [row]]}: two batches of one source',),
        )
    return {name: checked(name, given) for name, given in rows.items()}


def checked(source: str, given: Any) -> Batches:
    batches = given if isinstance(given, Batches) else Batches(given)
    if not _is_list(batches.batches):
        raise RowsInvalidError(
            f"the rows of `{source}` must be a list of batches",
            remedies=('write {"' + source + '": [[row, row], [row]]}: two batches',),
            params={"source": source},
        )
    for number, batch in enumerate(batches.batches):
        if not _is_list(batch):
            remedy = 'one batch is {"' + source + '": [[row, row]]}'
            raise invalid(source, "a batch must be a list of rows", batch=number, remedies=(remedy,))
    return batches


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def kafka_schema() -> pa.Schema:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(header)),
        ]
    )


def kafka_rows(topic: str, batch: Batch, number: int, offsets: dict[int, int]) -> pa.Table:
    """A batch as the topic's next records; moves ``offsets``, the next offset of each partition."""
    import pyarrow as pa

    rows = []
    for place, row in enumerate(batch):
        record = row if isinstance(row, Record) else Record(row)
        try:
            if row is None:
                raise ValueError("write Record(None) for a record without a value")
            value, key = _bytes(record.value), _bytes(record.key)
            given = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
            headers = [{"key": str(name), "value": _bytes(one)} for name, one in given]
            if not isinstance(record.partition, int) or record.partition < 0:
                raise ValueError(f"the partition {record.partition!r} is not a number of at least 0")
            if not isinstance(record.timestamp, datetime | None):
                raise ValueError(f"the timestamp is a {type(record.timestamp).__name__}, not a datetime")
        except (TypeError, ValueError) as error:
            raise invalid(topic, str(error), batch=number, row=place) from error
        offset = offsets.get(record.partition, 0)
        offsets[record.partition] = offset + 1
        moment = record.timestamp or datetime.now(UTC)
        at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        rows.append(
            {
                "key": key,
                "value": value,
                "topic": topic,
                "partition": record.partition,
                "offset": offset,
                # Kafka's own timestamps are whole milliseconds.
                "timestamp": at.replace(microsecond=at.microsecond // 1000 * 1000),
                "timestampType": 0,
                # Spark gives null for a record without headers.
                "headers": headers or None,
            }
        )
    return pa.Table.from_pylist(rows, schema=kafka_schema())


def _bytes(value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case bytes() | bytearray():
            return bytes(value)
        case str():
            return value.encode()
        case _:
            return json_text(value).encode()


def infer_schema(source: str, given: Batches) -> pa.Schema:
    import pyarrow as pa

    rows = [row for batch in given.batches for row in batch]
    for number, batch in enumerate(given.batches):
        for place, row in enumerate(batch):
            if not isinstance(row, Mapping):
                raise invalid(source, f"a row is a dict, not a {type(row).__name__}", batch=number, row=place)
    names = dict.fromkeys(str(name) for row in rows for name in row)
    if not names:
        raise _without_schema(source, f"the columns of `{source}` are not known: it has no rows")
    try:
        found = pa.Table.from_pylist([{name: _aware(row.get(name)) for name in names} for row in rows]).schema
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _without_schema(source, f"the rows of `{source}` have different types: {error}") from error
    untyped = [field.name for field in found if pa.types.is_null(field.type)]
    if untyped:
        text = f"the type of the column `{untyped[0]}` of `{source}` is not known: it is None in every row"
        raise _without_schema(source, text, columns=untyped)
    return found


def _without_schema(source: str, text: str, **params: Any) -> RowsInvalidError:
    return RowsInvalidError(
        text,
        remedies=('give a schema: Batches(rows, schema="id LONG, name STRING")',),
        params={"source": source, **params},
    )


def table_rows(source: str, batch: Batch, number: int, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    known = set(schema.names)
    for place, row in enumerate(batch):
        if not isinstance(row, Mapping):
            raise invalid(source, f"a row is a dict, not a {type(row).__name__}", batch=number, row=place)
        unknown = [str(name) for name in row if name not in known]
        if unknown:
            problem = f"the source has no column `{unknown[0]}`; its columns: {', '.join(schema.names)}"
            raise invalid(source, problem, batch=number, row=place)
    columns = [_column(source, batch, number, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(source: str, batch: Batch, number: int, field: pa.Field) -> pa.Array:
    import pyarrow as pa

    values = [_utc(row.get(field.name)) for row in batch]
    found = []
    for place, value in enumerate(values):
        try:
            one = pa.array([value], type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            problem = f"`{field.name}` has the type {field.type}, which does not allow {value!r} ({error})"
            raise invalid(source, problem, batch=number, row=place) from error
        if _is_truncated(value, one[0].as_py()):
            problem = f"`{field.name}` has the type {field.type}, which would truncate {value!r}"
            raise invalid(source, problem, batch=number, row=place)
        found.append(one)
    return pa.concat_arrays(found) if found else pa.array([], type=field.type)


def _is_truncated(value: Any, kept: Any) -> bool:
    """Whether a number has lost its fraction: Arrow cuts floats that become integers."""
    if isinstance(value, float) and isinstance(kept, int):
        return value != kept
    if isinstance(value, Mapping) and isinstance(kept, Mapping):
        return any(_is_truncated(value.get(key), item) for key, item in kept.items())
    if isinstance(value, list | tuple) and isinstance(kept, list):
        return any(_is_truncated(*pair) for pair in zip(value, kept, strict=False))
    return False


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _aware(value: Any) -> Any:
    """A datetime without a zone is a TIMESTAMP in UTC, unless a schema gives another type."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else _utc(value)


@dataclass(frozen=True)
class FileFormat:
    suffix: str  # the end of the file's name
    # Makes the file's bytes of a source's name, a batch and its number.
    encode: Callable[[str, Batch, int], bytes]


def file_format(request: ReadRequest, given: Batches, location: SourceLocation) -> FileFormat:
    match request.format:
        case "json":
            return FileFormat(".json", _lines(json_text))
        case "text":
            return FileFormat(".txt", _lines(_text_line))
        case "csv":
            return FileFormat(".csv", _csv(request))
        case "parquet" | "orc":
            return FileFormat(f".{request.format}", _columnar(request, given))
        case other:
            raise FeatureUnsupportedError(
                f"a test cannot give rows for files in the format `{other}` yet",
                location=location,
                remedies=["json, csv, text, parquet and orc can be given"],
                params={"format": other},
            )


def _lines(line_of: Callable[[Any], str]) -> Callable[[str, Batch, int], bytes]:
    """One line for each row; text and bytes are written unchanged, even if they are not a valid line."""

    def encode(source: str, batch: Batch, number: int) -> bytes:
        lines = []
        for place, row in enumerate(batch):
            try:
                lines.append(_raw(row) if isinstance(row, str | bytes) else line_of(row).encode())
            except TypeError as error:
                raise invalid(source, str(error), batch=number, row=place) from error
        return b"".join(line + b"\n" for line in lines)

    return encode


def _raw(row: str | bytes) -> bytes:
    return row if isinstance(row, bytes) else row.encode()


def _text_line(row: Any) -> str:
    if isinstance(row, Mapping) and list(row) == ["value"] and isinstance(row["value"], str):
        return row["value"]
    raise TypeError('a line of a text file is a str, or {"value": ..}')


def _csv(request: ReadRequest) -> Callable[[str, Batch, int], bytes]:
    separator = request.value("sep") or request.value("delimiter") or ","
    header = (request.value("header") or "false").lower() == "true"

    def encode(source: str, batch: Batch, number: int) -> bytes:
        named = (name for row in batch if isinstance(row, Mapping) for name in row)
        names = list(request.columns) or list(dict.fromkeys(named))
        out = io.StringIO()
        # Spark reads a quote within quotes behind a backslash.
        writer = csv.writer(out, delimiter=separator, doublequote=False, escapechar="\\", lineterminator="\n")
        if header:
            writer.writerow(names)
        for place, row in enumerate(batch):
            if isinstance(row, str | bytes):
                out.write(_raw(row).decode() + "\n")
                continue
            if not isinstance(row, Mapping):
                problem = f"a row is a dict or a line, not a {type(row).__name__}"
                raise invalid(source, problem, batch=number, row=place)
            unknown = [name for name in row if name not in names]
            if unknown:
                problem = f"there is no column `{unknown[0]}`; its columns: {', '.join(names)}"
                raise invalid(source, problem, batch=number, row=place)
            writer.writerow([_cell(row.get(name)) for name in names])
        return out.getvalue().encode()

    return encode


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = json_text(value)
    return value if isinstance(value, str) else text.strip('"')


def _columnar(request: ReadRequest, given: Batches) -> Callable[[str, Batch, int], bytes]:
    def encode(source: str, batch: Batch, number: int) -> bytes:
        rows = table_rows(source, batch, number, _file_schema(source, request, given))
        out = io.BytesIO()
        if request.format == "parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(rows, out)
        else:
            import pyarrow.orc

            pyarrow.orc.write_table(rows, out)
        return out.getvalue()

    return encode


def _file_schema(source: str, request: ReadRequest, given: Batches) -> pa.Schema:
    schema = given.schema if given.schema is not None else request.schema
    if schema is None:
        return infer_schema(source, given)
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(T.StructType.fromDDL(schema) if isinstance(schema, str) else schema)
