"""The last record of each partition is marked, and a log that was rolled back is recognized by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from headrace.model.ranges import RecordMark, SourceRange
from headrace.sources.kafka.cluster import KafkaCluster, Marks, Partition, RecordMarks
from headrace.sources.kafka.last_records import (
    LastRecord,
    LastRecordReader,
    ReusedOffset,
    find_reused,
    read_marks,
)
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import History
from waiting import until

PLACE = ("t", 0)


def mark(offset: int, timestamp_ms: int | None = None, crc: int = 5) -> RecordMark:
    return RecordMark(1000 + offset if timestamp_ms is None else timestamp_ms, crc)


READ = LastRecord(9, mark(9))


class Log(KafkaCluster):
    """A broker's log of one partition, in place of a broker: marks by offset."""

    def __init__(
        self, held: Marks, *, low: int = 0, answers: bool = True, compacted: bool | None = False
    ) -> None:
        self.marks = LogMarks(held, low, answers)
        self.compacted = compacted

    def is_compacted(self, topic: str) -> bool | None:
        return self.compacted

    @property
    def asked(self) -> list[Mapping[Partition, tuple[int, int]]]:
        assert isinstance(self.marks, LogMarks)
        return self.marks.asked


class LogMarks(RecordMarks):
    def __init__(self, held: Marks, low: int, answers: bool) -> None:
        self.held = dict(held)
        self.low = low
        self.answers = answers
        self.asked: list[Mapping[Partition, tuple[int, int]]] = []

    def read(
        self, spans: Mapping[Partition, tuple[int, int]], timeout_s: float
    ) -> dict[Partition, dict[int, RecordMark]]:
        self.asked += [spans] if spans else []
        if not self.answers:
            return {}
        return {
            place: {offset: self.held[offset] for offset in range(*span) if offset in self.held}
            for place, span in spans.items()
            if span[0] >= self.low
        }


def batch(first: int, end: int) -> SourceRange:
    return SourceRange(0, "kafka", {}, KafkaOffsets({"t": {0: first}}), KafkaOffsets({"t": {0: end}}))


@pytest.fixture
def reader() -> Iterator[LastRecordReader]:
    yield LastRecordReader({0: {PLACE: READ}})


def read(reader: LastRecordReader, one: SourceRange, log: Log) -> tuple[object, tuple[ReusedOffset, ...]]:
    reader.begin(one, log)
    return reader.finish(one)


def log_of(end: int) -> dict[int, RecordMark]:
    return {offset: mark(offset) for offset in range(end)}


@pytest.mark.parametrize("end", [12, 500], ids=["near the batch before", "far from it"])
def test_the_last_record_is_marked(reader: LastRecordReader, end: int) -> None:
    marks, reused = read(reader, batch(10, end), Log(log_of(end)))
    assert (marks, reused) == ({"last": {"t": {"0": [end - 1, 1000 + end - 1, 5]}}}, ())


OTHERS = {
    "another timestamp": mark(9, 77),
    "the same timestamp": mark(9, crc=6),
    "none: a transaction marker": None,
}


def with_record(held: dict[int, RecordMark], offset: int, now: RecordMark | None) -> dict[int, RecordMark]:
    others = {one: mark for one, mark in held.items() if one != offset}
    return others if now is None else {**others, offset: now}


