"""The last record that was read of each partition, by which a broker's rolled-back log is recognized.

A restored copy of the log or an unclean leader election gives offsets to other records. A commit marks each
partition that moved with the offset and the timestamp of the last record read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import OffsetsReusedError, SourceLocation
from headrace.model.ranges import SourceRange
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.kafka.record_times import Partition, RecordTimes, Times
from headrace.state.history import History

MARK = "last"
"""The key of a range in a commit: ``{"<topic>": {"<partition>": [<offset>, <timestamp in ms>]}}``."""

_BACK = 2
"""Offsets before the end of a range that are read: the last one can be a transaction marker."""

_NEAR = 8
"""Up to this distance one read reaches from the last record of the batch before to the end of the range."""

_READ_S = 2.0
_WAIT_S = 0.1
"""How long a commit waits for the timestamps. Normally they are there before the rows are written."""


@dataclass(frozen=True)
class LastRecord:
    """The last record that was read of a partition."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True)
class ReusedOffset:
    """An offset that a flow has read, and that holds another record now."""

    topic: str
    partition: int
    read: LastRecord
    now_ms: int


def read_marks(history: History) -> dict[str, dict[int, LastRecord]]:
    """The newest marks in a flow's commits, by topic id and partition."""
    found: dict[str, dict[int, LastRecord]] = {}
    for read in (read for reads in history.commits for read in reads if read.source.kind == "kafka"):
        ids = read.source.identity["topics"]
        for topic, partitions in read.marks.get(MARK, {}).items():
            if ids.get(topic) is not None:
                known = found.setdefault(ids[topic], {})
                known.update({int(number): LastRecord(*record) for number, record in partitions.items()})
    return found


def find_reused(
    known: Mapping[Partition, LastRecord], times: Mapping[Partition, Times]
) -> tuple[ReusedOffset, ...]:
    """The records that have another timestamp now. A record that is not there any more is none of them."""
    return tuple(
        ReusedOffset(*place, record, times[place][record.offset])
        for place, record in sorted(known.items(), key=lambda item: item[0])
        if times.get(place, {}).get(record.offset, record.timestamp_ms) != record.timestamp_ms
    )


def offsets_reused(
    flow: str, dataset: str, location: SourceLocation, reused: ReusedOffset, *, done: str
) -> OffsetsReusedError:
    """The error for a topic whose log was rolled back.

    Args:
        flow: The flow.
        dataset: The name of its table in messages.
        location: Where it is declared.
        reused: The offset.
        done: What was not done.
    """
    topic, partition, offset = reused.topic, reused.partition, reused.read.offset
    return OffsetsReusedError(
        f"flow {flow}: topic `{topic}`, partition {partition} has another record at offset {offset} "
        "than the one that the flow has read",
        location=location,
        facts=(
            f"the record that was read has the timestamp {_shown(reused.read.timestamp_ms)}; "
            f"the broker's record has {_shown(reused.now_ms)}",
            "the broker's log was rolled back and its offsets were used again; the flow has not read the new "
            "records below its position",
            done,
        ),
        remedies=(
            f"read everything again:   headrace full-refresh {dataset}",
            "or restore the log of the broker that the flow has read",
        ),
        params={
            "flow": flow,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp_ms": reused.read.timestamp_ms,
            "now_ms": reused.now_ms,
        },
    )


class LastRecordReader:
    """Reads the last records of a flow's batches in a thread, while Spark reads their rows.

    Args:
        known: The last records before the first batch, by the index of the source.
    """

    def __init__(self, known: Mapping[int, Mapping[Partition, LastRecord]]) -> None:
        self._known = {index: dict(records) for index, records in known.items()}
        self._reading: dict[int, Future[dict[Partition, dict[int, int]]]] = {}
        self._thread = ThreadPoolExecutor(1, "headrace-last-records")

    def begin(self, one: SourceRange, times: RecordTimes) -> None:
        """Begin to read the last records of a range, and the last records before it again."""
        known = dict(self._known.get(one.index, {}))
        self._reading[one.index] = self._thread.submit(_read, one, known, times)

    def finish(self, one: SourceRange) -> tuple[dict[str, Any], tuple[ReusedOffset, ...]]:
        """The marks of a range, and the offsets of earlier batches that hold other records now."""
        known = self._known.setdefault(one.index, {})
        try:
            times = self._reading.pop(one.index).result(_WAIT_S)
        except TimeoutError:
            return {}, ()
        reused = find_reused(known, times)
        marks: dict[str, dict[str, list[int]]] = {}
        for topic, partition, first, end in _moved(one):
            read = [o for o in times.get((topic, partition), {}) if first <= o < end]
            if read:
                last = LastRecord(max(read), times[topic, partition][max(read)])
                known[topic, partition] = last
                marks.setdefault(topic, {})[str(partition)] = [last.offset, last.timestamp_ms]
        return ({MARK: marks} if marks else {}), reused


def _read(
    one: SourceRange, known: Mapping[Partition, LastRecord], times: RecordTimes
) -> dict[Partition, dict[int, int]]:
    """The timestamps of the last records of a range, and of the last records before it."""
    ends, before = {}, {}
    for topic, partition, first, end in _moved(one):
        place = (topic, partition)
        ends[place] = (max(first, end - _BACK), end)
        if place in known:
            before[place] = (known[place].offset, known[place].offset + 1)
    joined = {
        place: (low, ends[place][1]) for place, (low, _) in before.items() if ends[place][1] - low <= _NEAR
    }
    found = times.read({**ends, **joined}, _READ_S)
    # A span from an offset that has expired since gives nothing.
    again = {place: span for place, span in ends.items() if place in joined and not found.get(place)}
    far = {place: span for place, span in before.items() if place not in joined}
    for place, records in times.read({**far, **again}, _READ_S).items():
        found[place] = {**found.get(place, {}), **records}
    return found


def _moved(one: SourceRange) -> Iterator[tuple[str, int, int, int]]:
    assert isinstance(one.until, KafkaOffsets)
    return one.until.since(one.start)


def _shown(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d} UTC"
