"""The timestamps of the last records of batches: a broker whose log was rolled back holds other records."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.offsets import Topic
from headrace.verify.report import Finding
from headrace.verify.source_range import TopicPartition
from headrace.verify.wording import counted

Times = Mapping[TopicPartition, Mapping[int, int]]
"""The timestamps of records in milliseconds, by partition and offset."""


def find_marks(
    lineage: Lineage, servers: str | None, topics: Mapping[str, Topic | None]
) -> dict[TopicPartition, dict[int, int]]:
    """The timestamps that a flow's commits and the ledger have, of records that the broker may still hold.

    Args:
        lineage: The flow with all its batches.
        servers: The brokers of the cluster; ``None`` for the profile's.
        topics: Its topics; records of an earlier topic of the same name are left out.
    """
    found: dict[TopicPartition, dict[int, int]] = {}
    for source in (source for batch in lineage.batches for source in batch.sources):
        for topic, partitions in (source.last or {}).items():
            now = topics.get(topic)
            if now is None or source.servers != servers or source.topic_id(topic) != now.id:
                continue
            for number, (offset, timestamp_ms) in partitions.items():
                key = (topic, int(number))
                if now.low.get(key[1], 0) <= offset < now.high.get(key[1], 0):
                    found.setdefault(key, {})[int(offset)] = int(timestamp_ms)
    return found


def newest_marks(marks: Times) -> dict[TopicPartition, Set[int]]:
    """The offset of the newest mark of each partition."""
    return {key: {max(offsets)} for key, offsets in marks.items() if offsets}


def compare_marks(marks: Times, times: Times) -> list[Finding]:
    """The partitions whose records have other timestamps than those that were read.

    Args:
        marks: The timestamps in the commits.
        times: What the broker holds. An offset that is missing here was not asked for, or holds no record.
    """
    findings = []
    for key, offsets in sorted(marks.items()):
        held = times.get(key, {})
        other = sorted(offset for offset, read_ms in offsets.items() if held.get(offset, read_ms) != read_ms)
        if other:
            findings.append(_finding(key, other, offsets, held))
    return findings


def _finding(
    key: TopicPartition, other: list[int], marks: Mapping[int, int], held: Mapping[int, int]
) -> Finding:
    topic, partition = key
    first = other[0]
    more = f" ({counted(len(other), 'compared offset')} with another timestamp)" if len(other) > 1 else ""
    return Finding(
        code="OFFSETS_REUSED",
        text=(
            f"{topic}/{partition}: the record that was read at offset {first} has the timestamp "
            f"{_shown(marks[first])}, and the broker's record has {_shown(held[first])}{more}: the broker's "
            "log was rolled back and its offsets were used again"
        ),
        place={
            "topic": topic,
            "partition": partition,
            "offset": first,
            "timestamp_ms": marks[first],
            "now_ms": held[first],
        },
    )


def _shown(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d} UTC"
