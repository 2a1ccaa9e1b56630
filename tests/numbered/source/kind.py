"""A kind of source for a test: logs of numbered records in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.model.ranges import Position, RecordCoordinates, SourceRange
from headrace.sources.kind import SourceKind
from headrace.sources.parts import Part
from headrace.sources.requests import Asking, Client, Found, Lag
from headrace.sources.source import Source
from headrace.state.facts import NextPosition, SourceFacts

COORDINATES = RecordCoordinates.of(log="STRING", number="BIGINT")


class Span(InputPartition):
    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end


class SpanReader:
    """Reads records from `first` to before `end`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.file, self.log = options["file"], options["log"]
        self.span = int(options.get("first", 0)), int(options.get("end", 0))

    def read(self, partition: Span) -> Iterator[tuple[str, int, bytes]]:
        with closing(sqlite3.connect(self.file)) as database:
            yield from database.execute(
                "SELECT log, number, value FROM records WHERE log = ? AND number >= ? AND number < ? "
                "ORDER BY number",
                (self.log, partition.first, partition.end),
            ).fetchall()


class BatchReader(SpanReader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [Span(*self.span)]


class StreamReader(SpanReader, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {self.log: 0}

    def latestOffset(self) -> dict[str, int]:
        return {self.log: count_records(self.file, self.log)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Span(start[self.log], end[self.log])]


class NumberedLogs(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbered"

    def schema(self) -> str:
        return "log STRING, number BIGINT, value BINARY"

    def reader(self, schema: Any) -> BatchReader:
        return BatchReader(self.options)

    def streamReader(self, schema: Any) -> StreamReader:
        return StreamReader(self.options)


def count_records(file: str, log: str) -> int:
    """The number after the last record of a log."""
    with closing(sqlite3.connect(file)) as database:
        query = "SELECT coalesce(max(number) + 1, 0) FROM records WHERE log = ?"
        return int(database.execute(query, (log,)).fetchone()[0])


class LogClient(Client):
    """Counts the records of logs."""

    @classmethod
    def open(cls, asking: Asking) -> Self:
        return cls()

    def count(self, identity: Mapping[str, Any]) -> int:
        return count_records(identity["file"], identity["log"])

    def close(self) -> None:
        return


@dataclass(frozen=True)
class LogPosition(Position):
    """The next number of each log."""

    next: Mapping[str, int]

    def to_json(self) -> dict[str, int]:
        return dict(self.next)

    @property
    def number(self) -> int:
        return next(iter(self.next.values()))


@dataclass(frozen=True, kw_only=True)
class LogPart(Part):
    """Some records of a log."""

    log: str

    @property
    def place(self) -> Mapping[str, Any]:
        return {"log": self.log, "number": self.start}

    def __str__(self) -> str:
        return f"log {self.log}, numbers {self.start} to {self.until - 1}"


@dataclass(frozen=True, kw_only=True)
class LogFacts(SourceFacts):
    """A log and the number of its records."""

    count: int

    def next_position(self, flow: Any, history: Any) -> NextPosition:
        log = self.source.identity["log"]
        reads = self.last_reads(history)
        return NextPosition(LogPosition(reads[0].until if reads else {log: 0}))


@dataclass(frozen=True, kw_only=True)
class LogSource(Source):
    """A streaming read of a log."""

    kind = "numbered"
    coordinates = COORDINATES
    rereads = True
    reads_records = True

    file: str
    log: str

    def _identity(self) -> dict[str, str]:
        return {"file": self.file, "log": self.log}

    def describe(self) -> str:
        return f"log {self.log}"

    def label(self, root: Path) -> str:
        return f"log {self.log}"

    def common_input(self, other: Source, facts: Any) -> str | None:
        same = isinstance(other, LogSource) and other._identity() == self._identity()
        return f"the log {self.log}" if same else None

    def look(self, systems: Any, past: Any) -> LogFacts:
        identity = self._identity()
        return LogFacts(source=self.identity(identity), count=systems.client(LogClient).count(identity))

    def find(self, systems: Any, *, is_new: bool) -> Found:
        return Found(f"{systems.client(LogClient).count(self._identity())} records")

    def is_drained(self, facts: Any, position: Any, checkpoint: Any) -> bool:
        return bool(facts.count == position.number)

    def read_range(self, read: Any, one: SourceRange | None, checkpoint: Any) -> Any:
        first = 0 if one is None or one.start is None else one.start.number
        end = 0 if one is None else one.until.number
        read.session.dataSource.register(NumberedLogs)
        options = {**self._identity(), "first": str(first), "end": str(end)}
        return read.session.read.format("numbered").options(**options).load()

    def read_records(self, read: Any, records: Any) -> Any:
        return records.select("log", "number", "value")

    def owns(self) -> Any:
        return F.col("log") == self.log


class LogKind(SourceKind):
    """Logs of numbered records."""

    source = LogSource
    record: ClassVar[Mapping[str, str]] = {**COORDINATES.types, "value": "BINARY"}

    def opens(self, format: str) -> bool:
        return format == "numbered"

    def build(self, read: Any) -> LogSource:
        return LogSource(**read.common, file=read.options["file"], log=read.options["log"])

    def position(self, value: Any) -> LogPosition:
        return LogPosition(value)

    def batch_start(self, checkpoint: Any, source: Any, before: Any, until: Any) -> LogPosition:
        return before or LogPosition({source.identity["log"]: 0})

    def describe(self, source: Any) -> str:
        return f"log {source.identity['log']}"

    def count(self, one: SourceRange) -> int:
        return one.until.number - (0 if one.start is None else one.start.number)

    def lag(self, one: SourceRange, systems: Any, checkpoint: Any) -> Lag:
        return Lag(systems.client(LogClient).count(one.identity) - one.until.number)

    def parts(self, one: SourceRange, source: Source, session: Any, checkpoint: Any) -> list[LogPart]:
        (log,) = one.until.next
        first = 0 if one.start is None else one.start.number
        return [LogPart(log=log, start=first, until=one.until.number, source=one.index)]

    def range_of(self, one: SourceRange, parts: Sequence[Any]) -> SourceRange:
        log, first, end = parts[0].log, min(p.start for p in parts), max(p.until for p in parts)
        return replace(one, start=LogPosition({log: first}), until=LogPosition({log: end}))

    def leave_out(self, frame: Any, records: Sequence[Any]) -> Any:
        return frame.where(~F.col("number").isin([one.start for one in records]))


KIND = LogKind()
