"""Arrow tables of Python rows, and of the answers of `deltalake`, without the import of pandas.

To find out whether a list is a Series, PyArrow imports pandas as soon as it makes an array of a list. This
takes half a second in each process.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import arro3.core as arro3
    import pyarrow as pa
    from deltalake import DeltaTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "double": "d", "float": "f"}
"""Python's codes of the types whose values are stored one after another."""


def build_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The table that ``pa.Table.from_pylist`` returns."""
    import pyarrow as pa

    columns = [_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def empty_table(schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([], schema=schema)


def select(delta: DeltaTable, query: str, settings: Mapping[str, str] = MappingProxyType({})) -> arro3.Table:
    """The result of a SQL query over a Delta table, which is ``t`` in it.

    Args:
        settings: Of DataFusion, by their names.
    """
    from deltalake import QueryBuilder

    found = QueryBuilder(dict(settings)).register("t", delta).execute(query)
    if delta.table_uri.startswith("file:"):
        rows: arro3.Table = found.read_all()
        return rows
    # `read_all` of this reader holds the interpreter's lock while it waits for the store. The heartbeats of
    # leases, and all other threads, would wait with it. PyArrow gives the lock back.
    from arro3.core import Table

    return Table.from_arrow(read_stream(found))


def read_stream(stream: Any) -> pa.Table:
    """The table of an object with Arrow's C stream interface."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(stream).read_all()


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        buffers, children = _buffers(values, kind)
    except (TypeError, ValueError, OverflowError, AttributeError):
        # A type that is not built here, or a value that does not fit: PyArrow has a message for it.
        return pa.array(values, type=kind)
    validity = [pa.py_buffer(_bits([one is not None for one in values])) if None in values else None]
    held = validity + [pa.py_buffer(one) for one in buffers]
    return pa.Array.from_buffers(kind, len(values), held, children=children)


def _buffers(values: list[Any], kind: pa.DataType) -> tuple[list[Any], list[pa.Array] | None]:
    """The buffers of an array after the validity, and the arrays of its parts."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        rows = [{} if one is None else one for one in values]
        return [], [_array([row.get(field.name) for row in rows], field.type) for field in kind]
    if pa.types.is_list(kind):
        lists = [() if one is None else one for one in values]
        flat = [item for one in lists for item in one]
        return [_offsets(lists)], [_array(flat, kind.value_type)]
    if pa.types.is_string(kind):
        texts = [b"" if one is None else str.encode(one) for one in values]
        return [_offsets(texts), b"".join(texts)], None
    if pa.types.is_binary(kind):
        parts = [b"" if one is None else one for one in values]
        return [_offsets(parts), b"".join(parts)], None
    if pa.types.is_boolean(kind):
        return [_bits([_is_true(one) for one in values])], None
    if kind == pa.timestamp("us", tz="UTC"):
        return [array.array("q", [0 if one is None else _microseconds(one) for one in values])], None
    if (code := _CODES.get(str(kind))) is not None:
        return [array.array(code, [0 if one is None else one for one in values])], None
    raise TypeError(f"{kind} is not built here")


def _bits(values: list[bool]) -> bytes:
    """Arrow's form of truth values: a bit for each, the lowest first."""
    number = sum(1 << place for place, one in enumerate(values) if one)
    return number.to_bytes((len(values) + 7) // 8, "little")


def _is_true(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise TypeError(f"{value!r} is not a truth value")


def _offsets(parts: Sequence[Any]) -> array.array[int]:
    found = array.array("i", [0])
    for one in parts:
        found.append(found[-1] + len(one))
    return found


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND
