"""The sources of a test: Delta tables and folders that get the test's rows, batch by batch.

A topic becomes a Delta table with Kafka's columns, so everything after the reader is as in production: real
streams with real checkpoints, which read the rows that each batch has added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from headrace.errors import RowsMissingError, SourceLocation, UnusedTestInputError, did_you_mean
from headrace.model.folders import FileFolder
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.modes import TableAccess
from headrace.plan.stored import load_stored
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, T
from headrace.sources.delta.facts import DeltaPosition
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.reader import kafka_columns
from headrace.sources.kafka.subscription import Subscription, matching, shown
from headrace.sources.registry import kind_for
from headrace.sources.requests import ReadRequest, SourceRead
from headrace.storage.arrow_rows import empty_table, read_stream, select
from headrace.storage.layout import Storage, locate
from headrace.testing.rows import (
    Batches,
    FileFormat,
    file_format,
    infer_schema,
    kafka_rows,
    kafka_schema,
    table_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


_TOPICS = ("topic", "stream")
"""What a table with the columns of a topic stands in for."""

_OF_STREAM = {
    "stream": "topic",
    "shard": "partition",
    "record_number": "offset",
    "shard_id": "format_string('shardId-%012d', partition)",
    "sequence_number": "CAST(offset AS STRING)",
    "sub_sequence_number": "0L",
    "partition_key": "coalesce(CAST(key AS STRING), '')",
    "approximate_arrival_timestamp": "timestamp",
    "value": "value",
}
"""The columns of a stream of Kinesis, of those of a topic."""


@dataclass(eq=False)
class Source:
    """One source of the pipeline, with the rows that it has so far. `_add`: adds a batch by its number."""

    name: str
    given: Batches
    path: Path
    _add: Callable[[Any, int], None]
    _fed: int = 0

    def feed(self, batches: int) -> None:
        while self._fed < min(batches, len(self.given.batches)):
            batch = self.given.batches[self._fed]
            if batch:
                self._add(batch, self._fed)
            self._fed += 1


class Topic(Source):
    """A topic, as a Delta table with Kafka's columns."""

    def __init__(self, name: str, given: Batches, path: Path) -> None:
        offsets = {} if _make_table(path, kafka_schema()) else _next_offsets(path)

        def add(batch: Any, number: int) -> None:
            _append(path, kafka_rows(name, batch, number, offsets))

        super().__init__(name, given, path, add)


def open_table(name: str, given: Batches, path: Path, schema: pa.Schema) -> Source:
    """A Delta table that is not a dataset of the pipeline."""
    _make_table(path, schema)
    return Source(
        name, given, path, lambda batch, number: _append(path, table_rows(name, batch, number, schema))
    )


def open_folder(name: str, given: Batches, path: Path, format: FileFormat) -> Source:
    path.mkdir(parents=True, exist_ok=True)
    first = sum(1 for _ in path.iterdir())

    def add(batch: Any, number: int) -> None:
        file = path / f"batch-{first + number:05d}{format.suffix}"
        file.write_bytes(format.encode(name, batch, number))

    folder = Source(name, given, path, add)
    # A reader without a schema looks at the files as soon as it is made.
    folder.feed(1)
    return folder


