"""The protocol of a source of streams: what a new kind of source implements.

A kind has a folder with a `Source` (a streaming read of a query), its `Facts` (the source as it is now) and
a `SourceKind` (what is known from a checkpoint or a commit alone); where it needs them, also a `Guard`
(checks while a flow runs) and a `Meter` (sizes of batches). One line of `sources/registry.py` adds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from headrace.errors import SourceLocation
from headrace.model.connections import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position, SourceRange
from headrace.sources.answers import Found, Lag, Seed, Unrecoverable
from headrace.sources.guard import Guard
from headrace.sources.meter import Meter
from headrace.sources.reader import Reader
from headrace.sources.systems import Past, Seeding, StreamRead, Systems
from headrace.state.facts import ListOrigin, SourceFacts
from headrace.state.file_lists import FileLists
from headrace.state.history import History
from headrace.state.identity import SourceIdentity
from headrace.storage.location import Location

_NOT_KEPT = frozenset({"location", "options", "adaptive"})
"""Fields that the JSON form of a source leaves out; options can hold secrets."""


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
    kept_options: ClassVar[tuple[str, ...]] = ()
    """The options that the JSON form keeps."""

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

    @property
    def connection(self) -> KafkaConnection | None:
        """The connection of a Kafka cluster that is not the profile's."""
        return None

    def option(self, name: str) -> str | None:
        """An option's value; Spark ignores the case of its name."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    def identity(self, identity: Mapping[str, Any]) -> SourceIdentity:
        """What a checkpoint and commits keep of the source."""
        folder = None if self.folder == self.index else self.folder
        return SourceIdentity(index=self.index, kind=self.kind, identity=identity, folder=folder)

    # -- its JSON form

    def to_json(self) -> dict[str, Any]:
        """The source without its secrets; `from_json` reads it."""
        own = {one: _with(list, getattr(self, one)) for one in _kept(self)}
        options = {name: value for name in self.kept_options if (value := self.option(name)) is not None}
        return {"kind": self.kind, **own, "options": options}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], location: SourceLocation) -> Self:
        """The source behind `to_json`."""
        own = {one: _with(tuple, value[one]) for one in _kept(cls)}
        return cls(location=location, options=value["options"], **own)

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


class SourceKind(ABC):
    """A kind of source: what is known of its sources from a checkpoint or a commit alone."""

    source: ClassVar[type[Source]]
    guard: ClassVar[type[Guard]] = Guard
    reader: ClassVar[Reader] = Reader()

    @property
    def name(self) -> str:
        """The name of the kind in checkpoints and commits."""
        return self.source.kind

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

    def key(self, source: SourceIdentity) -> str:
        """The part of a source's identity that stays the same when the query reads it in another way."""
        return str(source.identity)

    def unrecoverable(
        self, history: History, sources: Sequence[SourceFacts], lists: FileLists
    ) -> Iterator[Unrecoverable]:
        """The data that a flow has read of sources of this kind and a full refresh would not find again.

        Args:
            history: How far the flow has read.
            sources: Its sources of this kind as they are now.
            lists: The lists of the files that it has read.
        """
        still_read = {self.key(facts.source) for facts in sources}
        for source in history.sources(self.name, self.key):
            if self.key(source) in still_read:
                yield from self.removed(source, history, lists)
            else:
                name = self.describe(source)
                yield Unrecoverable(
                    f"the rows from {name} cannot be read again: the query no longer reads it"
                )

    def removed(self, source: SourceIdentity, history: History, lists: FileLists) -> Iterator[Unrecoverable]:
        """The data that a flow has read of a source and that the source no longer holds."""
        return iter(())

    def publish(self, one: SourceRange, systems: Systems, group: str) -> None:
        """Show the system how far a flow has read, where it keeps such a record.

        Args:
            one: The last range that was committed.
            systems: The systems.
            group: The name of the consumer group.
        """
        return


def _kept(source: Source | type[Source]) -> list[str]:
    """The fields of a source that its JSON form has."""
    return [one.name for one in fields(source) if one.name not in _NOT_KEPT]


def _with(sequence: type[list[Any] | tuple[Any, ...]], value: Any) -> Any:
    """A value with its lists and tuples as one of the two: JSON knows lists only."""
    if isinstance(value, list | tuple):
        return sequence(_with(sequence, one) for one in value)
    return {key: _with(sequence, one) for key, one in value.items()} if isinstance(value, Mapping) else value
