"""What the proof asks of a kind of source. A new kind is one module and one line in `registry.py`.

A kind with a connection also adds its access in `project/stored_pipeline.py`.

The module has two classes:

1. A `SourceRange` reads what a commit says of a batch. A kind whose records have coordinates names them in
   `coordinates`; then batches are compared partition by partition, and rows by their coordinates.
2. A `SourceReader` says what the source holds now: `extent` gives the first and the next offset of a
   partition, `find` gives the offsets that exist. A reader of a kind without coordinates overrides
   `judge_records` or `claims` if records can be compared in another way, and may else give the reason in
   `unjudged`; ranges and counts are judged for every kind.

Both are independent of the code that reads the source in a run. A reader connects to its system with what
`verify_pipeline` was given for its kind (`Context.access`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.model.names import TableName
from headrace.verify.checkpoints import CheckpointLog, Lineage
from headrace.verify.claims import Claim, Claims, committed_spans
from headrace.verify.coordinates import ANY, CoordinateReader
from headrace.verify.evidence import Evidence
from headrace.verify.report import GradeReport
from headrace.verify.source_range import Kinds, Partition, SourceRange, Spans, named
from headrace.verify.stored import Storage

_NAMED = 6


class SinkUnreadError(Exception):
    """The batches of a sink that keeps them itself cannot be read, and so are not judged."""


class CannotJudgeError(Exception):
    """Why the third grade of a flow cannot be judged; without `applies`, no flow of its kind can be."""

    def __init__(self, reason: str, *, applies: bool = True) -> None:
        super().__init__(reason)
        self.applies = applies


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the readers of one verification share."""

    storage: Storage
    kinds: Kinds
    tables: dict[TableName, Evidence]
    access: Mapping[str, Any] = field(default_factory=dict)  # how to reach the systems of each kind
    coordinates: CoordinateReader = field(default_factory=CoordinateReader)

    @property
    def lineages(self) -> list[Lineage]:
        return [lineage for one in self.tables.values() for lineage in one.lineages]


@dataclass(frozen=True)
class Extent:
    """The offsets of a partition that its source holds now."""

    low: int
    high: int  # exclusive


@dataclass(frozen=True)
class Found:
    """The requested offsets of a partition that hold a record."""

    spans: Spans
    is_certain: bool = True  # whether an offset without a record has never had one


@dataclass(frozen=True)
class SourceRecord:
    """A record that a source still holds."""

    partition: Partition
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class SourceReader:
    """Reads the sources of one kind for the proof."""

    range: ClassVar[type[SourceRange]] = SourceRange
    system: ClassVar[str] = "the source"  # what a flow reads, for people
    holder: ClassVar[str] = "the source"  # what holds the records, for people
    unjudged: ClassVar[str] = ""
    """Why the records of such a flow cannot be compared; by default because they have no coordinates."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def judge_ranges(
        self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog], ranges: GradeReport
    ) -> GradeReport:
        """The first grade of a flow with what only this kind can compare; asked after the third grade."""
        return ranges

    def judge_records(self, evidence: Evidence, lineage: Lineage) -> GradeReport | None:
        """The third grade of a flow that reads this kind alone, where rows have no coordinates."""
        return None

    def silence(self, lineage: Lineage) -> str | None:
        """Why the source does not answer."""
        return None

    def extent(self, lineage: Lineage, partition: Partition, identity: str | None) -> Extent | str:
        """What the source holds of a partition; or why it does not have the partition any more."""
        raise NotImplementedError

    def unread(self, source: SourceRange) -> int:
        """How many offsets the source holds behind the last batch of a flow."""
        return 0

    def find(self, evidence: Evidence, asked: Mapping[Partition, Spans]) -> Mapping[Partition, Found] | None:
        """Which of some offsets hold a record; ``None`` if the source stopped answering, see `silence`."""
        raise NotImplementedError

    def check_replay(self, lineage: Lineage) -> str | None:
        """Why the records of a flow cannot be read again for a sample of keys."""
        return "a flow of the table reads sources whose records are not read again"

    def replay(self, source: SourceRange, take: Callable[[SourceRecord], None]) -> str | None:
        """Give all records up to the end of a range; returns why this is not possible, if so."""
        raise NotImplementedError

    def claims(self, evidence: Evidence, lineage: Lineage) -> Claims:
        """What a flow that reads this kind alone claims to have put into its table."""
        if self.unjudged or (self.range.coordinates is None and lineage.source_kinds):
            raise CannotJudgeError(self.unjudged or f"the records of {self.system} have no coordinates")
        silence = self.silence(lineage)
        reasons: list[str] = []
        expired: list[str] = []
        parts: dict[Partition, list[Claim]] = {}
        committed, early = committed_spans(lineage, evidence.since)
        for (partition, identity), spans in sorted(committed.items(), key=str):
            extent = self.extent(lineage, partition, identity) if silence is None else silence
            if isinstance(extent, str):
                parts.setdefault(partition, []).append(Claim(past=spans))
                reasons.append(extent)
                continue
            below, above = spans.within(None, extent.low), spans.within(extent.high, None)
            live, past = spans.within(extent.low, extent.high), Spans.joined([below, above])
            parts.setdefault(partition, []).append(Claim(live=live, past=past))
            if below:
                expired.append(f"{named(partition)} (before offset {extent.low:,})")
            if above:
                reasons.append(
                    f"{self.holder}'s log of {named(partition)} ends at offset {extent.high:,}, "
                    f"and it was read up to {int(above.ends.max()):,}"
                )
        for (partition, _), spans in early.items():
            parts.setdefault(partition, []).append(Claim(past=spans))
        if expired:
            more = "" if len(expired) <= _NAMED else f" and {len(expired) - _NAMED} more partitions"
            reasons.insert(0, f"{self.holder} no longer holds records of {', '.join(expired[:_NAMED])}{more}")
        return Claims(
            partitions={key: Claim.joined(found) for key, found in parts.items()},
            kind=next(iter(lineage.source_kinds), ""),
            system=self.system,
            holder=self.holder,
            reasons=tuple(dict.fromkeys(reasons)),
            excused=ANY if lineage.unknown_versions and not parts else 0,
            unread=sum(map(self.unread, lineage.last_sources)) if silence is None else 0,
        )
