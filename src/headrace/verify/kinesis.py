"""Sources that read Kinesis streams: the records that the stream still holds, against the rows of a table.

For each shard, a commit has the number of the next record and the sequence number of the last one. The proof
reads the shard from its first record on, and counts. A record whose sequence number a commit has shows which
count belongs to which number.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from headrace.model.ranges import RecordCoordinates
from headrace.verify.checkpoints import CheckpointLog, Lineage
from headrace.verify.evidence import Evidence
from headrace.verify.reader import Context, Extent, Found, SourceReader
from headrace.verify.report import Finding, GradeReport
from headrace.verify.source_range import Partition, SourceRange, Spans, named

_MAGIC = b"\xf3\x89\x9a\xc2"
_PAGE = 10_000
_PAUSE_S = 0.2
"""Kinesis allows five requests a second for each shard."""

KinesisAccess = Callable[[Mapping[str, Any]], tuple[Any, Mapping[str, str]]]
"""A client of boto3 for the identity of a source, and the parameter that names the stream in requests."""


class KinesisRange(SourceRange):
    """Records of the shards of a stream, by their numbers.

    The identity has the ARN of the stream and the time of its creation (``id``)."""

    coordinates = RecordCoordinates.of(stream="STRING", shard="INT", record_number="BIGINT")

    def offsets(self, position: Any) -> dict[Partition, int]:
        return {
            (str(stream), int(shard)): int(one["number"])
            for stream, shards in (position or {}).items()
            for shard, one in shards.items()
        }

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, str(self.identity["id"]))

    @property
    def name(self) -> str:
        return f"Kinesis {self.identity['stream']}"

    def id_of(self, partition: Partition) -> str | None:
        return str(self.identity["id"])

    def spans_of(self, shard: int) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """The start and the end of a shard in this range, as the commit has them."""
        for stream, shards in self.until.items():
            if (end := shards.get(str(shard))) is not None:
                yield (self.start or {}).get(stream, {}).get(str(shard), {"number": 0}), end


@dataclass
class _Shard:
    """The records that a shard holds, counted up to each sequence number that a commit has."""

    total: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: int | None = None  # the first sequence number


class KinesisReader(SourceReader):
    """Reads each shard of a stream once."""

    range = KinesisRange
    system = "Kinesis"
    holder = "the stream"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._access: KinesisAccess | None = context.access.get("kinesis")
        self._streams: dict[str, Mapping[int, _Shard] | str] = {}

    def _shards(self, lineage: Lineage) -> Mapping[Partition, _Shard] | str:
        """The shards of the streams of a flow; or the reason why a stream was not read."""
        found: dict[Partition, _Shard] = {}
        streams: set[str] = set()
        for identity in {one.key: one.identity for one in lineage.last_sources}.values():
            key, stream = str(identity["id"]), str(identity["stream"])
            if stream in streams:
                return f"it reads several streams {stream}, and its rows do not say from which one they are"
            streams.add(stream)
            if key not in self._streams:
                self._streams[key] = self._read(key, identity)
            held = self._streams[key]
            if isinstance(held, str):
                return held
            found |= {(stream, number): shard for number, shard in held.items()}
        return found

    def _read(self, key: str, identity: Mapping[str, Any]) -> Mapping[int, _Shard] | str:
        if self._access is None:
            return "no connection to Kinesis is known"
        sequences: dict[int, set[str]] = {}
        for source in (source for one in self.context.lineages for source in one.sources):
            if isinstance(source, KinesisRange) and source.identity["id"] == key:
                for _, shard in source.ends:
                    for start, end in source.spans_of(shard):
                        known = (start.get("sequence"), end.get("sequence"))
                        sequences.setdefault(shard, set()).update(one for one in known if one)
        try:
            client, names = self._access(identity)
            summary = client.describe_stream_summary(**names)["StreamDescriptionSummary"]
            now = f"{summary['StreamARN']}@{int(summary['StreamCreationTimestamp'].timestamp() * 1000)}"
            if now != key:
                return f"the stream {identity['stream']}, which was read, was deleted and created again"
            listed = {int(name.rpartition("-")[2]): name for name in _list(client, names)}
            return {
                number: _walk(client, names, name, sequences.get(number, set()))
                for number, name in sorted(listed.items())
            }
        except Exception as error:
            # The clients of AWS raise many classes. The proof says that the stream was not compared.
            reason = re.sub(r"\s+", " ", str(error))
            return f"the stream {identity['stream']} does not answer: {reason}"

    def silence(self, lineage: Lineage) -> str | None:
        found = self._shards(lineage)
        return found if isinstance(found, str) else None

    def extent(self, lineage: Lineage, partition: Partition, identity: str | None) -> Extent | str:
        shards = self._shards(lineage)
        if isinstance(shards, str):
            return shards
        held = shards.get(partition)
        if held is None:
            return f"the stream no longer has the shard {named(partition)}"
        anchors = self._anchors(lineage, partition, identity, held)
        if not anchors:
            end = max(
                one.ends[partition]
                for one in lineage.sources
                if partition in one.ends and one.id_of(partition) == identity
            )
            return Extent(end, end + held.total)
        number, count = anchors[-1]
        low = number - count
        for earlier, before in reversed(anchors):
            if earlier - before != number - count:
                break
            low = min(earlier - before, low)
        return Extent(low, number + held.total - count)

    def _anchors(
        self, lineage: Lineage, partition: Partition, identity: str | None, held: _Shard
    ) -> list[tuple[int, int]]:
        """For each sequence number of a commit that the shard holds: the number of the next record by the
        commit, and the count of records up to there."""
        found = {
            (int(end["number"]), held.counts[end["sequence"]])
            for source in lineage.sources
            if isinstance(source, KinesisRange) and source.id_of(partition) == identity
            for _, end in source.spans_of(partition[1])
            if end.get("sequence") in held.counts
        }
        return sorted(found)

    def unread(self, source: SourceRange) -> int:
        held = self._streams.get(str(source.identity["id"]))
        if not isinstance(source, KinesisRange) or held is None or isinstance(held, str):
            return 0
        unread = 0
        for number, shard in held.items():
            ends = [end for _, end in source.spans_of(number)]
            last = str(ends[0].get("sequence")) if ends else ""
            unread += shard.total - shard.counts.get(last, 0) if last in shard.counts or not ends else 0
        return unread

    def find(self, evidence: Evidence, asked: Mapping[Partition, Spans]) -> Mapping[Partition, Found] | None:
        # Record numbers have no gaps. `judge_ranges` compares them with the records of the stream.
        return {partition: Found(spans) for partition, spans in asked.items()}

    def judge_ranges(
        self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog], ranges: GradeReport
    ) -> GradeReport:
        """Count the records of each range that the stream still holds."""
        shards = self._shards(lineage)
        if isinstance(shards, str):
            return ranges
        findings: list[Finding] = []
        for batch in lineage.batches:
            for source in batch.sources:
                for partition in source.ends if isinstance(source, KinesisRange) else ():
                    assert isinstance(source, KinesisRange)
                    held = shards.get(partition)
                    for start, end in source.spans_of(partition[1]) if held is not None else ():
                        assert held is not None
                        findings += _compare(partition, held, start, end)
        return ranges.with_findings(findings)


def _compare(
    partition: Partition, held: _Shard, start: Mapping[str, Any], end: Mapping[str, Any]
) -> Iterator[Finding]:
    """A finding if the shard has more or fewer records between the two sequence numbers of a range."""
    low, high = int(start["number"]), int(end["number"])
    first, last = start.get("sequence"), end.get("sequence")
    if last is None or last == first or held.first is None or int(last) < held.first:
        return
    count = held.counts.get(last)
    place = {"stream": partition[0], "shard": partition[1], "from": low, "until": high}
    if count is None:
        yield Finding(
            code="RANGE_DIFFERS",
            text=f"{named(partition)}: the stream has no record with the sequence number {last}, "
            f"which was read as record {high - 1}",
            place=place,
        )
        return
    before = None if first is None else held.counts.get(first)
    whole = before is not None
    found = count - (before or 0)
    begins = first is None and start.get("since") is None
    if found != high - low and (whole or found > high - low) and (whole or begins):
        yield Finding(
            code="RANGE_DIFFERS",
            text=f"{named(partition)}: a batch has read {high - low:,} records up to the sequence number "
            f"{last}, and the stream has {found:,} there",
            place={**place, "found": found},
        )


def _list(client: Any, names: Mapping[str, str]) -> Iterator[str]:
    request = dict(names)
    while request:
        page = client.list_shards(**request)
        yield from (one["ShardId"] for one in page["Shards"])
        request = {"NextToken": page["NextToken"]} if page.get("NextToken") else {}


def _walk(client: Any, names: Mapping[str, str], shard: str, sequences: set[str]) -> _Shard:
    """Count the records of a shard, up to each of these sequence numbers."""
    found = _Shard()
    iterator = client.get_shard_iterator(**names, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    arn = {name: value for name, value in names.items() if name == "StreamARN"}
    last: str | None = None
    while iterator:
        try:
            page = client.get_records(ShardIterator=iterator, Limit=_PAGE, **arn)
        except client.exceptions.ExpiredIteratorException:
            start = (
                {"ShardIteratorType": "TRIM_HORIZON"}
                if last is None
                else {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": last}
            )
            iterator = client.get_shard_iterator(**names, ShardId=shard, **start)["ShardIterator"]
            continue
        for record in page["Records"]:
            last = record["SequenceNumber"]
            found.first = int(last) if found.first is None else found.first
            found.total += count_records(record["Data"])
            if last in sequences:
                found.counts[last] = found.total
        iterator = page.get("NextShardIterator")
        if not page["Records"] and not page.get("MillisBehindLatest"):
            return found
        time.sleep(_PAUSE_S)
    return found


def count_records(data: bytes) -> int:
    """The records in a Kinesis record: several if the Kinesis Producer Library has aggregated them."""
    message = data[len(_MAGIC) : -16]
    if not data.startswith(_MAGIC) or md5(message, usedforsecurity=False).digest() != data[-16:]:
        return 1
    try:
        fields = list(_fields(message))
        keys = [value.decode() for number, value in fields if number == 1 and isinstance(value, bytes)]
        records = [
            dict(_fields(value)) for number, value in fields if number == 3 and isinstance(value, bytes)
        ]
    except (ValueError, IndexError):
        return 1
    is_aggregate = all(number in (1, 2, 3) and isinstance(value, bytes) for number, value in fields) and all(
        isinstance(one.get(3), bytes) and isinstance(key := one.get(1), int) and key < len(keys)
        for one in records
    )
    return len(records) if records and is_aggregate else 1


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of numbers and bytes, as their numbers and values."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        value, at = _number(message, at)
        if tag & 7 not in (0, 2) or (tag & 7 == 2 and at + value > len(message)):
            raise ValueError("not a message of numbers and bytes")
        yield tag >> 3, value if tag & 7 == 0 else message[at : at + value]
        at += value if tag & 7 == 2 else 0


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value | message[at] << shift, at + 1
