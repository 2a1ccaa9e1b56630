"""A streaming read of a query: what a new kind of source implements, with `sources/kind.py`.

A kind has a folder with a `Source`, its `SourceFacts` (the source as it is now) and a `SourceKind`; where it
needs them, also a `Reader` (options of readers), a `Guard` (checks while a flow runs) and a `Meter` (sizes of
batches). One line of `sources/registry.py` adds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.lineage import DatasetId
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import Position, RecordCoordinates, SourceRange
from headrace.model.texts import find_option
from headrace.runtime.lazy_pyspark import Column, DataFrame, SparkSession
from headrace.sources.limits import Meter
from headrace.sources.requests import Found, Past, Server, SourceRead, Systems
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import SourceFacts
from headrace.storage.location import Location

if TYPE_CHECKING:
    from headrace.sources.files.headers import HeaderGroup, HeaderRules

_NOT_KEPT = frozenset({"location", "options", "adaptive"})
"""Fields that the JSON form of a source leaves out; options can hold secrets."""


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One streaming source of a flow's query, in Spark's order."""

    kind: ClassVar[str]
    kept_options: ClassVar[tuple[str, ...]] = ()
    """The options that the JSON form keeps."""
    rereads: ClassVar[bool] = False
    """Whether `read_range` can read a range again."""
    coordinates: ClassVar[RecordCoordinates | None] = None
    """The coordinates that each record of the stream has as columns."""
    reads_records: ClassVar[bool] = False
    """Whether `read_records` can give records of the quarantine to a query, and `owns` tells which."""

    wraps_records: ClassVar[bool] = True
    """Whether the fields of a record are within one column until it is decoded, as those of a message."""

    has_metadata: ClassVar[bool] = True
    """Whether a stream of it can have Spark's hidden column `_metadata`."""

    index: int
    # The number of its folder in a checkpoint's ``sources/``; smaller than ``index`` where the query uses one
    # DataFrame several times, since Spark opens such a source once
    folder: int
    read: int = 0  # the number of the read in the query; a DataFrame that is used twice has one
    location: SourceLocation
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    adaptive: bool = False  # whether Headrace chooses the limit of its batches

    @property
    def table(self) -> TableName | None:
        """The dataset that it reads, of this storage."""
        return None

    @property
    def reads_feed(self) -> bool:
        """Whether its rows are the changes of a table, from its change data feed."""
        return False

    @property
    def limits_feed(self) -> bool:
        """Whether the query itself limits the batches of such a feed."""
        return False

    @property
    def feed_start(self) -> Literal["all", "later"] | None:
        """Whether a new flow gets all rows of a table from its change feed, or only later changes; ``None``
        if the source is something else, or leaves out changes."""
        return None

    @property
    def on_data_loss(self) -> OnDataLoss | None:
        """The policy of this source alone; ``None`` takes the pipeline's."""
        return None

    @property
    def connection(self) -> object | None:
        """The kind's own connection to a system that is not the profile's; `to_json` leaves its login out."""
        return None

    def option(self, name: str) -> str | None:
        """An option's value; Spark ignores the case of its name."""
        return find_option(self.options, name)

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

    @property
    def skips_erasures(self) -> bool:
        """Whether the source skips commits of a table that only delete rows."""
        return False

    @property
    def feed(self) -> TableName | None:
        """The dataset whose change data feed is read; ``None`` if the source is something else."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """The source in words that are the same in every profile."""

    @abstractmethod
    def label(self, root: Path) -> str:
        """A short label for graphs."""

    def datasets(
        self, settings: ProjectSettings, identity: Mapping[str, Any] | None = None
    ) -> tuple[DatasetId, ...]:
        """The datasets of other systems that it reads. `identity`: of a range, whose datasets are wanted."""
        return (DatasetId(settings.name, self.label(settings.root)),)

    def title(self, root: Path) -> str:
        return self.label(root)

    @property
    def begins_with_snapshot(self) -> bool:
        """Whether a new flow reads what a table outside has now, and not its history."""
        return False

    def details(self) -> str:
        """What a plan adds to the name: where a new flow starts."""
        return ""

    def common_input(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        """A description of the input that both sources read; ``None`` if they read different ones."""
        return None

    # -- what the system holds

    @abstractmethod
    def look(self, systems: Systems, past: Past) -> SourceFacts:
        """Ask the system for the source as it is now."""

    def find(self, systems: Systems, *, is_new: bool) -> Found | None:
        """Ask the system what a plan can say of it; ``None`` where nothing. For a flow that has no checkpoint
        yet, what would stop its start is raised."""
        return None

    def not_checked(self, error: HeadraceError, settings: ProjectSettings) -> str:
        """The warning of a plan if the system does not answer `find`."""
        return f"{self.describe()} was not checked: {error.summary}"

    def server(self, settings: ProjectSettings, timeout_s: float) -> Server | None:
        """The server that is watched while the source is read."""
        return None

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        """Check, before a checkpoint is made, that the source is there and holds where the flow starts: where
        its options say, if it is new."""
        return

    def is_drained(self, facts: SourceFacts, position: Position, checkpoint: Location) -> bool:
        """Whether the source holds nothing after a position; false where that is not known for sure."""
        return False

    def meter(self, systems: Systems) -> Meter | None:
        """What measures its batches, where Headrace chooses their limit."""
        return None

    def settings(self, position: Position | None, systems: Systems) -> Mapping[str, str]:
        """The Spark settings with which a query starts at a position, or where its options say."""
        return {}

    # -- its records as a batch

    def read_range(self, read: SourceRead, one: SourceRange | None, checkpoint: Location) -> DataFrame:
        """A range as a batch, with the columns of the stream; only where `rereads`."""
        raise NotImplementedError(self.kind)

    def headers(
        self, session: SparkSession, one: SourceRange, checkpoint: Location
    ) -> tuple[HeaderRules, Sequence[HeaderGroup]] | None:
        """The files of a range by their headers; ``None`` if the read does not take columns by name."""
        return None

    def read_records(self, read: SourceRead, records: DataFrame) -> DataFrame:
        """Records of the quarantine, with its fields, as a batch with the columns of the stream; only where
        `reads_records`."""
        raise NotImplementedError(self.kind)

    def owns(self) -> Column:
        """Whether a record that was kept comes from this source; only where `reads_records`."""
        raise NotImplementedError(self.kind)


def _kept(source: Source | type[Source]) -> list[str]:
    return [one.name for one in fields(source) if one.name not in _NOT_KEPT]


def _with(sequence: type[list[Any] | tuple[Any, ...]], value: Any) -> Any:
    """A value with its lists and tuples as one of the two: JSON knows lists only."""
    if isinstance(value, list | tuple):
        return sequence(_with(sequence, one) for one in value)
    return {key: _with(sequence, one) for key, one in value.items()} if isinstance(value, Mapping) else value
