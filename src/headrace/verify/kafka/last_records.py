"""The marks of the last records of batches: a broker whose log was rolled back has other records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from datetime import UTC, datetime

from headrace.model.ranges import RecordMark
from headrace.model.texts import counted
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.kafka.offsets import Topic
from headrace.verify.report import Finding
from headrace.verify.source_range import Partition, named

Marks = Mapping[Partition, Mapping[int, RecordMark]]
"""The marks of records, by partition and offset."""


def find_marks(
    lineage: Lineage, servers: str | None, topics: Mapping[str, Topic | None]
) -> dict[Partition, dict[int, RecordMark]]:
    """The marks that a flow's commits and the ledger have, of records that a cluster may still have."""
    found: dict[Partition, dict[int, RecordMark]] = {}
    for source in lineage.sources:
        for topic, partitions in source.marks.get("last", {}).items():
            now = topics.get(topic)
            # Another id is that of an earlier topic of the same name.
            if now is None or source.identity.get("servers") != servers or source.id_of((topic,)) != now.id:
                continue
            for number, (offset, *mark) in partitions.items():
                key = (topic, int(number))
                if now.low.get(key[1], 0) <= offset < now.high.get(key[1], 0):
                    found.setdefault(key, {})[int(offset)] = RecordMark(*map(int, mark))
    return found


def newest_marks(marks: Marks) -> dict[Partition, Set[int]]:
    """The offset of the newest mark of each partition."""
    return {key: {max(offsets)} for key, offsets in marks.items() if offsets}


def compare_marks(
    marks: Marks, held: Marks, asked: Mapping[Partition, Set[int]], compacted: Collection[str]
) -> list[Finding]:
    """The partitions that have other records, or none, at offsets that were read.

    An offset that is missing in `held` has no record if it is in `asked`, and an unknown one otherwise.
    """
    findings = []
    for key, offsets in sorted(marks.items()):
        now = held.get(key, {})
        other = {offset for offset, mark in offsets.items() if offset in now and mark.is_other(now[offset])}
        gone = set() if key[0] in compacted else (asked.get(key, set()) & offsets.keys()) - now.keys()
        if other or gone:
            findings.append(_finding(key, sorted(other | gone), offsets, now))
    return findings


def _finding(
    key: Partition, other: list[int], marks: Mapping[int, RecordMark], held: Mapping[int, RecordMark]
) -> Finding:
    topic, partition = key
    first = other[0]
    more = f" ({counted(len(other), 'compared offset')} with another record)" if len(other) > 1 else ""
    read, now = marks[first], held.get(first)
    if now is None:
        difference = "the broker has no record there, and the topic is not compacted"
    elif now.timestamp_ms == read.timestamp_ms:
        difference = "the broker's record has the same timestamp and another key or value"
    else:
        difference = f"the broker's record has {_shown(now.timestamp_ms)}"
    return Finding(
        code="OFFSETS_REUSED",
        text=(
            f"{named(key)}: the record that was read at offset {first} has the timestamp "
            f"{_shown(read.timestamp_ms)}, and {difference}{more}: the broker's log was rolled back and its "
            "offsets were used again"
        ),
        place={
            "topic": topic,
            "partition": partition,
            "offset": first,
            "timestamp_ms": read.timestamp_ms,
            "now_ms": None if now is None else now.timestamp_ms,
        },
    )


def _shown(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d} UTC"
