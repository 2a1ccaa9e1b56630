"""The Python data source with which Spark reads Kinesis; PySpark is imported here, and only when it runs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from headrace.errors import OptionUnsupportedError
from headrace.sources.kinesis.connection import StreamConnection, carried
from headrace.sources.kinesis.planner import Planner
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition
from headrace.sources.kinesis.spans import FORMAT, LIMIT, RANGE, SCHEMA, STARTS, Row, read_span

if TYPE_CHECKING:
    import pyarrow as pa

_FOLDER: Final = "headrace-kinesis-"
_CACHE_BYTES: Final = 256 << 20
_ROWS: Final = 5_000
"""Rows of one Arrow batch."""


class Span(InputPartition):  # type: ignore[misc]
    """What one task reads: the records of a shard between two positions."""

    def __init__(self, shard: int, start: ShardPosition, end: ShardPosition, cached: str | None) -> None:
        self.shard, self.start, self.end = shard, start, end
        self.cached = cached  # the file of the rows that the plan has read, if it is on this machine


class _SpanReader:
    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        self.connection = StreamConnection.from_options(options)
        self.schema = schema

    def read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        """The rows of a range: those that the plan has kept, else those of the stream."""
        with carried():
            yield from _load(partition) or self._read(partition)

    def _read(self, partition: Span) -> Iterator[pa.RecordBatch]:
        client = self.connection.open()
        rows: list[Row] = []
        for row in read_span(client, self.connection, partition.shard, partition.start, partition.end):
            rows.append(row)
            if len(rows) == _ROWS:
                yield to_batch(rows, self.schema)
                rows = []
        if rows:
            yield to_batch(rows, self.schema)


class BatchReader(_SpanReader, DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        super().__init__(options, schema)
        self._range: list[Any] = json.loads({k.lower(): v for k, v in options.items()}[RANGE.lower()])

    def partitions(self) -> Sequence[InputPartition]:
        return [
            Span(one["shard"], _with_skip(one["start"]), _with_skip(one["end"]), None) for one in self._range
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return super().read(partition) if isinstance(partition, Span) else iter(())


def _with_skip(value: Mapping[str, Any]) -> ShardPosition:
    from dataclasses import replace

    return replace(ShardPosition.from_json(value), skip=value.get("skip", 0))


class StreamReader(_SpanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str], schema: Any) -> None:
        super().__init__(options, schema)
        lowered = {name.lower(): value for name, value in options.items()}
        self._limit = int(lowered.get(LIMIT.lower(), 1 << 62))
        self._starts = lowered.get(STARTS.lower(), "earliest")
        self._cache = RowCache(schema)
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.connection, self._cache)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """The start of a stateful query; that of other flows is in their checkpoints.

        Spark calls this again if the first batch is repeated. The batch then fails unless it finds as many
        records as it did before.
        """
        with carried():
            return start_again(self.planner.roots(), self.connection.stream, self._starts).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        with carried():
            self.planner.end_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = KinesisPosition.from_json(start)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with carried():
            end = self.planner.plan(begin, rows)
        return start if end is begin else end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = KinesisPosition.from_json(start), KinesisPosition.from_json(end)
        return [
            Span(shard, first, last, self._cache.find(shard, first, last))
            for shard, first, last in until.since(begin)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        self._cache.forget(KinesisPosition.from_json(end))

    def stop(self) -> None:
        self._cache.close()


class KinesisStreams(DataSource):  # type: ignore[misc]
    """Streams of Kinesis."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> BatchReader:
        return BatchReader(self.options, schema)

    def streamReader(self, schema: Any) -> StreamReader:
        return StreamReader(self.options, schema)


def start_again(roots: Sequence[int], stream: str, starts: str) -> KinesisPosition:
    if starts == "latest":
        raise OptionUnsupportedError(
            f"a stateful query cannot start at the end of the stream `{stream}`",
            facts=("if its first batch is repeated, it would start at another record",),
            remedies=("name a time:   read_kinesis(.., starting_timestamp=..)",),
            params={"option": "starting_position", "value": "latest"},
        )
    since_ms = int(starts) if starts.isdigit() else None
    return KinesisPosition(stream, dict.fromkeys(roots, ShardPosition(since_ms=since_ms)))


def to_batch(rows: Sequence[Row], schema: Any) -> pa.RecordBatch:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = list(zip(*rows, strict=True))
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(column, one.type) for column, one in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


class RowCache:
    """Files with the rows that plans have read, for tasks on the same machine. Each process has a folder."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._folder: Path | None = None
        self._files: dict[tuple[int, int, int], Path] = {}

    def put(self, shard: int, start: ShardPosition, end: ShardPosition, rows: Sequence[Row]) -> None:
        import pyarrow as pa

        held = sum(file.stat().st_size for file in self._files.values())
        if held + sum(len(row.value) for row in rows) > _CACHE_BYTES:
            return
        try:
            if self._folder is None:
                _remove_left()
                self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
            file = self._folder / f"{shard}-{start.number}-{end.number}.arrow"
            with pa.OSFile(str(file), "wb") as sink:
                batches = [to_batch(rows[at : at + _ROWS], self._schema) for at in range(0, len(rows), _ROWS)]
                with pa.ipc.new_file(sink, batches[0].schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
        except OSError:
            return  # the disk is full: the batch reads the stream again
        self._files[shard, start.number, end.number] = file

    def find(self, shard: int, start: ShardPosition, end: ShardPosition) -> str | None:
        file = self._files.get((shard, start.number, end.number))
        return None if file is None else str(file)

    def forget(self, until: KinesisPosition) -> None:
        """Remove the rows that a finished batch has read."""
        for key, file in list(self._files.items()):
            shard, _, end = key
            if shard not in until.shards or end <= until.shards[shard].number:
                file.unlink(missing_ok=True)
                del self._files[key]

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._files = None, {}


def _load(partition: Span) -> Iterator[pa.RecordBatch] | None:
    """The rows that a plan has kept; ``None`` if this machine has no such file, or it is damaged."""
    import pyarrow as pa

    if partition.cached is None:
        return None
    try:
        with pa.OSFile(partition.cached, "rb") as source:
            table = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid):
        return None
    end = partition.end
    if table.num_rows != end.number - partition.start.number:
        return None
    last = table.slice(table.num_rows - 1).select(["shard", "record_number", "sequence_number"])
    is_it = [column[0].as_py() for column in last] == [partition.shard, end.number - 1, end.sequence]
    return iter(table.to_batches()) if is_it else None


def _remove_left() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        number = folder.name.removeprefix(_FOLDER).partition("-")[0]
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (PermissionError, ValueError):
            continue