@pytest.mark.parametrize("now", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("end", [12, 500], ids=["near the batch before", "far from it"])
def test_another_record_at_the_offset_of_an_earlier_batch_is_found(
    reader: LastRecordReader, end: int, now: RecordMark | None
) -> None:
    _, reused = read(reader, batch(10, end), Log(with_record(log_of(end), 9, now)))
    assert reused == (ReusedOffset("t", 0, READ, now),)


def test_the_record_of_the_batch_before_is_compared_with_its_own_mark(reader: LastRecordReader) -> None:
    read(reader, batch(10, 12), Log(log_of(12)))
    _, reused = read(reader, batch(12, 14), Log({**log_of(14), 11: mark(11, 77)}))
    assert reused == (ReusedOffset("t", 0, LastRecord(11, mark(11)), mark(11, 77)),)


@pytest.mark.parametrize("end", [12, 500])
@pytest.mark.parametrize("compacted", [True, None], ids=["compacted", "unknown"])
def test_a_record_that_compaction_or_retention_removed_is_no_difference(
    reader: LastRecordReader, end: int, compacted: bool | None
) -> None:
    log = Log(with_record(log_of(end), 9, None), compacted=compacted)
    assert read(reader, batch(10, end), log)[1] == ()
    later = LastRecordReader({0: {PLACE: READ}})
    marks, reused = read(later, batch(10, end), Log(log_of(end), low=10))
    assert marks and reused == ()


@pytest.mark.parametrize("markers", [1, 2, 3, 40, 400])
def test_transaction_markers_at_the_end_are_passed_over(reader: LastRecordReader, markers: int) -> None:
    marks, _ = read(reader, batch(10, 500), Log(log_of(500 - markers)))
    last = 500 - markers - 1
    assert marks == {"last": {"t": {"0": [last, 1000 + last, 5]}}}


def test_a_range_without_a_record_in_its_last_offsets_has_no_mark(reader: LastRecordReader) -> None:
    log = Log(log_of(10))
    assert read(reader, batch(10, 5_000), log) == ({}, ())
    assert min(low for spans in log.asked[1:] for low, _ in spans.values() if low > 9) == 5_000 - 1024


class SlowLog(Log):
    """A log that is read after `go_on` was set."""

    def __init__(self) -> None:
        super().__init__({})
        self.go_on = threading.Event()

    def is_compacted(self, topic: str) -> bool | None:
        self.go_on.wait(30)
        return None


def test_reads_that_have_not_begun_are_cancelled_at_the_end(reader: LastRecordReader) -> None:
    slow, log, waiting = SlowLog(), Log(log_of(20)), replace(batch(10, 20), index=1)
    reader.begin(batch(10, 20), slow)
    reader.begin(waiting, log)
    reader.close()
    slow.go_on.set()
    assert reader.finish(waiting) == ({}, ())
    assert log.asked == []


def test_reads_that_nobody_waits_for_do_not_add_up(reader: LastRecordReader) -> None:
    slow, log, later = SlowLog(), Log(log_of(20)), Log(log_of(30))
    reader.begin(batch(10, 20), slow)
    for number in range(1, 4):
        reader.begin(replace(batch(10, 20), index=number), log)
        assert reader.finish(replace(batch(10, 20), index=number)) == ({}, ())
    reader.begin(replace(batch(20, 30), index=4), later)
    slow.go_on.set()
    until(lambda: bool(later.asked), "the later log is asked")
    assert log.asked == []


def test_what_cannot_be_read_is_left_out_and_the_older_mark_is_compared_later(
    reader: LastRecordReader,
) -> None:
    assert read(reader, batch(10, 20), Log(log_of(20), answers=False)) == ({}, ())
    _, reused = read(reader, batch(20, 30), Log({**log_of(30), 9: mark(9, 77)}))
    assert [one.read for one in reused] == [READ]


def test_a_partition_that_has_not_moved_is_not_asked_for(reader: LastRecordReader) -> None:
    log = Log(log_of(10))
    assert read(reader, batch(10, 10), log) == ({}, ())
    assert log.asked == []


def test_only_marks_that_differ_count() -> None:
    known = {PLACE: READ}
    plain = {PLACE: LastRecord(9, RecordMark(1009))}

    def found(known: Mapping[Partition, LastRecord], held: Mapping[Partition, Marks]) -> int:
        return len(find_reused(known, held, lambda _: False))

    assert found(known, {}) == 0, "the partition was not read again"
    assert found(known, {PLACE: {9: mark(9)}}) == 0
    assert found(known, {PLACE: {9: mark(9, crc=6)}}) == found(known, {PLACE: {9: mark(9, 1010)}}) == 1
    assert found(plain, {PLACE: {9: mark(9, crc=6)}}) == 0, "an older commit has no checksum"
    assert found(plain, {PLACE: {9: mark(9, 1010)}}) == 1


def test_the_checksum_separates_key_from_value_and_null_from_empty() -> None:
    records = [(None, None), (b"", None), (None, b""), (b"", b""), (b"a", b"b"), (b"ab", b""), (b"", b"ab")]
    assert len({RecordMark.of(7, *record) for record in records}) == len(records)


def test_the_newest_mark_of_each_topic_id_counts() -> None:
    def entry(topic_id: str, last: dict[str, list[int]]) -> dict[str, object]:
        source = {"index": 0, "kind": "kafka", "identity": {"topics": {"t": topic_id}}, "until": {}}
        return {"checkpoint": "c", "sources": [{**source, "last": {"t": last}} if last else source]}

    history = History.of(
        [
            entry("id-1", {"0": [3, 30], "1": [5, 50]}),
            entry("id-2", {"0": [1, 10]}),
            entry("id-1", {"0": [7, 70, 700]}),
            entry("id-1", {}),
        ]
    )
    assert read_marks(history) == {
        "id-1": {0: LastRecord(7, RecordMark(70, 700)), 1: LastRecord(5, RecordMark(50))},
        "id-2": {0: LastRecord(1, RecordMark(10))},
    }
