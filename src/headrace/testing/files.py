"""A test's rows as the files of a folder, in the format that the query reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import FeatureUnsupportedError, SourceLocation
from headrace.sources.requests import ReadRequest
from headrace.testing.rows import Batch, Batches, as_json, infer_schema, invalid, table_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class FileFormat:
    """How a batch becomes one file.

    Args:
        suffix: The end of the file's name.
        encode: Makes the file's bytes of a source's name, a batch and its number.
    """

    suffix: str
    encode: Callable[[str, Batch, int], bytes]


def file_format(request: ReadRequest, given: Batches, location: SourceLocation) -> FileFormat:
    """The format of the files that a query reads.

    Raises:
        FeatureUnsupportedError: Rows cannot be made files of this format.
    """
    match request.format:
        case "json":
            return FileFormat(".json", _lines(as_json))
        case "text":
            return FileFormat(".txt", _lines(_text))
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


def _text(row: Any) -> str:
    if isinstance(row, Mapping) and list(row) == ["value"] and isinstance(row["value"], str):
        return row["value"]
    raise TypeError('a line of a text file is a str, or {"value": ..}')


def _csv(request: ReadRequest) -> Callable[[str, Batch, int], bytes]:
    separator = request.value("sep") or request.value("delimiter") or ","
    header = (request.value("header") or "false").lower() == "true"

    def encode(source: str, batch: Batch, number: int) -> bytes:
        names = list(request.columns) or list(dict.fromkeys(name for row in batch for name in _fields(row)))
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


def _fields(row: Any) -> list[str]:
    return list(row) if isinstance(row, Mapping) else []


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = as_json(value)
    return value if isinstance(value, str) else text.strip('"')


def _columnar(request: ReadRequest, given: Batches) -> Callable[[str, Batch, int], bytes]:
    def encode(source: str, batch: Batch, number: int) -> bytes:
        rows = table_rows(source, batch, number, _schema(source, request, given))
        out = io.BytesIO()
        if request.format == "parquet":
            import pyarrow.parquet

            pyarrow.parquet.write_table(rows, out)
        else:
            import pyarrow.orc

            pyarrow.orc.write_table(rows, out)
        return out.getvalue()

    return encode


def _schema(source: str, request: ReadRequest, given: Batches) -> pa.Schema:
    schema = given.schema if given.schema is not None else request.schema
    if schema is None:
        return infer_schema(source, given)
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromDDL(schema) if isinstance(schema, str) else schema)
