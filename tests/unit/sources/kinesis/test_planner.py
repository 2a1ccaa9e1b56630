"""Plans of batches, and the records of their ranges, without Spark."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.errors import FlowInterruptedError, OffsetsExpiredError
from headrace.sources.kinesis import planner
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.planner import Planner
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition
from headrace.sources.kinesis.spans import Row, read_span
from kinesis_server import FAULTS, LOGIN, REGION, KinesisServer, aggregate


class Stream:
    """A stream, and a flow that reads it."""

    def __init__(self, server: KinesisServer, shards: int = 2) -> None:
        self.server, self.name = server, f"s-{uuid.uuid4().hex[:8]}"
        server.create(self.name, shards)
        self.connection = StreamConnection(
            stream=self.name,
            region=REGION,
            endpoint=server.url,
            access_key_id=LOGIN["accessKeyId"],
            secret_access_key=LOGIN["secretAccessKey"],
        )
        self.client = self.connection.open()
        self.put_values: list[bytes] = []
        self.planner = self.new_planner()
        self.at = KinesisPosition(self.name, dict.fromkeys(self.planner.roots(), ShardPosition()))
        self.read_values: list[bytes] = []

    def new_planner(self) -> Planner:
        return Planner(self.connection, self)

    def put(self, shard: int, start: ShardPosition, end: ShardPosition, rows: Sequence[Row]) -> None:
        """The rows that a plan keeps."""
        assert [row.record_number for row in rows] == list(range(start.number, end.number))

    def send(self, count: int, *, packed: bool = False) -> None:
        values = [str(len(self.put_values) + n).encode() for n in range(count)]
        self.put_values += values
        pairs = [(f"key-{value.decode()}", value) for value in values]
        self.server.put(self.name, *([("packed", aggregate(pairs))] if packed else pairs))

    def read(self, limit: int | None = None) -> bool:
        """Read one batch, from the stream itself; returns whether there was something."""
        end = self.planner.plan(self.at, limit)
        if end is self.at:
            return False
        # As Spark does: the offsets are JSON text in between.
        end = KinesisPosition.from_json(json.loads(json.dumps(end.to_json())))
        for shard, first, last in end.since(self.at):
            rows = list(read_span(self.client, self.connection, shard, first, last))
            assert [row.record_number for row in rows] == list(range(first.number, last.number))
            self.read_values += [row.value for row in rows]
        self.at = end
        return True

    def read_until(self, hours_ago: int) -> None:
        """Let the flow have read the stream up to a time that is some hours ago."""
        seen_ms = self.planner._now_ms - hours_ago * 3_600_000
        self.at = self.at.with_shards(dict.fromkeys(self.at.shards, ShardPosition(seen_ms=seen_ms)))
        self.planner._readings.clear()

    def set_retention(self, hours: int) -> None:
        self.server.stream(self.name).retention_period_hours = hours

    def drain(self, limit: int | None = None) -> None:
        self.planner.end_now()
        for _ in range(200):
            if not self.read(limit):
                return
        pytest.fail("a run does not end")


@pytest.fixture
def stream(kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr("headrace.sources.kinesis.shards._PAUSE_S", 0.0)
    yield Stream(kinesis_server)
    FAULTS.end()


STEPS = st.lists(
    st.sampled_from(
        ["send", "pack", "split", "merge", "read", "read one", "restart", "empty", "expire iterator"]
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_steps_reads_each_record_once(
    kinesis_server: KinesisServer, stream: Stream, steps: list[str]
) -> None:
    one = Stream(kinesis_server)
    for step in steps:
        match step:
            case "send":
                one.send(7)
            case "pack":
                one.send(5, packed=True)
            case "split" if len(kinesis_server.open_shards(one.name)) < 6:
                kinesis_server.split(one.name)
            case "merge" if len(kinesis_server.open_shards(one.name)) > 1:
                kinesis_server.merge(one.name)
            case "read":
                one.planner.end_now()
                one.read()
            case "read one":
                one.planner.end_now()
                one.read(1)
            case "restart":
                one.planner = one.new_planner()
            case "empty":
                FAULTS.empty += 1
            case "expire iterator":
                FAULTS.codes.append("ExpiredIteratorException")
    one.drain(3)
    assert sorted(one.read_values, key=int) == one.put_values


def test_a_run_that_takes_long_reads_what_was_there_at_its_start(stream: Stream) -> None:
    """However little the server says that the reading is behind."""
    stream.send(60)
    for shard in stream.server.stream(stream.name).shards.values():
        for record in shard.records.values():
            record.created_at_datetime -= timedelta(minutes=2)
    stream.planner.end_now()
    # A minute ago.
    stream.planner._until_ms = (stream.planner._until_ms or 0) - 60_000
    while stream.read(3):
        continue
    assert sorted(stream.read_values, key=int) == stream.put_values


def test_the_same_range_gives_the_same_rows_while_records_arrive(stream: Stream) -> None:
    stream.send(50)
    stream.planner.end_now()
    end = stream.planner.plan(stream.at, 20)

    def rows() -> list[Row]:
        return [
            row
            for shard, first, last in end.since(stream.at)
            for row in read_span(stream.client, stream.connection, shard, first, last)
        ]

    before = rows()
    stream.send(50)
    stream.server.split(stream.name)
    assert rows() == before and before


def test_a_range_that_lost_a_record_is_refused(stream: Stream) -> None:
    stream.send(50)
    stream.planner.end_now()
    end = stream.planner.plan(stream.at, None)
    for shard in stream.server.stream(stream.name).shards.values():
        shard.records.popitem(last=False)
    for shard, first, last in end.since(stream.at):
        with pytest.raises(OffsetsExpiredError):
            list(read_span(stream.client, stream.connection, shard, first, last))


def test_a_quiet_stream_starts_no_batch_and_renews_its_time_once_an_hour(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.send(5)
    stream.drain()
    assert not stream.read()
    monkeypatch.setattr(planner, "_RENEW_MS", -1)
    stream.planner.end_now()
    before = stream.at
    assert stream.read() and stream.at.count_since(before) == 0


def test_a_flow_that_falls_behind_the_retention_stops(stream: Stream) -> None:
    stream.read_until(hours_ago=25)
    with pytest.raises(FlowInterruptedError):
        stream.planner.plan(stream.at, None)


def test_a_retention_that_is_shortened_during_a_run_stops_a_flow_that_is_behind(stream: Stream) -> None:
    stream.set_retention(168)
    stream.planner = stream.new_planner()
    stream.read_until(hours_ago=30)
    stream.planner.plan(stream.at, None)
    stream.set_retention(24)
    stream.read_until(hours_ago=30)
    with pytest.raises(FlowInterruptedError):
        stream.planner.plan(stream.at, None)


def test_a_retention_that_is_raised_in_time_lets_a_flow_fall_further_behind(stream: Stream) -> None:
    stream.read_until(hours_ago=20)
    stream.set_retention(168)
    stream.planner.plan(stream.at, None)
    stream.planner._clock_ms += 10 * 3_600_000
    stream.read_until(hours_ago=30)
    stream.planner.plan(stream.at, None)


def test_a_retention_that_is_raised_too_late_does_not_hide_expired_records(stream: Stream) -> None:
    stream.read_until(hours_ago=30)
    stream.set_retention(168)
    with pytest.raises(FlowInterruptedError):
        stream.planner.plan(stream.at, None)


def test_quiet_children_renew_their_time_like_other_shards(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it stays that of their parent's last record, and the flow stops once the retention has passed."""
    stream = Stream(kinesis_server, shards=1)
    stream.send(5)
    kinesis_server.split(stream.name)
    stream.drain()
    assert not stream.read()
    monkeypatch.setattr(planner, "_RENEW_MS", -1)
    stream.planner.end_now()
    assert stream.read() and set(stream.at.shards) == {0, 1, 2}


def test_a_limit_takes_whole_aggregates(stream: Stream) -> None:
    stream.send(9, packed=True)
    stream.planner.end_now()
    assert stream.read(2)
    assert len(stream.read_values) == 9


def test_positions_survive_their_json() -> None:
    position = KinesisPosition(
        "s", {0: ShardPosition(sequence="1", number=3, seen_ms=5, closed=True), 7: ShardPosition(since_ms=9)}
    )
    value: Any = json.loads(position.to_text())
    assert KinesisPosition.from_json(value) == position
    with pytest.raises(ValueError, match="not a position"):
        KinesisPosition.from_json({"s": {"0": 7}})
