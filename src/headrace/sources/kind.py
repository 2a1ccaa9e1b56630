"""A kind of source: reads the positions in checkpoints and commits, and checks the sources of a run."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import Sink, StreamingFlow, StreamingTable
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import Position, RecordCoordinates, SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.parts import Part
from headrace.sources.requests import Lag, Reader, Seed, Seeding, StreamRead, Systems, Unrecoverable
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import History, ListOrigin, SourceFacts
from headrace.state.ledger import Ledger
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FlowRun:
    """A flow that runs with a checkpoint."""

    flow: StreamingFlow
    checkpoint: Location
    checkpoint_id: str
    facts: tuple[SourceFacts, ...]
    planned: tuple[Source, ...]
    systems: Systems
    ledger: Ledger
    on_data_loss: OnDataLoss
    session: SparkSession

    @property
    def sources(self) -> tuple[SourceIdentity, ...]:
        return tuple(facts.source for facts in self.facts)


class Guard:
    """Checks the sources of one kind while a flow runs; one batch at a time."""

    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        self.run = run
        self.sources = {source.index: source for source in sources}

    def open(self, positions: Mapping[int, Position]) -> None:
        """Check the checkpoint before the query starts, with the first position of each source that the table
        does not hold yet."""
        return

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Complete the ranges of a batch before its rows are read."""
        yield from ranges

    def check(self, ranges: Sequence[SourceRange]) -> None:
        """Check before the commit that the sources are still those that the batch has read."""
        return

    def finish(self, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Add to the ranges, before the commit, the marks that were gathered while the rows were read."""
        yield from ranges

    def explain(self, error: Exception) -> None:
        """Raise the error that explains why the batch failed, where a source explains it."""
        return

    def committed(self) -> None:
        return

    def is_replay(self, batch: int) -> bool:
        """Whether a batch that the target holds was made of the same input, as far as that is known."""
        return True

    def check_same_rows(self, batch: int) -> None:
        """Check that a batch which the target holds would give the same rows if it were computed again."""
        return

    def close(self) -> None:
        """Cancel the checks that still run in the background."""
        return


@dataclass(frozen=True, kw_only=True)
class FailedQuery:
    name: str  # the flow or view in messages
    target: str  # the short name of its table
    params: Mapping[str, Any]
    location: SourceLocation
    text: str
    cause: str  # the first cause in the text, shortened
    logged: tuple[str, ...]  # the fact that names Spark's log
    sources: Sequence[Source]
    settings: ProjectSettings | None

    def error(
        self, kind: type[HeadraceError], what: str, facts: Iterable[str], *remedies: str, **params: Any
    ) -> HeadraceError:
        return kind(
            f"{self.name}: {what}",
            location=self.location,
            facts=(*facts, *self.logged),
            remedies=remedies,
            params={**self.params, **params},
        )


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a message in the text of a failure means."""

    message: re.Pattern[str]
    error: type[HeadraceError]
    what: str  # the problem; {table} is what the flow reads
    facts: tuple[str, ...] = ()  # facts in addition to Spark's message
    remedy: str | None = None  # the remedy; ``None`` for a full refresh

    def explain(self, failed: FailedQuery) -> HeadraceError:
        remedy = self.remedy or f"read everything again:   headrace full-refresh {failed.target}"
        # What Spark or Delta advises is for other programs.
        cause = failed.cause.partition(" Please ")[0]
        reads: list[str] = []
        table = "a table that it reads"
        if len(failed.sources) == 1:
            source = failed.sources[0]
            table = f"{source.describe()}, which it reads,"
            failed = replace(failed, location=source.location)
        elif failed.sources:
            reads = [f"it reads {', '.join(one.describe() for one in failed.sources)}"]
        what = self.what.replace("{table}", table)
        return failed.error(self.error, what, (*reads, *self.facts, cause), remedy)


class SourceKind(ABC):
    """A kind of source: what is known of its sources from a checkpoint or a commit alone."""

    source: ClassVar[type[Source]]
    guard: ClassVar[type[Guard]] = Guard
    reader: ClassVar[Reader] = Reader()
    record: ClassVar[Mapping[str, str]] = {}
    """The fields, with their SQL types, in which the quarantine keeps a record of such a source."""

    keys: ClassVar[tuple[str, ...]] = ()
    """The keys of an identity that tell its sources apart, see `SourceFacts.keys`."""

    meanings: ClassVar[tuple[Meaning, ...]] = ()
    """The messages of Spark about such sources that have a code of their own."""
    transient: ClassVar[str] = ""
    """A regular expression of messages after which a flow is tried again."""

    @property
    def coordinates(self) -> RecordCoordinates | None:
        """The fields of `record` that identify it."""
        return self.source.coordinates

    def show_record(self, record: Mapping[str, Any]) -> str | None:
        """The command that prints a record with such coordinates."""
        return None

    @property
    def name(self) -> str:
        """The name of the kind in checkpoints and commits."""
        return self.source.kind

    @abstractmethod
    def opens(self, format: str) -> bool:
        """Whether streams of one of Spark's formats are of this kind."""

    @abstractmethod
    def build(self, read: StreamRead) -> Source:
        """The source of a streaming read; a `UsageError` for options that cannot be used."""

    @abstractmethod
    def position(self, value: Any) -> Position:
        """A position from its JSON; a `ValueError` for another value."""

    def batch_start(
        self, checkpoint: Location, source: SourceIdentity, before: Position | None, until: Position
    ) -> Position | None:
        return before

    @abstractmethod
    def describe(self, source: SourceIdentity) -> str:
        """A source that was read, in words."""

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        return (self.describe(SourceIdentity.from_json(one.to_json())),)

    def count(self, one: SourceRange) -> int | None:
        """The records of a range at most; ``None`` where positions do not tell."""
        return None

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        """What a source holds beyond the end of a range; ``None`` where that is not known, also if the folder
        of the checkpoint would be needed and may not be read."""
        return None

    def seed(
        self, source: SourceIdentity, position: Position, origin: ListOrigin | None, seeding: Seeding
    ) -> Seed:
        """What a new checkpoint needs beside the position that a source starts at."""
        return Seed()

    def unrecoverable(
        self, history: History, sources: Sequence[SourceFacts], ledger: Location
    ) -> Iterator[Unrecoverable]:
        """The data that a flow has read of sources of this kind and a full refresh would not find again."""
        still_read = {facts.source.key(self.keys) for facts in sources}
        # Each as the last commit names it
        known = {read.source.key(self.keys): read.source for read in history.reads(self.name)}
        for key, source in known.items():
            if key in still_read:
                yield from self.removed(source, history, ledger)
            else:
                name = self.describe(source)
                yield Unrecoverable(
                    f"the rows from {name} cannot be read again: the query no longer reads it"
                )

    def removed(self, source: SourceIdentity, history: History, ledger: Location) -> Iterator[Unrecoverable]:
        """The data that a flow has read of a source and that the source no longer holds."""
        return iter(())

    def join_marks(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The marks of two ranges that follow each other, as one; ``None`` if they stay apart."""
        return {**one, **two}

    def take_over(self, old: Location, ledger: Location) -> None:
        """Take over what the ledger of a renamed flow holds of sources of this kind."""
        return

    def publish(self, one: SourceRange, systems: Systems, group: str) -> None:
        """Show the system how far a flow has read, where it keeps such a record."""
        return

    def explain_failure(self, failed: FailedQuery) -> HeadraceError | None:
        """The error for a failure that comes from such a source; ``None`` for others."""
        meaning = next((one for one in self.meanings if one.message.search(failed.text)), None)
        if meaning is None:
            return None
        own = [one for one in failed.sources if isinstance(one, self.source)]
        return meaning.explain(replace(failed, sources=own))

    # -- sinks of the same format

    def choose_sink_options(
        self, options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation
    ) -> tuple[Mapping[str, str], str | None]:
        """The options of a sink as the spec maps them, and a note for the plan."""
        return options, None

    def sink_options(self, sink: Sink, settings: ProjectSettings) -> Mapping[str, str]:
        """The options of a writer of this format that the user need not set."""
        return {}

    def check_sink(self, table: StreamingTable, sink: Sink, columns: Collection[str]) -> None:
        """Check that rows with these columns can be written to a sink of this format."""
        return

    def check_destination(self, sink: Sink, settings: ProjectSettings, systems: Systems) -> None:
        """Check that what a sink of this format sends to exists."""
        return

    # -- parts of a range

    def parts(
        self, one: SourceRange, source: Source, session: SparkSession, checkpoint: Location
    ) -> Sequence[Part] | None:
        """The parts of a range that can be read by themselves; ``None`` if it cannot be read again."""
        return None

    def range_of(self, one: SourceRange, parts: Sequence[Part]) -> SourceRange:
        """A range with only some of its parts; `Source.read_range` reads it."""
        raise NotImplementedError(self.name)

    def leave_out(self, frame: DataFrame, records: Sequence[Part]) -> DataFrame:
        """The records of a source without single records that a range cannot leave out."""
        return frame

    def as_record(self, frame: DataFrame, record: Part) -> DataFrame:
        """A record as the source gives it, with the columns of the quarantine's ``source``."""
        return frame
