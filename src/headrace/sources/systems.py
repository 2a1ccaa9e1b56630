"""The clients and settings that sources need, and what a flow has read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Any, Protocol, Self, TypeVar, cast

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
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
class Asking:
    """How clients ask the systems of sources."""

    settings: Callable[[], ProjectSettings]  # gives the settings; called when a client is first needed
    publishes: bool = False  # whether flows publish how far they have read
    timeout_s: float = 10.0  # the longest that one request may take
    asks_once: bool = False  # whether a system that did not answer is not asked again


class Client(ABC):
    """The client of one kind of source, for one command or update."""

    failure: HeadraceError | None = None
    """Why a lag is not known, if a system did not answer."""

    @property
    def refusal(self) -> HeadraceError | None:
        """The failure, if the system refuses the login or a permission is missing."""
        return None if self.failure is None or self.failure.transient else self.failure

    @classmethod
    @abstractmethod
    def open(cls, asking: Asking) -> Self:
        """Make the client; it connects when it is first used."""

    @abstractmethod
    def close(self) -> None:
        """End threads and close connections."""


_C = TypeVar("_C", bound=Client)


@dataclass(frozen=True, kw_only=True)
class Systems:
    """The systems that sources are read from."""

    storage: Storage
    # Reads a table's newest snapshot: through Spark, or without a JVM
    read_table: Callable[[Location], TableLook]
    asking: Asking
    _clients: dict[type[Client], Client] = field(default_factory=dict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def client(self, kind: type[_C]) -> _C:
        """The client of a kind of source, opened at its first use."""
        with self._lock:
            if kind not in self._clients:
                self._clients[kind] = kind.open(self.asking)
            return cast(_C, self._clients[kind])

    @property
    def failure(self) -> HeadraceError | None:
        """Why a lag is not known, if a system did not answer."""
        return next((one.failure for one in self._clients.values() if one.failure), None)

    @property
    def refusal(self) -> HeadraceError | None:
        """The error of a system that refuses the login or lacks a permission."""
        return next((one.refusal for one in self._clients.values() if one.refusal), None)

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients.values():
            client.close()


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
