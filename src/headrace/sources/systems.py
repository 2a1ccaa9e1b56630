"""What sources are made of and asked with: a query's read, the systems, and what a flow has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from headrace.errors import SourceLocation
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.sources.kafka.clusters import KafkaClusters
from headrace.state.history import History
from headrace.storage.layout import Storage
from headrace.storage.location import Location


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
        read_table: Reads a table's newest snapshot: through Spark, or without a JVM.
    """

    storage: Storage
    kafka: KafkaClusters
    read_table: Callable[[Location], TableLook]


@dataclass(frozen=True, kw_only=True)
class StreamRead:
    """A streaming read of a query, as Spark's plan has it."""

    format: str
    index: int
    folder: int
    read: int
    location: SourceLocation
    options: Mapping[str, str]
    adaptive: bool
    table: TableName | None  # the dataset that is read, if it is one of the storage
    settings: ProjectSettings  # the pipeline's settings. The other arguments are those of `Source`

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that every kind of source takes."""
        own = ("format", "table", "settings")
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in own}


@dataclass(frozen=True, kw_only=True)
class Past:
    """A flow, and what it has read before."""

    flow: StreamingFlow
    history: History = field(default_factory=History)
    ledger: Location | None = None
    opens: bool = False  # whether a new checkpoint may be opened, so that all that was read must be known


@dataclass(frozen=True)
class Seeding:
    """What seeds of new checkpoints are made from."""

    checkpoint: str
    ledger: Location
    setting: Callable[[str], str | None]
