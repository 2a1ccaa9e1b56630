"""The last record of each partition is marked, and a log that was rolled back is recognized by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from headrace.model.ranges import SourceRange
from headrace.sources.kafka.last_records import (
    LastRecord,
    LastRecordReader,
    ReusedOffset,
    find_reused,
    read_marks,
)
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.record_times import Partition, RecordTimes
from headrace.state.history import History

PLACE = ("t", 0)


class Log(RecordTimes):
    """A broker's log of one partition, in place of a broker: timestamps by offset."""

    def __init__(self, times: Mapping[int, int], *, low: int = 0, answers: bool = True) -> None:
        self.times = dict(times)
        self.low = low
        self.answers = answers
        self.asked: list[Mapping[Partition, tuple[int, int]]] = []

    def read(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float
    ) -> dict[Partition, dict[int, int]]:
        self.asked += [spans] if spans else []
        if not self.answers:
            return {}
        return {
            place: {o: self.times[o] for o in range(*span) if o in self.times and span[0] >= self.low}
            for place, span in spans.items()
        }


def batch(first: int, end: int) -> SourceRange:
    return SourceRange(0, "kafka", {}, KafkaOffsets({"t": {0: first}}), KafkaOffsets({"t": {0: end}}))


@pytest.fixture
def reader() -> Iterator[LastRecordReader]:
    yield LastRecordReader({0: {PLACE: LastRecord(9, 1009)}})


def read(reader: LastRecordReader, one: SourceRange, log: Log) -> tuple[object, tuple[ReusedOffset, ...]]:
    reader.begin(one, log)
    return reader.finish(one)


def log_of(end: int, **changes: int) -> dict[int, int]:
    return {offset: 1000 + offset for offset in range(end)}


@pytest.mark.parametrize("end", [12, 500], ids=["near the batch before", "far from it"])
def test_the_last_record_is_marked(reader: LastRecordReader, end: int) -> None:
    marks, reused = read(reader, batch(10, end), Log(log_of(end)))
    assert (marks, reused) == ({"last": {"t": {"0": [end - 1, 1000 + end - 1]}}}, ())


@pytest.mark.parametrize("end", [12, 500], ids=["near the batch before", "far from it"])
def test_a_record_of_an_earlier_batch_with_another_timestamp_is_found(
    reader: LastRecordReader, end: int
) -> None:
    _, reused = read(reader, batch(10, end), Log({**log_of(end), 9: 77}))
    assert reused == (ReusedOffset("t", 0, LastRecord(9, 1009), 77),)


def test_the_record_of_the_batch_before_is_compared_with_its_own_mark(reader: LastRecordReader) -> None:
    read(reader, batch(10, 12), Log(log_of(12)))
    _, reused = read(reader, batch(12, 14), Log({**log_of(14), 11: 77}))
    assert reused == (ReusedOffset("t", 0, LastRecord(11, 1011), 77),)


@pytest.mark.parametrize("end", [12, 500])
def test_a_record_that_is_gone_is_no_difference(reader: LastRecordReader, end: int) -> None:
    compacted = {offset: time for offset, time in log_of(end).items() if offset != 9}
    assert read(reader, batch(10, end), Log(compacted))[1] == ()
    later = LastRecordReader({0: {PLACE: LastRecord(9, 1009)}})
    marks, reused = read(later, batch(10, end), Log(log_of(end), low=10))
    assert marks and reused == ()


def test_a_transaction_marker_at_the_end_is_passed_over(reader: LastRecordReader) -> None:
    marks, _ = read(reader, batch(10, 500), Log(log_of(499)))
    assert marks == {"last": {"t": {"0": [498, 1498]}}}


def test_what_cannot_be_read_is_left_out_and_the_older_mark_is_compared_later(
    reader: LastRecordReader,
) -> None:
    assert read(reader, batch(10, 20), Log(log_of(20), answers=False)) == ({}, ())
    _, reused = read(reader, batch(20, 30), Log({**log_of(30), 9: 77}))
    assert [one.read for one in reused] == [LastRecord(9, 1009)]


def test_a_partition_that_has_not_moved_is_not_asked_for(reader: LastRecordReader) -> None:
    log = Log(log_of(10))
    assert read(reader, batch(10, 10), log) == ({}, ())
    assert log.asked == []


def test_a_difference_needs_a_record_with_another_timestamp() -> None:
    known = {PLACE: LastRecord(9, 1009)}
    assert find_reused(known, {}) == find_reused(known, {PLACE: {}}) == ()
    assert find_reused(known, {PLACE: {9: 1009}}) == ()
    assert find_reused(known, {PLACE: {9: 1010}}) == (ReusedOffset("t", 0, LastRecord(9, 1009), 1010),)


def test_the_newest_mark_of_each_topic_id_counts() -> None:
    def entry(topic_id: str, last: dict[str, list[int]]) -> dict[str, object]:
        source = {"index": 0, "kind": "kafka", "identity": {"topics": {"t": topic_id}}, "until": {}}
        return {"checkpoint": "c", "sources": [{**source, "last": {"t": last}} if last else source]}

    history = History.of(
        [
            entry("id-1", {"0": [3, 30], "1": [5, 50]}),
            entry("id-2", {"0": [1, 10]}),
            entry("id-1", {"0": [7, 70]}),
            entry("id-1", {}),
        ]
    )
    assert read_marks(history) == {
        "id-1": {0: LastRecord(7, 70), 1: LastRecord(5, 50)},
        "id-2": {0: LastRecord(1, 10)},
    }
