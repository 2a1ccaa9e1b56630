"""What a source of streams is: one kind of class for each system, and what the rest of Headrace asks of it.

A system has four classes: a `Source` (a streaming read of a query), its `Facts` (the source as it is now,
for `state.opening.decide`), a `Guard` (checks while a flow runs) and a `SourceKind` (what is known from a
checkpoint or a commit alone).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from headrace.errors import SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import Position, SourceRange
from headrace.sources.kafka.clusters import KafkaClusters
from headrace.sources.limits import Taken
from headrace.state.facts import (
    FlowFacts,
    ListOrigin,
    Losses,
    NextPosition,
    ReadBefore,
    SourceFacts,
)
from headrace.state.file_lists import FileLists, ReadFile
from headrace.state.history import History
from headrace.state.identity import SourceIdentity
from headrace.state.ledger import Ledger
from headrace.storage.layout import Storage
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableLook(Protocol):
    """A table's newest snapshot, as far as sources ask."""

    @property
    def table_id(self) -> str: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Systems:
    """The systems that sources are read from.

    Args:
        storage: Where the pipeline's tables are.
        kafka: The Kafka clusters.
        read_table: Reads a table's newest snapshot: through Spark, or without a JVM.
    """

    storage: Storage
    kafka: KafkaClusters
    read_table: Callable[[Path], TableLook]


@dataclass(frozen=True, kw_only=True)
class StreamRead:
    """A streaming read of a query, as Spark's plan has it.

    Args:
        format: Spark's name of the format.
        table: The dataset that is read, if it is one of the storage.
        settings: The pipeline's settings.

    The other arguments are those of `Source`.
    """

    format: str
    index: int
    folder: int
    read: int
    location: SourceLocation
    options: Mapping[str, str]
    adaptive: bool
    table: TableName | None
    settings: ProjectSettings


@dataclass(frozen=True, kw_only=True)
class Past:
    """A flow, and what it has read before.

    Args:
        flow: The flow.
        history: How far it has read its sources.
        lists: The lists of the files that it has read.
        opens: Whether a new checkpoint may be opened, so that all that was read must be known.
    """

    flow: AppendFlow
    history: History = field(default_factory=History)
    lists: FileLists | None = None
    opens: bool = False


