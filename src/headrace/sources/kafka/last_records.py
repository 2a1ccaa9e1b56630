"""The last record that was read of each partition, by which a broker's rolled-back log is recognized.

A restored copy of the log or an unclean leader election gives offsets to other records. A commit marks each
partition that moved with the offset, the timestamp and the checksum of the last record read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace.errors import OffsetsReusedError, SourceLocation
from headrace.model.ranges import RecordMark, SourceRange
from headrace.model.texts import moment_text
from headrace.sources.kafka.cluster import KafkaCluster, Marks, Partition
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import History

MARK = "last"
"""The key of a range in a commit.

``{"<topic>": {"<partition>": [<offset>, <timestamp in ms>, <CRC-32 of key and value>]}}``
"""

_BACK = (2, 16, 128, 1024)
"""Offsets before the end of a range that are read until they hold a record: the last ones can be transaction
markers and aborted records."""

_NEAR = 8
"""Up to this distance one read reaches from the last record of the batch before to the end of the range."""

_READ_S = 2.0
_SEARCH_S = 4.0
"""After so long, a range is not read further back."""

_WAIT_S = 0.1
"""How long a commit waits for the marks. Normally they are there before the rows are written."""


@dataclass(frozen=True)
class LastRecord:
    offset: int
    mark: RecordMark

    def to_json(self) -> list[int]:
        return [self.offset, *self.mark.to_json()]


@dataclass(frozen=True)
class ReusedOffset:
    """An offset that a flow has read, and at which the broker has another record now, or none."""

    topic: str
    partition: int
    read: LastRecord
    # The mark of the broker's record; ``None`` if the broker has no record at the offset
    now: RecordMark | None


def read_marks(history: History) -> dict[str, dict[int, LastRecord]]:
    """The newest marks in a flow's commits, by topic id and partition."""
    found: dict[str, dict[int, LastRecord]] = {}
    for read in history.reads("kafka"):
        ids = read.source.identity["topics"]
        for topic, partitions in read.marks.get(MARK, {}).items():
            if ids.get(topic) is not None:
                known = found.setdefault(ids[topic], {})
                known.update(
                    (int(number), LastRecord(offset, RecordMark(*mark)))
                    for number, (offset, *mark) in partitions.items()
                )
    return found


def find_reused(
    known: Mapping[Partition, LastRecord],
    held: Mapping[Partition, Marks],
    is_compacted: Callable[[str], bool | None],
) -> tuple[ReusedOffset, ...]:
    """The records in whose place the broker has another record now, or none."""
    found = []
    for place, record in sorted(known.items(), key=lambda item: item[0]):
        if place not in held:
            continue
        now = held[place].get(record.offset)
        if record.mark.is_other(now) if now is not None else is_compacted(place[0]) is False:
            found.append(ReusedOffset(*place, record, now))
    return tuple(found)


def offsets_reused(
    flow: str, dataset: str, location: SourceLocation, reused: ReusedOffset, *, done: str
) -> OffsetsReusedError:
    """The error for a topic whose log was rolled back."""
    topic, partition, offset = reused.topic, reused.partition, reused.read.offset
    now = "no record" if reused.now is None else "another record"
    return OffsetsReusedError(
        f"flow {flow}: topic `{topic}`, partition {partition} has {now} at offset {offset}, "
        "where the flow has read one",
        location=location,
        facts=(
            _difference(reused),
            "the broker's log was rolled back, and its offsets were used again; the flow has not read the "
            "new records there",
            done,
        ),
        remedies=(
            "restore the log of the broker that the flow has read",
            "or read the new log from its start; records that only the old log had are lost:   "
            f"headrace full-refresh {dataset}",
        ),
        params={
            "flow": flow,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": reused.read.mark.timestamp_ms,
            "now_ms": None if reused.now is None else reused.now.timestamp_ms,
        },
    )