@dataclass(eq=False)
class FakeSources:
    """Replaces all sources of a pipeline, and records which of them it reads."""

    _folder: Path
    _given: Mapping[str, Batches]
    _settings: ProjectSettings
    _real: Storage  # the storage of the pipeline, whose tables give the columns of sources
    _elsewhere: Callable[[TableName], bool]  # registers a table of the session's catalog
    _sources: dict[str, Source] = field(default_factory=dict)
    _missing: dict[str, SourceLocation] = field(default_factory=dict)
    _fed: int = 0

    @property
    def batches(self) -> int:
        return max((len(given.batches) for given in self._given.values()), default=0)

    def feed(self, batches: int) -> None:
        """Add the rows of every source up to a number of batches; a source gets them once it is read."""
        self._fed = batches
        for source in self._sources.values():
            source.feed(batches)

    def check(self) -> None:
        """Compare the rows of the test with the sources of the pipeline."""
        known = [*self._sources, *self._missing]
        reads = (f"sources of the pipeline: {', '.join(known) or 'none'}",)
        for name in self._given:
            if name not in self._sources:
                raise UnusedTestInputError(
                    f"the test gives rows for `{name}`, which the pipeline does not read",
                    facts=reads,
                    remedies=did_you_mean(name, known),
                    params={"source": name, "known": known},
                )
        for name, location in self._missing.items():
            raise self._without_rows(name, location, reads)

    def read(self, read: SourceRead) -> DataFrame | None:
        match kind_for(read.request.format).reader.stand_in:
            case "topic":
                return self._read_kafka(read)
            case "stream":
                return self._read_kinesis(read)
            case "table":
                return self._read_delta(read) if read.paths else None
            case "folder":
                return self._read_files(read) if read.paths else None
            case other:
                assert_never(other)

    def read_again(self, read: SourceRead, ranges: Sequence[SourceRange]) -> DataFrame | None:
        """The rows of the test in the ranges of a batch, in place of a source of a query."""
        stand_in = kind_for(read.request.format).reader.stand_in
        if stand_in not in _TOPICS or not read.request.streaming:
            return self.read(read)
        batch = replace(read, request=replace(read.request, streaming=False))
        reads = self._read_kafka if stand_in == "topic" else self._read_kinesis
        return reads(batch, self.as_topics(ranges))

    def as_topics(self, ranges: Sequence[SourceRange]) -> Sequence[SourceRange]:
        """The ranges of a batch; a range of a table that replaces a topic becomes offsets of the topic."""
        topics = {locate(one.path): one for one in self._sources.values() if isinstance(one, Topic)}
        return [
            _as_topic(topics[path], one)
            if isinstance(one.until, DeltaPosition) and (path := locate(one.identity["path"])) in topics
            else one
            for one in ranges
        ]

    def find_table(self, access: TableAccess) -> None:
        """Create a table that no file of the pipeline declares."""
        names = {str(self._settings.table_name(text)).casefold(): text for text in self._given}
        name = names.get(str(access.name).casefold())
        path = self._settings.storage.table(access.name).local_path
        if name is None:
            if not load_stored(self._settings.storage, access.name) and not self._elsewhere(access.name):
                known = (f"the test gives rows for: {', '.join(self._given) or 'nothing'}",)
                raise self._without_rows(access.name.short, access.location, known)
        elif name not in self._sources:
            stored = load_stored(self._real, access.name)
            schema = self._schema(name, None if stored is None else stored.schema)
            self._add(open_table(name, self._given[name], path, schema))

    def _read_kafka(self, read: SourceRead, ranges: Sequence[SourceRange] | None = None) -> DataFrame:
        subscription = Subscription.of(read.request.options)
        topics = subscription.topics
        if subscription.pattern is not None:
            # A pattern that no name of the test matches has no rows, as a topic without a name of its own.
            topics = matching(subscription.pattern, self._given) or (shown(subscription.pattern),)
        columns = [column.split()[0] for column in kafka_columns(read.request).split(", ")[:7]]
        if (read.request.value("includeHeaders") or "").lower() == "true":
            columns.append("headers")
        frame: DataFrame | None = None
        for topic in topics:
            records = self._reader(read, self._topic(topic, read).path)
            if ranges is not None:
                records = records.where(_within(topic, ranges))
            records = records.select(columns)
            if assigned := subscription.partitions.get(topic):
                records = records.where(records["partition"].isin([*assigned]))
            frame = records if frame is None else frame.unionAll(records)
        assert frame is not None
        return frame

    def _read_kinesis(self, read: SourceRead, ranges: Sequence[SourceRange] | None = None) -> DataFrame:
        """A stream of Kinesis: a topic with other columns."""
        name = read.request.value("stream") or ""
        records = self._reader(read, self._topic(name, read).path)
        if ranges is not None:
            records = records.where(_within(name, ranges))
        return records.select(*(F.expr(text).alias(column) for column, text in _OF_STREAM.items()))

    def _topic(self, name: str, read: SourceRead) -> Topic:
        known = self._sources.get(name)
        if isinstance(known, Topic):
            return known
        given = self._given.get(name)
        if given is None:
            # All missing sources are reported together, when the whole pipeline is known.
            self._missing.setdefault(name, read.location)
        topic = Topic(name, given or Batches(()), self._folder / f"kafka-{name}")
        if given is not None:
            self._add(topic)
        return topic

    def folder(
        self,
        folder: FileFolder,
        format: str,
        schema: Any,
        options: Mapping[str, str],
        location: SourceLocation,
    ) -> FileFolder:
        """The folder that `hr.read_files` reads in place of the pipeline's."""
        columns = () if schema is None else tuple(schema.fieldNames())
        request = ReadRequest(streaming=True, format=format, options=options, columns=columns, schema=schema)
        return replace(
            folder, path=str(self._folder_of(folder.path, request, location)), recursive=False, glob=None
        )

    def _read_delta(self, read: SourceRead) -> DataFrame:
        name = self._name_of(read.paths[0], read.location)
        if name not in self._sources:
            from deltalake import DeltaTable

            real = read.paths[0].removeprefix("file:")
            known = DeltaTable(real).schema().to_json() if DeltaTable.is_deltatable(real) else None
            schema = self._schema(name, None if known is None else json.loads(known))
            self._add(open_table(name, self._given[name], self._path_for("delta"), schema))
        return self._reader(read, self._sources[name].path)

    def _read_files(self, read: SourceRead) -> DataFrame | None:
        if all(Path(path).is_relative_to(self._folder) for path in read.paths):
            # A folder that has been staged already.
            return None
        located = [self._folder_of(path, read.request, read.location) for path in read.paths]
        return self._reader(read, *located)

    def _folder_of(self, path: str, request: ReadRequest, location: SourceLocation) -> Path:
        name = self._name_of(path, location)
        if name not in self._sources:
            given = self._given[name]
            format = file_format(request, given, location)
            self._add(open_folder(name, given, self._path_for("files"), format))
        return self._sources[name].path

    def _reader(self, read: SourceRead, *paths: Path) -> DataFrame:
        request = read.request
        if kind_for(request.format).reader.stand_in in _TOPICS:
            # A topic is a table here.
            options = {key: text for key, text in request.options.items() if key == LOCATION_OPTION}
            format = "delta"
            if request.streaming:
                # All its versions are there. For a snapshot, Delta would compute the table's state first.
                options["startingVersion"] = "0"
        else:
            options = {key: text for key, text in request.options.items() if key.lower() != "path"}
            format = request.format
        reader: Any = read.session.readStream if request.streaming else read.session.read
        reader = reader.format(format).options(**options)
        if request.schema is not None:
            reader = reader.schema(request.schema)
        frame: DataFrame = reader.load(str(paths[0]) if len(paths) == 1 else [*map(str, paths)])
        return frame

    def _name_of(self, path: str, location: SourceLocation) -> str:
        """The name that the test has for a folder, which can differ from the name in the query."""
        wanted = self._resolved(path)
        for name in self._given:
            if name == path or self._resolved(name) == wanted:
                return name
        facts = (f"the test gives rows for: {', '.join(self._given) or 'nothing'}",)
        raise self._without_rows(path, location, facts)

    def _resolved(self, path: str) -> Path:
        """The path of a table or a folder, which a test can name as the query does."""
        mapped = self._settings.tables.find(tuple(path.split(".")))
        path = (mapped and mapped.path) or self._settings.paths.map(path)
        return (self._settings.data_folder / path.removeprefix("file://").removeprefix("file:")).resolve()

    def _path_for(self, kind: str) -> Path:
        count = sum(1 for source in self._sources.values() if not isinstance(source, Topic))
        return self._folder / f"{kind}-{count:03d}"

    def _add(self, source: Source) -> None:
        self._sources[source.name] = source
        source.feed(self._fed)

    def _schema(self, name: str, known: Mapping[str, Any] | None) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        given = self._given[name]
        if given.schema is not None:
            struct = T.StructType.fromDDL(given.schema) if isinstance(given.schema, str) else given.schema
        elif known is not None:
            struct = T.StructType.fromJson(dict(known))
        else:
            return infer_schema(name, given)
        return to_arrow_schema(struct)

    @staticmethod
    def _without_rows(name: str, location: SourceLocation, facts: tuple[str, ...]) -> RowsMissingError:
        return RowsMissingError(
            f"the pipeline reads `{name}`, but the test gives no rows for it",
            location=location,
            facts=facts,
            remedies=(f'add rows, or an empty list for a source without rows: {{"{name}": []}}',),
            params={"source": name},
        )


