"""Small result types of the source protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame


@dataclass(frozen=True, kw_only=True)
class Seed:
    """What a new checkpoint holds of a source that starts at a position."""

    # What the opening commit says of the source's range
    marks: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)  # files of the checkpoint, by path within it
    # Files of the flow's ledger, by path within it; sources that name the same file share it
    ledger: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """A server without which a source cannot be read."""

    name: str
    ping: Callable[[], None]  # raises `BrokerUnreachableError` if the server does not answer
    remedy: str


@dataclass(frozen=True)
class Found:
    """What a source holds now, for a plan."""

    text: str = ""  # in words, such as ``4 partitions``
    # The topics that its pattern matches; ``None`` for a source without a pattern
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Lag:
    """What a source holds beyond a position."""

    count: int
    size_bytes: int | None = None
    counts_files: bool = False

    def __add__(self, other: Lag) -> Lag:
        sizes = [size for size in (self.size_bytes, other.size_bytes) if size is not None]
        return Lag(
            self.count + other.count, sum(sizes) if sizes else None, self.counts_files or other.counts_files
        )


@dataclass(frozen=True)
class Unrecoverable:
    """What a flow has read and its sources no longer hold."""

    text: str  # what it is, as the rest of a sentence about a table
    count: int | None = None  # records at most, or files; ``None`` where they are not counted
    restore: str | None = None  # how a user can make it readable again


@dataclass(frozen=True)
class SourceSeen:
    """A range that was read of one source."""

    kind: str
    name: str
    read: int | None = None
    held: int | None = None
    unit: str = "records"
    version: int | None = None
    # The reason why a table was computed from its own query, or ``None`` if it was read
    computed: str | None = None

    def __str__(self) -> str:
        if self.computed is not None:
            return f"{self.kind} {self.name}: computed from its query; {self.computed}"
        if self.version is not None:
            return f"{self.kind} {self.name}: v{self.version}"
        if self.held is None:
            return f"{self.kind} {self.name}"
        return f"{self.kind} {self.name}: {self.read:,} of {self.held:,} {self.unit}"

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "unit"}


@dataclass(frozen=True)
class Sample:
    """The newest records of a source, as a batch."""

    frame: DataFrame
    seen: SourceSeen