def _difference(reused: ReusedOffset) -> str:
    read_at = moment_text(reused.read.mark.timestamp_ms)
    if reused.now is None:
        return (
            f"the record that was read has the timestamp {read_at}; the log begins before it, the topic is "
            "not compacted, and the offset has a transaction marker or an aborted record"
        )
    if reused.now.timestamp_ms == reused.read.mark.timestamp_ms:
        return f"both records have the timestamp {read_at}, and another key or value"
    return (
        f"the record that was read has the timestamp {read_at}; "
        f"the broker's record has {moment_text(reused.now.timestamp_ms)}"
    )


class LastRecordReader:
    """Reads the last records of a flow's batches in a thread, while Spark reads their rows."""

    def __init__(self, known: Mapping[int, Mapping[Partition, LastRecord]]) -> None:
        self._known = {index: dict(records) for index, records in known.items()}
        self._reading: dict[int, Future[_Found]] = {}
        self._thread = ThreadPoolExecutor(1, "headrace-last-records")

    def begin(self, one: SourceRange, cluster: KafkaCluster) -> None:
        """Begin to read the last records of a range, and the last records before it again."""
        known = dict(self._known.get(one.index, {}))
        if one.index in self._reading:
            self._reading[one.index].cancel()
        self._reading[one.index] = self._thread.submit(_read, one, known, cluster)

    def finish(self, one: SourceRange) -> tuple[dict[str, Any], tuple[ReusedOffset, ...]]:
        """The marks of a range, and the offsets of earlier batches where the broker has other records now."""
        reading = self._reading.pop(one.index)
        try:
            found = reading.result(_WAIT_S)
        except (TimeoutError, CancelledError):
            # Behind a slow broker, reads that nobody waits for must not add up.
            reading.cancel()
            return {}, ()
        self._known.setdefault(one.index, {}).update(found.last)
        marks: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), record in found.last.items():
            marks.setdefault(topic, {})[str(partition)] = record.to_json()
        return ({MARK: marks} if marks else {}), found.reused

    def close(self) -> None:
        """End the thread. A read that has not begun is cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class _Found:
    last: Mapping[Partition, LastRecord]
    reused: tuple[ReusedOffset, ...]  # the records before it in whose place the broker has other records


def _read(one: SourceRange, known: Mapping[Partition, LastRecord], cluster: KafkaCluster) -> _Found:
    """Read the last records of a range, and compare the last records before it."""
    deadline = time.monotonic() + _SEARCH_S
    assert isinstance(one.until, KafkaOffsets)
    moved = one.until.since(one.start)
    spans = {(topic, partition): (first, end) for topic, partition, first, end in moved}
    before = {place: known[place].offset for place in spans if place in known}
    joined = {
        place: (low, spans[place][1])
        for place, low in before.items()
        # After a reset to earlier offsets, a range can end before the last record that was read.
        if 0 < spans[place][1] - low <= _NEAR
    }
    found = cluster.marks.read({**_ends(spans, _BACK[0]), **joined}, _READ_S)
    far = {
        place: (offset, offset + 1)
        for place, offset in before.items()
        if place not in joined or place not in found
    }
    again = {place: found[place] for place in joined if place in found} | cluster.marks.read(far, _READ_S)
    last = _latest(spans, found)
    for back, further in pairwise(_BACK):
        if time.monotonic() > deadline:
            break
        # A span that was not read begins with an offset that has expired since.
        left = {
            place: (first, end)
            for place, (first, end) in spans.items()
            if place not in last and (place not in found or end - first > back)
        }
        found = cluster.marks.read(_ends(left, further), _READ_S)
        last |= _latest(left, found)
    return _Found(last, find_reused(known, again, cluster.is_compacted))


def _ends(spans: Mapping[Partition, tuple[int, int]], count: int) -> dict[Partition, tuple[int, int]]:
    return {place: (max(first, end - count), end) for place, (first, end) in spans.items()}


def _latest(
    spans: Mapping[Partition, tuple[int, int]], found: Mapping[Partition, Marks]
) -> dict[Partition, LastRecord]:
    last = {}
    for place, marks in found.items():
        first, end = spans[place]
        inside = [offset for offset in marks if first <= offset < end]
        if inside:
            last[place] = LastRecord(max(inside), marks[max(inside)])
    return last
