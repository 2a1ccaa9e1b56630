"""Where a Kafka source without a checkpoint starts, as its options say, and whether it can."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.errors import SourceLocation, StartInvalidError
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.subscription import EARLIEST, LATEST

_CLOCK_MS = 60_000
"""How far a producer's clock may be ahead of ours before a moment counts as one that is to come."""

_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Start:
    # ``earliest`` or ``latest`` for all partitions; otherwise the other fields apply
    at: Literal["earliest", "latest", "offsets", "timestamp", "timestamps"]
    # By topic and partition; -1 is the end and -2 the beginning
    offsets: Offsets = field(default_factory=dict)
    timestamp_ms: int = 0
    timestamps_ms: Offsets = field(default_factory=dict)
    lenient: bool = False  # whether a partition without a record since that moment starts at its end

    @classmethod
    def of(cls, options: Mapping[str, str], *, default: Literal["earliest", "latest"]) -> Start:
        """The start in a reader's options, in the order in which Spark evaluates them."""
        chosen = {key.lower(): value.strip() for key, value in options.items()}
        strategy = chosen.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", "latest"):
            raise ValueError(f"`startingOffsetsByTimestampStrategy` must be error or latest, not {strategy}")
        lenient = strategy == "latest"
        if (text := chosen.get("startingtimestamp")) is not None:
            return cls(at="timestamp", timestamp_ms=_moment("startingTimestamp", text), lenient=lenient)
        if (text := chosen.get("startingoffsetsbytimestamp")) is not None:
            moments = _by_partition("startingOffsetsByTimestamp", text, "1700000000000")
            for partitions in moments.values():
                for moment in partitions.values():
                    _moment("startingOffsetsByTimestamp", str(moment))
            return cls(at="timestamps", timestamps_ms=moments, lenient=lenient)
        text = chosen.get("startingoffsets", default)
        match text.lower():
            case "earliest":
                return cls(at="earliest")
            case "latest":
                return cls(at="latest")
            case _:
                return cls(at="offsets", offsets=_by_partition("startingOffsets", text, "17"))

    def describe(self) -> str:
        match self.at:
            case "timestamp":
                return f"from {_shown(self.timestamp_ms)}"
            case "timestamps":
                return "from given timestamps"
            case "offsets":
                return "from given offsets"
            case end:
                return end


def check_start(start: Start, facts: KafkaFacts, cluster: KafkaCluster, location: SourceLocation) -> None:
    """Check that the start of a flow that has read nothing yet exists."""
    given = start.offsets if start.at == "offsets" else start.timestamps_ms
    if start.at in ("offsets", "timestamps"):
        _check_partitions(given, facts, location)
    if start.at == "offsets":
        _check_offsets(given, facts, location)
    if start.at in ("timestamp", "timestamps") and not start.lenient:
        moments = (
            given
            if start.at == "timestamps"
            else {t: dict.fromkeys(parts, start.timestamp_ms) for t, parts in facts.earliest.items()}
        )
        _check_moments(moments, cluster, location)


def _check_partitions(given: Offsets, facts: KafkaFacts, location: SourceLocation) -> None:
    there = {(topic, partition) for topic, parts in facts.earliest.items() for partition in parts}
    named = {(topic, partition) for topic, parts in given.items() for partition in parts}
    if unknown := sorted(named - there):
        raise StartInvalidError(
            f"the start names {_places(unknown)}, which the stream does not read",
            location=location,
            facts=[f"the stream reads {_places(sorted(there))}"],
            remedies=["name these partitions only"],
            params={"unknown": [list(place) for place in unknown]},
        )
    if lacking := sorted(there - named):
        raise StartInvalidError(
            f"the start does not name {_places(lacking)}",
            location=location,
            facts=["a start with partitions must name all partitions of the stream"],
            remedies=["add these partitions; -2 means earliest, and -1 means latest"],
            params={"lacking": [list(place) for place in lacking]},
        )


def _check_offsets(given: Offsets, facts: KafkaFacts, location: SourceLocation) -> None:
    for topic, parts in given.items():
        for partition, offset in parts.items():
            low, high = facts.earliest[topic][partition], facts.latest[topic][partition]
            if offset in (LATEST, EARLIEST) or low <= offset <= high:
                continue
            raise StartInvalidError(
                f"the broker does not have the start offset {offset} of {topic}/{partition}",
                location=location,
                facts=[
                    f"it has offsets {low} to {high - 1}"
                    if high > low
                    else f"the partition is empty, and its next offset is {high}"
                ],
                remedies=[f"use an offset from {low} to {high}, or -2 for earliest, or -1 for latest"],
                params={"topic": topic, "partition": partition, "offset": offset, "low": low, "high": high},
            )


def _check_moments(moments: Offsets, cluster: KafkaCluster, location: SourceLocation) -> None:
    found = cluster.offsets_since(moments)
    none = sorted((t, p) for t, parts in found.items() for p, offset in parts.items() if offset < 0)
    if not none:
        return
    topic, partition = none[0]
    raise StartInvalidError(
        f"{_places(none)} {'has' if len(none) == 1 else 'have'} no record since "
        f"{_shown(moments[topic][partition])}",
        location=location,
        remedies=["startingOffsetsByTimestampStrategy=latest starts such a partition at its end"],
        params={"partitions": [list(place) for place in none], "timestamp_ms": moments[topic][partition]},
    )


def _moment(option: str, text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"`{option}` must be a time in milliseconds since 1970, not {text}")
    moment = int(text)
    if moment > time.time() * 1000 + _CLOCK_MS:
        raise ValueError(f"`{option}` is {moment}, which is in the future ({_shown(moment)})")
    return moment


def _shown(moment_ms: int) -> str:
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"


def _by_partition(option: str, text: str, example: str) -> Offsets:
    words = "must be earliest, latest, or " if option == "startingOffsets" else "must be "
    wanted = f'`{option}` {words}{{"topic": {{"0": {example}}}}}'
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wanted}; {text[:60]} is not JSON: {error}") from error
    if not isinstance(value, dict) or not value:
        raise ValueError(wanted)
    offsets: Offsets = {}
    for topic, parts in value.items():
        if not isinstance(parts, dict):
            raise ValueError(f"{wanted}; `{topic}` has {json.dumps(parts)}")
        for partition, offset in parts.items():
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST
            if not partition.isdigit() or not is_offset:
                raise ValueError(f"{wanted}; `{topic}` has {json.dumps({partition: offset})}")
            offsets.setdefault(topic, {})[int(partition)] = offset
    return offsets


def _places(places: list[tuple[str, int]]) -> str:
    listed = ", ".join(f"{topic}/{partition}" for topic, partition in places[:_NAMED])
    return listed + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "") or "no partition"
