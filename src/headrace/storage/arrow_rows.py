"""Arrow tables of Python rows, and of the answers of `deltalake`, without the import of pandas."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import arro3.core as arro3
    import pyarrow as pa
    from deltalake import DeltaTable


def build_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The table that ``pa.Table.from_pylist`` returns for rows without bytes.

    To find out whether a list is a Series, PyArrow imports pandas as soon as it makes an array of a list,
    which takes half a second. Its parser of JSON does not.
    """
    from pyarrow import json as parser

    if not rows:
        return empty_table(schema)
    lines = "\n".join(json.dumps(row, default=datetime.isoformat) for row in rows).encode()
    return parser.read_json(
        io.BytesIO(lines),
        # A row must not be longer than a block.
        parser.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parser.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


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