def _make_table(path: Path, schema: pa.Schema) -> bool:
    """Create a table; false if it exists."""
    from deltalake import DeltaTable, write_deltalake

    if DeltaTable.is_deltatable(str(path)):
        return False
    path.mkdir(parents=True, exist_ok=True)
    write_deltalake(path, empty_table(schema))
    return True


def _append(path: Path, rows: pa.Table) -> None:
    from deltalake import write_deltalake

    write_deltalake(path, rows, mode="append")


def _within(topic: str, ranges: Sequence[SourceRange]) -> Column:
    parts = [
        (F.col("partition") == partition) & (F.col("offset") >= first) & (F.col("offset") < end)
        for one in ranges
        if isinstance(one.until, KafkaOffsets)
        for name, partition, first, end in one.until.since(one.start)
        if name == topic
    ]
    return reduce(or_, parts, F.lit(False))


def _as_topic(topic: Topic, one: SourceRange) -> SourceRange:
    assert isinstance(one.until, DeltaPosition)
    start = one.start if isinstance(one.start, DeltaPosition) else None
    before = -1 if start is None or start.is_snapshot else start.last_version
    # Version 0 has no rows.
    first, last = _next_offsets(topic.path, max(0, before)), _next_offsets(topic.path, one.until.last_version)
    return replace(
        one,
        kind="kafka",
        start=KafkaOffsets({topic.name: {partition: first.get(partition, 0) for partition in last}}),
        until=KafkaOffsets({topic.name: last}),
    )


def _next_offsets(path: Path, version: int | None = None) -> dict[int, int]:
    """The next offset of each partition; a kept storage has records of earlier tests."""
    from deltalake import DeltaTable

    table = DeltaTable(path, version=version)
    query = 'SELECT partition, max("offset") + 1 AS next FROM t GROUP BY partition'
    rows = read_stream(select(table, query))
    return dict(zip(rows["partition"].to_pylist(), rows["next"].to_pylist(), strict=True))
