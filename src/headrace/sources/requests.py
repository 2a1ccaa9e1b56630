"""What a query asks of a reader, what is added to it, and the clients and settings that sources need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from threading import Lock
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, cast

from headrace import errors
from headrace.errors import HeadraceError, SourceLocation, nearest
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import find_option
from headrace.runtime.lazy_pyspark import Column, DataFrame, SparkSession
from headrace.state.facts import History
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.syntax.locations import argument_location


@dataclass(frozen=True, kw_only=True)
class FormatRead:
    streaming: bool
    path: str | None
    options: Mapping[str, str]
    schema: Any  # the schema of the reader: DDL or a ``StructType``
    note: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RegisteredAvro:
    data: Any  # the column, or its name
    schema: str | None  # the reader's schema
    subject: Any
    address: str | None  # the address of the registry
    options: Mapping[str, str] = field(repr=False)


RegistryDecoder = Callable[[RegisteredAvro], "Column"]

FormatReader = Callable[[FormatRead], "DataFrame"]

_readers: ContextVar[Mapping[str, FormatReader]] = ContextVar("headrace_formats")
_decoder: ContextVar[RegistryDecoder | None] = ContextVar("headrace_registry_decoder", default=None)


def registry_decoder() -> RegistryDecoder | None:
    """What decodes records with the schemas of a registry; ``None`` outside of a pipeline."""
    return _decoder.get()


def format_reader(format: str | None) -> FormatReader | None:
    """The reader of a format, by its name in any letter case; ``None`` for formats of Spark."""
    return _readers.get({}).get((format or "").lower())


@contextmanager
def reading_formats(readers: Mapping[str, FormatReader], decoder: RegistryDecoder) -> Iterator[None]:
    """Let the readers of the code within take further formats, and ``from_avro`` a registry."""
    token, decoding = _readers.set(readers), _decoder.set(decoder)
    try:
        yield
    finally:
        _readers.reset(token)
        _decoder.reset(decoding)


ADAPTIVE = "headrace.limit"
"""An option that Spark ignores: it marks sources whose limit adapts to the duration of batches."""
LIMITS = (
    "maxOffsetsPerTrigger",
    "maxRecordsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
)
"""Options that limit a batch."""
_OWN = "headrace."
_STREAMS_ONLY = frozenset(
    {
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxbytespertrigger", "maxtriggerdelay"),
        *("maxfilespertrigger", "maxfileage", "latestfirst", "cleansource", "sourcearchivedir"),
        *("filenameonly", "maxcachedfiles", "discardcachedinputratio"),
    }
)
StandIn = Literal["topic", "stream", "table", "folder"]


class TableLook(Protocol):
    """A table's newest snapshot, as far as sources ask."""

    @property
    def table_id(self) -> str: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Asking:
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
    flow: StreamingFlow
    history: History = field(default_factory=History)
    ledger: Location | None = None
    opens: bool = False  # whether a new checkpoint may be opened, so that all that was read must be known


@dataclass(frozen=True)
class Seeding:
    checkpoint: str
    ledger: Location
    setting: Callable[[str], str | None]


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
    behind_ms: int | None = None  # how old the newest record is that was counted, if there are more behind it

    def __add__(self, other: Lag) -> Lag:
        sizes = [size for size in (self.size_bytes, other.size_bytes) if size is not None]
        behind = [one for one in (self.behind_ms, other.behind_ms) if one is not None]
        return Lag(
            self.count + other.count,
            sum(sizes) if sizes else None,
            self.counts_files or other.counts_files,
            max(behind, default=None),
        )


@dataclass(frozen=True)
class Unrecoverable:
    """What a flow has read and its sources no longer hold."""

    text: str  # what it is, as the rest of a sentence about a table
    count: int | None = None  # records at most, or files; ``None`` where they are not counted
    restore: str | None = None  # how a user can make it readable again


@dataclass(frozen=True)
class SourceSeen:
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


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    streaming: bool
    format: str  # spark's name of the format, in lower case
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    path: str | None = None
    schema: Any = None  # the explicit schema: DDL or a ``StructType``

    def with_options(self, options: Mapping[str, str]) -> ReadRequest:
        return replace(self, options={**self.options, **options})

    def has(self, *names: str) -> bool:
        """Whether one of these options is set, in any case, as in Spark."""
        keys = {key.lower() for key in self.options}
        return any(name.lower() in keys for name in names)

    def value(self, name: str) -> str | None:
        """An option's value; Spark ignores the case of its name."""
        return find_option(self.options, name)

    @property
    def batch_options(self) -> Mapping[str, str]:
        """The options without those of streams and those of Headrace."""
        return {
            key: value
            for key, value in self.options.items()
            if key.lower() not in _STREAMS_ONLY and not key.startswith(_OWN)
        }


