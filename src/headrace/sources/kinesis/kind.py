"""The kind of Kinesis sources: the answers that need only a checkpoint or a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from headrace.errors import HeadraceError, SourceLocation, SourceUnsupportedError
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sources.bad_records import SCHEMA_MARK, SCHEMA_NUMBER, VALUE_LIMIT, schema_mark
from headrace.sources.kind import FailedQuery, Guard, SourceKind
from headrace.sources.kinesis.aggregated import take_apart
from headrace.sources.kinesis.clients import KinesisClients
from headrace.sources.kinesis.connection import StreamConnection, find_failure
from headrace.sources.kinesis.facts import KinesisFacts, stream_recreated
from headrace.sources.kinesis.meter import FIRST_RECORDS
from headrace.sources.kinesis.position import COORDINATES, KinesisPart, KinesisPosition, ShardPosition
from headrace.sources.kinesis.read import LOSS_POLICY
from headrace.sources.kinesis.shards import ShardPages, list_shards
from headrace.sources.kinesis.source import KinesisSource, end_at, part_of
from headrace.sources.kinesis.spans import FORMAT, LIMIT, RANGE, STARTS
from headrace.sources.parts import Part
from headrace.sources.requests import (
    ADAPTIVE,
    KnownOptions,
    Lag,
    Reader,
    ReaderDefaults,
    ReadRequest,
    Sample,
    Sampling,
    SourceRead,
    StreamRead,
    Systems,
    Unrecoverable,
)
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import History
from headrace.storage.location import Location

_LAG_RECORDS = 1_000
"""Records that a status asks a shard for: flows share its five requests and 2 MB a second."""


class KinesisGuard(Guard):
    """Compares the stream with the one that the checkpoint reads, before each commit."""

    def check(self, ranges: Sequence[SourceRange]) -> None:
        flow = self.run.flow
        for one in ranges:
            known, now = one.identity, self._planned(one).ask(self.run.systems, lists=False)
            if now.id != known["id"]:
                raise stream_recreated(flow.name, flow.location, known["stream"], known["id"], now.id)

    def finish(self, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        for one in ranges:
            yield replace(one, marks={**one.marks, **schema_mark(self._planned(one).options)})

    def _planned(self, one: SourceRange) -> KinesisSource:
        planned = next(source for source in self.run.planned if source.index == one.index)
        assert isinstance(planned, KinesisSource)
        return planned


_OPTIONS = ("stream", "arn", "region", "endpoint", "profile", "roleArn", "accessKeyId", "secretAccessKey")
_KNOWN = KnownOptions(
    stream=(*_OPTIONS, "sessionToken", LIMIT),
    batch=(*_OPTIONS, "sessionToken", RANGE),
    prefixes=(),
    marks=frozenset({"headrace.location", ADAPTIVE, LOSS_POLICY, SCHEMA_NUMBER, STARTS, VALUE_LIMIT}),
)


class KinesisReader(Reader):
    stand_in = "stream"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        _KNOWN.refuse_unknown(request, location)
        if request.streaming and not request.has(LIMIT):
            return {LIMIT: str(defaults.record_limit or FIRST_RECORDS), ADAPTIVE: "adaptive"}
        return {}

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        stream = StreamConnection.from_options(read.request.options).stream
        raise SourceUnsupportedError(
            f"a preview cannot read the Kinesis stream `{stream}`",
            location=read.location,
            facts=["Kinesis has no request for the newest records of a shard"],
            remedies=["run the flow, and show the rows of its table:   headrace run"],
            params={"format": "kinesis", "stream": stream},
        )


class KinesisKind(SourceKind):
    source = KinesisSource
    keys = KinesisFacts.keys
    guard = KinesisGuard
    reader = KinesisReader()
    record: ClassVar[Mapping[str, str]] = {
        **COORDINATES.types,
        "shard_id": "STRING",
        "sequence_number": "STRING",
        "sub_sequence_number": "BIGINT",
        "partition_key": "STRING",
        "approximate_arrival_timestamp": "TIMESTAMP",
        "value": "BINARY",
    }

    def opens(self, format: str) -> bool:
        return format == FORMAT

    def build(self, read: StreamRead) -> KinesisSource:
        connection = StreamConnection.from_options(read.options)
        policy = {name.lower(): value for name, value in read.options.items()}.get(LOSS_POLICY.lower())
        return KinesisSource(
            **read.common,
            stream=connection.stream,
            region=connection.region,
            endpoint=connection.endpoint,
            on_data_loss="refuse" if policy == "refuse" else "record" if policy == "record" else None,
        )

    def position(self, value: Mapping[str, Any]) -> KinesisPosition:
        return KinesisPosition.from_json(value)

    def batch_start(
        self, checkpoint: Location, source: SourceIdentity, before: Position | None, until: Position
    ) -> Position:
        """Where a batch begins, with the shards that join in it, which are read from their first record on,
        and with shards that Kinesis no longer has."""
        assert isinstance(until, KinesisPosition)
        known = before.shards if isinstance(before, KinesisPosition) else {}
        first = {number: ShardPosition(since_ms=one.since_ms) for number, one in until.shards.items()}
        return until.with_shards({**first, **known})

    def describe(self, source: SourceIdentity) -> str:
        return f"kinesis {source.identity['stream']}"

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        assert isinstance(one.until, KinesisPosition)
        return tuple(
            f"{one.until.stream}/{shard} records {first.first} to {end.number - 1}"
            for shard, first, end in one.until.since(one.start)
        )

    def count(self, one: SourceRange) -> int:
        assert isinstance(one.until, KinesisPosition)
        return one.until.count_since(one.start)

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        """The records after a range, counted on one page of each shard, and how far the range is behind the
        end of the stream by Kinesis' clock."""
        assert isinstance(one.until, KinesisPosition)
        clients = systems.client(KinesisClients)
        connection = clients.at(one.identity)
        try:
            client = clients.reach(connection)
            shards = dict(one.until.shards)
            for number in list_shards(client, connection):
                shards.setdefault(number, ShardPosition())
            looks = [
                _look_behind(ShardPages(client, connection, number, position))
                for number, position in sorted(shards.items())
                if not position.closed
            ]
        except HeadraceError as error:
            clients.fail(error)
            return None
        return Lag(
            sum(count for count, _ in looks), behind_ms=max((ms for _, ms in looks), default=0) or None
        )

    def removed(self, source: SourceIdentity, history: History, ledger: Location) -> Iterator[Unrecoverable]:
        stream = source.identity["stream"]
        yield Unrecoverable(f"a full refresh reads what the stream {stream} still has, by its retention")

    def join_marks(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Ranges that were read with different schemas stay apart."""
        return {**one, **two} if one.get(SCHEMA_MARK) == two.get(SCHEMA_MARK) else None

    def explain_failure(self, failed: FailedQuery) -> HeadraceError | None:
        if (found := find_failure(failed.text)) is None:
            return None
        kind, fields = found
        remedies = [str(one).replace("FLOW", failed.name) for one in fields["remedies"]]
        own = next((one for one in failed.sources if isinstance(one, KinesisSource)), None)
        explained = failed if own is None else replace(failed, location=own.location)
        return explained.error(kind, fields["summary"], fields["facts"], *remedies, **fields["params"])

    # -- parts of a range

    def parts(
        self, one: SourceRange, source: Source, session: SparkSession, checkpoint: Location
    ) -> Sequence[KinesisPart]:
        assert isinstance(one.until, KinesisPosition)
        return [
            KinesisPart(
                stream=one.until.stream, shard=shard, start=first.first, until=end.number, source=one.index
            )
            for shard, first, end in one.until.since(one.start)
        ]

    def range_of(self, one: SourceRange, parts: Sequence[Part]) -> SourceRange:
        """The records from the first to the last of the parts, for each shard."""
        assert isinstance(one.until, KinesisPosition)
        spans: dict[int, tuple[int, int]] = {}
        for part in parts:
            assert isinstance(part, KinesisPart)
            first, last = spans.get(part.shard, (part.start, part.until))
            spans[part.shard] = min(part.start, first), max(part.until, last)
        before = one.start if isinstance(one.start, KinesisPosition) else KinesisPosition(one.until.stream)
        starts = {shard: part_of(before.start_of(shard), first) for shard, (first, _) in spans.items()}
        ends = {shard: end_at(one.until.shards[shard], last) for shard, (_, last) in spans.items()}
        return replace(one, start=before.with_shards(starts), until=one.until.with_shards(ends))

    def leave_out(self, frame: DataFrame, records: Sequence[Part]) -> DataFrame:
        for one in records:
            if isinstance(one, KinesisPart):
                is_it = (F.col("stream") == one.stream) & (F.col("shard") == one.shard)
                frame = frame.where(~(is_it & (F.col("record_number") == one.start)))
        return frame


def _look_behind(pages: ShardPages) -> tuple[int, int]:
    """The records on one page, and the milliseconds from the page to the end of the shard."""
    page = pages.read(_LAG_RECORDS)
    count = sum(len(take_apart(one["Data"], one["PartitionKey"])) for one in page.records)
    return count, 0 if page.is_last or page.is_end else max(page.behind_ms, 1)


KIND = KinesisKind()