@dataclass(frozen=True)
class Seeding:
    """What seeds of new checkpoints are made from.

    Args:
        lists: The lists of the files that the flow has read.
        setting: Gives one of Spark's settings.
    """

    lists: FileLists
    setting: Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Seed:
    """What a new checkpoint holds of a source that starts at a position.

    Args:
        marks: What the opening commit says of the source's range.
        contents: Files of the checkpoint, by path within it.
        read: Files that earlier checkpoints have read.
    """

    marks: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    read: tuple[ReadFile, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a source holds now, for a plan.

    Args:
        text: In words, such as ``4 partitions``.
        names: The topics that its pattern matches; ``None`` for a source without a pattern.
    """

    text: str = ""
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Lag:
    """What a source holds beyond a position.

    Args:
        count: Records, rows or files.
        size_bytes: Their bytes, where they are known.
    """

    count: int
    size_bytes: int | None = None

    def __add__(self, other: Lag) -> Lag:
        sizes = [size for size in (self.size_bytes, other.size_bytes) if size is not None]
        return Lag(self.count + other.count, sum(sizes) if sizes else None)


@dataclass(frozen=True)
class Unrecoverable:
    """What a flow has read and its sources no longer hold.

    Args:
        text: What it is, as the rest of a sentence about a table.
        count: Records at most, or files; ``None`` where they are not counted.
    """

    text: str
    count: int | None = None


@dataclass(frozen=True, kw_only=True)
class Facts(ABC):
    """A source as it is now; see `SourceFacts`. These are the answers of a source without surprises."""

    source: SourceIdentity

    @property
    def can_resume(self) -> bool:
        return True

    def check(self, flow: FlowFacts) -> None:
        return

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        return self.source.identity == then.source.identity

    @abstractmethod
    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None: ...

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        return position, ()

    def check_lists(self, flow: FlowFacts, origin: ListOrigin) -> ListOrigin | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One streaming source of a flow's query, in Spark's order.

    Args:
        index: The number of the source in the query.
        folder: The number of its folder in a checkpoint's ``sources/``; smaller than ``index`` where the
            query uses one DataFrame several times, since Spark opens such a source once.
        read: The number of the read in the query; a DataFrame that is used twice has one.
        location: Where the query reads it.
        options: The reader's options as Spark holds them; they can hold secrets.
        adaptive: Whether Headrace chooses the limit of its batches.
    """

    kind: ClassVar[str]

    index: int
    folder: int
    read: int = 0
    location: SourceLocation
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    adaptive: bool = False

    @property
    def table(self) -> TableName | None:
        """The dataset that it reads, of this storage."""
        return None

    @property
    def on_data_loss(self) -> OnDataLoss | None:
        """The policy of this source alone; ``None`` takes the pipeline's."""
        return None

    def option(self, name: str) -> str | None:
        """An option's value; Spark ignores the case of its name."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    def identity(self, identity: Mapping[str, Any]) -> SourceIdentity:
        """What a checkpoint and commits keep of the source."""
        folder = None if self.folder == self.index else self.folder
        return SourceIdentity(index=self.index, kind=self.kind, identity=identity, folder=folder)

    # -- what a plan says

    @abstractmethod
    def describe(self) -> str:
        """The source in words that are the same in every profile."""

    @abstractmethod
    def label(self, root: Path) -> str:
        """A short name for people, in a picture.

        Args:
            root: The pipeline's folder, against which paths are shown.
        """

    def title(self, root: Path) -> str:
        """A name for people, in a sentence."""
        return self.label(root)

    def details(self) -> str:
        """What a plan adds to the name: where a new flow starts."""
        return ""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The source without its secrets; `SourceKind.load` reads it."""

    def shares(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        """What both read, in words, if they read the same.

        Args:
            other: Another source of the same query.
            facts: The sources as they are now, by index, where that is known.
        """
        return None

    # -- what the system holds

    @abstractmethod
    def look(self, systems: Systems, past: Past) -> SourceFacts:
        """Ask the system for the source as it is now."""

    def find(self, systems: Systems, *, is_new: bool) -> Found | None:
        """Ask the system what a plan can say of it; ``None`` where nothing.

        Args:
            systems: The systems.
            is_new: Whether the flow has no checkpoint yet. Then what would stop its start is raised.
        """
        return None

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        """Check before a checkpoint is made that the source is there and holds where the flow starts.

        Args:
            facts: The source as it is now.
            systems: The systems.
            is_new: Whether it starts where its options say, and not at a position.
        """
        return

    def is_drained(
        self, facts: SourceFacts, position: Position, checkpoint: Location, systems: Systems
    ) -> bool:
        """Whether the source holds nothing after a position; false where that is not known for sure."""
        return False

    def meter(self, systems: Systems) -> Meter | None:
        """What measures its batches, where Headrace chooses their limit."""
        return None


class Meter(ABC):
    """Measures the batches of one source, to choose how much the next one may read."""

    counts_records: ClassVar[bool] = False
    """Whether limits are numbers of records, which are set when the query is built."""

    least: ClassVar[int] = 1
    """What every batch may read, unless its records are too large."""

    @abstractmethod
    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        """How much the first batch may read."""

    @abstractmethod
    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        """What a batch has read."""

    def close(self) -> None:
        """Close connections."""
        return


@dataclass(frozen=True, kw_only=True)
class FlowRun:
    """A flow that runs with a checkpoint.

    Args:
        flow: The flow.
        checkpoint: The checkpoint's folder.
        checkpoint_id: The checkpoint's id.
        sources: The sources as they are now.
        planned: The sources as the query reads them.
        systems: The systems.
        ledger: The flow's ledger.
        on_data_loss: The pipeline's policy.
        session: The session that the query is started in.
    """

    flow: AppendFlow
    checkpoint: Location
    checkpoint_id: str
    sources: tuple[SourceIdentity, ...]
    planned: tuple[Source, ...]
    systems: Systems
    ledger: Ledger
    on_data_loss: OnDataLoss
    session: SparkSession


class Guard:
    """Checks the sources of one kind while a flow runs; one batch at a time.

    Args:
        run: The flow.
        sources: Its sources of this kind.
    """

    def __init__(self, run: FlowRun, sources: Sequence[SourceIdentity]) -> None:
        self.run = run
        self.sources = {source.index: source for source in sources}

    def open(self, positions: Mapping[int, Position]) -> None:
        """Check the checkpoint before the query starts.

        Args:
            positions: Where what the table does not hold yet begins, by source.
        """
        return

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        """Complete the ranges of a batch before its rows are read."""
        yield from ranges

    def check(self, ranges: Sequence[SourceRange]) -> None:
        """Check before the commit that the sources are still those that the batch has read."""
        return

    def explain(self, error: Exception) -> None:
        """Raise the error that explains why the batch failed, where a source explains it."""
        return

    def committed(self) -> None:
        """Note that the target holds the batch."""
        return

    def is_replay(self, batch: int) -> bool:
        """Whether a batch that the target holds was made of the same input, as far as that is known."""
        return True

    def check_same_rows(self, batch: int) -> None:
        """Check that a batch which the target holds would give the same rows if it were computed again."""
        return


class SourceKind(ABC):
    """A kind of source: what is known of its sources from a checkpoint or a commit alone."""

    name: ClassVar[str]
    guard: ClassVar[type[Guard]] = Guard

    @abstractmethod
    def opens(self, format: str) -> bool:
        """Whether streams of one of Spark's formats are of this kind."""

    @abstractmethod
    def build(self, read: StreamRead) -> Source:
        """The source of a streaming read.

        Raises:
            UsageError: The read's options cannot be used.
        """

    @abstractmethod
    def load(self, value: Mapping[str, Any], location: SourceLocation) -> Source:
        """The source behind `Source.to_json`."""

    @abstractmethod
    def position(self, value: Any) -> Position:
        """A position from its JSON.

        Raises:
            ValueError: The value is not one.
        """

    def batch_start(
        self, checkpoint: Location, source: SourceIdentity, before: Position | None, until: Position
    ) -> Position | None:
        """Where a batch begins.

        Args:
            checkpoint: The checkpoint's folder.
            source: The source.
            before: Where the batch before ended; ``None`` for the first batch.
            until: Where the batch ends.
        """
        return before

    @abstractmethod
    def describe(self, source: SourceIdentity) -> str:
        """A source that was read, in words."""

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        """What a batch has read, in words."""
        source = SourceIdentity(index=one.index, kind=one.kind, identity=one.identity)
        return (self.describe(source),)

    def count(self, one: SourceRange) -> int | None:
        """The records of a range at most; ``None`` where positions do not tell."""
        return None

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        """What a source holds beyond the end of a range; ``None`` where that is not known.

        Args:
            one: The range.
            systems: The systems.
            checkpoint: The folder of the checkpoint that has read it, if it may be read.
        """
        return None

    def seed(
        self, source: SourceIdentity, position: Position, origin: ListOrigin | None, seeding: Seeding
    ) -> Seed:
        """What a new checkpoint needs beside the position that a source starts at.

        Args:
            source: The source.
            position: The position.
            origin: Whose lists name the files that were read.
            seeding: The flow's lists and Spark's settings.
        """
        return Seed()

    @abstractmethod
    def unrecoverable(
        self, history: History, sources: Sequence[SourceFacts], lists: FileLists
    ) -> Iterator[Unrecoverable]:
        """What a flow has read of sources of this kind and a full refresh would not find again.

        Args:
            history: How far the flow has read.
            sources: Its sources of this kind as they are now.
            lists: The lists of the files that it has read.
        """

    def publish(self, one: SourceRange, systems: Systems, group: str) -> None:
        """Show the system how far a flow has read, where it keeps such a record.

        Args:
            one: The last range that was committed.
            systems: The systems.
            group: The name of the consumer group.
        """
        return