@dataclass(frozen=True, kw_only=True)
class ReaderDefaults:
    """What readers get where the user sets nothing."""

    settings: ProjectSettings
    record_limit: int | None = None  # the most records of a first batch; ``None`` for the limit of the kind
    whole_commits: bool = False  # whether a batch of changes must not end within a commit


@dataclass(frozen=True)
class Sampling:
    systems: Systems
    settings: ProjectSettings
    records: int  # how many of the newest records of each source are read, if it counts records


@dataclass(frozen=True, kw_only=True)
class SourceRead:
    """A read of a source that is not a dataset, before it happens: a topic, a folder, a table elsewhere."""

    request: ReadRequest  # what the reader is asked for, with the options that the protocol adds
    paths: tuple[str, ...]  # the folders or files; empty for a server
    location: SourceLocation
    session: SparkSession = field(repr=False)


def unsupported(
    problem: str, option: str, value: str, remedy: str, location: SourceLocation
) -> errors.OptionUnsupportedError:
    """An option that would lose records silently."""
    return errors.OptionUnsupportedError(
        problem,
        location=argument_location(location, option, option),
        remedies=[remedy],
        params={"option": option, "value": value},
    )


def fails_on_loss(request: ReadRequest) -> bool:
    return (request.value("failOnDataLoss") or "true").lower() == "true"


def refuse_silent_loss(request: ReadRequest, location: SourceLocation) -> None:
    """Refuse an option with which Spark skips lost records silently."""
    if fails_on_loss(request):
        return
    problem = "failOnDataLoss=false skips lost records silently"
    raise unsupported(problem, "failOnDataLoss", "false", "remove the option", location)


@dataclass(frozen=True, kw_only=True)
class KnownOptions:
    stream: tuple[str, ...]
    batch: tuple[str, ...]
    prefixes: tuple[str, ...]
    passed_on: str = ""  # the remedy that names the prefix of options that the reader passes on
    marks: frozenset[str]  # options that Spark ignores, and that Headrace adds to a reader

    def refuse_unknown(self, request: ReadRequest, location: SourceLocation) -> None:
        known, other = (self.stream, self.batch) if request.streaming else (self.batch, self.stream)
        lowered = {one.lower() for one in known}
        # A reader that is used a second time already has the options that Headrace adds.
        unknown = (
            name
            for name in request.options
            if name.lower() not in lowered and name not in self.marks
            if not name.lower().startswith(self.prefixes)
        )
        if (name := next(unknown, None)) is None:
            return
        suggestion = nearest(name, known, 0.7)
        facts, remedies = ["Spark would ignore it"], ["remove it"]
        if name.lower() in {one.lower() for one in other}:
            kinds = ("batch reads", "stream") if request.streaming else ("streams", "batch")
            facts = [f"it is an option of {kinds[0]}, and this is a {kinds[1]}"]
        elif suggestion:
            remedies = [f"did you mean `{suggestion}`?"]
        elif self.passed_on:
            remedies = [self.passed_on]
        raise errors.OptionUnknownError(
            f"Unknown option `{name}` of the `{request.format}` reader",
            location=argument_location(location, "options", name),
            facts=facts,
            remedies=remedies,
            params={"format": request.format, "option": name, "suggestion": suggestion},
        )


class Reader:
    """Checks and completes readers; these are the answers for formats that Headrace does not know."""

    has_path: ClassVar[bool] = False
    """Whether the option ``path`` is a path of a file system, so that a relative one gets a base folder."""

    reads_tables: ClassVar[bool] = False
    """Whether the tables of a storage are read with this format."""

    stand_in: ClassVar[StandIn] = "folder"
    """What takes the place of the source in a test."""

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        """The options to add to a reader, after those of the user were checked: none is unknown, has an
        invalid value, or would lose records silently."""
        return {}

    def replaced_options(
        self, request: ReadRequest, location: SourceLocation, settings: ProjectSettings
    ) -> tuple[Mapping[str, str], str | None] | None:
        """All options that take the place of those of the user, and a note for the plan; ``None`` if the
        reader keeps its own."""
        return None

    def check_path(self, path: str, location: SourceLocation) -> None:
        """Check that the folder of a read exists, where Spark's own error would name no location."""
        return

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        """The newest records of a streaming read as a batch, for a preview."""
        format = read.request.format
        raise errors.SourceUnsupportedError(
            f"a preview cannot read the stream `{format}`",
            location=read.location,
            facts=["a preview reads batches, and Headrace does not know how to read this format as a batch"],
            remedies=["read the stream, then show the rows of its table:   headrace run"],
            params={"format": format},
        )
