"""What a flow writes to: the protocol that every target follows, and the formats of sinks.

A Delta table and a `SinkStore` commit rows and batch together. Other sinks can only send the rows in `commit`
and record the batch afterwards, so their guarantee is `at least once`. A writer that reads the rows more than
once asks for `SplitRows.keep`. A quarantine table is a second target, which the split holds (`run/split.py`):
it replaces the rows of (checkpoint, batch), and commits before the table does. A new format is a module of
its own, and one line here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, Protocol, Self, TypeVar

from headrace.model.counts import BatchCounts
from headrace.model.declarations import Sink
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.state.facts import Open
from headrace.state.ledger import TargetCommits

Guarantee = Literal["exactly once", "once for each key", "at least once"]
"""``exactly once``: rows and batch number are committed together. ``once for each key``: rows that are
repeated change nothing, and a key never goes back. ``at least once``: a crash between the rows and the batch
number repeats the rows."""

SMALL_BATCH = 20_000
"""The number of records up to which one task writes a batch, as one file."""

TryRows = Callable[[SparkSession, DataFrame], None]
"""Raises the error with which a system refuses some rows of a batch."""
StampT = TypeVar("StampT", contravariant=True)
Applies = Literal["append", "changes", "partial changes", "truncates", "history"]
"""What a sink can do with the rows of a flow: add them, or apply change records by key (SCD type 1); also
where a NULL leaves a column as it is, where a record removes all older rows, and with the history of each key
(SCD type 2)."""


@dataclass(frozen=True, kw_only=True)
class BatchStamp:
    """The identity of a batch, and the ranges that it read. `replayed`: the number of rejected rows that a
    replay takes out of the quarantine; ``None`` for a batch."""

    pipeline: str
    flow: str
    checkpoint: str
    batch: int
    ranges: tuple[SourceRange, ...]
    replayed: int | None = None
    replay: str | None = None  # the name of the replay


@dataclass(frozen=True, kw_only=True)
class RefreshStamp:
    """The identity of a refresh of a materialized view. `varies`: whether equal inputs do not mean that the
    view is up to date: the query reads something else too, or the clock."""

    pipeline: str
    view: str
    update: str
    definition: str  # the fingerprint of the view's query
    inputs: Mapping[str, Mapping[str, Any]]  # the version of each table that the query reads, by name
    varies: bool = False
    # Whether the query saw exactly these versions of the tables, and not what was committed meanwhile.
    exact: bool = False
    # When it began, in milliseconds since the epoch; the settings of Spark that change what a query gives; a
    # hash of the query with its values; and the seconds of the last refresh by each other strategy.
    began_ms: int = 0
    settings: str = ""
    query: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class SplitRows:
    """A batch's rows after the split. As a context manager it releases what `keep` holds. `counts`: gives the
    batch's counts from the number of accepted rows. A writer calls it after the rows were computed: counts
    that Spark takes meanwhile are known then. `settle`: called after a writer has computed the rows, and
    before it commits them: commits the rejected rows, or raises an error that stops the flow."""

    accepted: DataFrame
    counts: Callable[[int], BatchCounts] = lambda accepted: BatchCounts(input=accepted, accepted=accepted)
    settle: Callable[[], object] = lambda: None
    release: Callable[[], object] | None = None
    most: int | None = None  # the number of records that the rows come from, at most; ``None`` if unknown
    is_kept: bool = False  # whether the split has kept the rows, so that reading them again computes nothing

    def keep(self) -> DataFrame:
        """The accepted rows, computed once however often they are read."""
        if not self.is_kept:
            kept = self.accepted = self.accepted.persist()
            self.is_kept, self.release = True, kept.unpersist
        return self.accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.release is not None:
            self.release()


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A batch that the target holds now. `statistics`: Delta's statistics of each added file, where the
    writer has them. `without_index`: why the changes of the batch were applied without the index of the keys.
    """

    version: int
    counts: BatchCounts
    statistics: tuple[Mapping[str, Any], ...] = ()
    without_index: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """The columns and partition columns that a table gets when it is emptied."""

    schema: Mapping[str, Any]  # the columns, as ``StructType.jsonValue()`` gives them
    partition_cols: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OpenedGeneration:
    """A new generation of a flow's checkpoint, as its target records it. `ranges`: where a seeded checkpoint
    starts (from equals until); its batch 0 is this commit. `layout`: the columns and partition columns of the
    emptied table; ``None`` keeps them."""

    pipeline: str
    flow: str
    checkpoint: str
    generation: int  # its number among the flow's generations
    opening: Open
    ranges: tuple[SourceRange, ...] = ()
    renamed_from: str | None = None  # the name that the flow had before
    clear: bool = False  # whether the same commit removes all rows
    layout: TableLayout | None = None
    refreshing: str | None = None  # the state of the full refresh after this opening; ``None`` if it is none
    replaces: str | None = None  # the checkpoint that feeds the target until now; any other is refused
    fenced_at: int | None = None  # the last batch of the fenced checkpoint; a later one is refused


class TargetState(Protocol):
    """A target's newest state, as far as the exactly-once protocol needs it."""

    @property
    def version(self) -> int: ...

    @property
    def table_id(self) -> str:
        """The id that a target gets when it is created; a target that was created again has another."""

    @property
    def checkpoints(self) -> Mapping[str, str]:
        """The id of the checkpoint that feeds the target, by flow."""

    @property
    def transactions(self) -> Mapping[str, int]:
        """The last batch that the target holds, by checkpoint id; `FENCED` for a replaced checkpoint."""

    @property
    def refreshing(self) -> str | None:
        """What a full refresh still has to do, as the last `OpenedGeneration` says; ``None`` if nothing."""

    def fenced(self, flow: str) -> tuple[str, int] | None:
        """The checkpoint that a flow has replaced, and the last batch of it whose rows the target kept."""


class TargetReader(TargetCommits, Protocol):
    """The read half of a target, for a survey, the ledger and `headrace plan`."""

    def state(self) -> TargetState | None:
        """The target's newest state; ``None`` if it does not exist yet."""

    def remove_strays(self, flow: str, found: Callable[[], object]) -> None:
        """Remove commits of a flow that are not part of the target, as a process can leave them that stood
        still. `found` is called first if there are any."""


class BatchWriter(ABC):
    """Writes one batch. Readers see its rows after `commit`. As a context manager, it frees its resources."""

    @abstractmethod
    def write(self, rows: SplitRows) -> None:
        """Write and count the rows; no reader sees them."""

    @abstractmethod
    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        """Make the rows visible together with the batch's stamp and counts. `ranges`: the batch's ranges with
        their last marks; ``None`` takes those of the stamp."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Target(Protocol[StampT]):
    """A table or an outside system that a flow writes to."""

    @property
    def location(self) -> str:
        """The URI or path that the writers write to."""

    def begin(self, session: SparkSession, stamp: StampT) -> BatchWriter | None:
        """Begin a batch. ``None`` if the target already holds the batch: it is replayed, and nothing may be
        written."""


class FlowTarget(Target[BatchStamp], Protocol):
    """A target that is fed batch by batch, by flows with a checkpoint each."""

    def open_generation(self, opened: OpenedGeneration) -> int:
        """Let a checkpoint feed the target, and fence the one before, in one commit. Returns the target's
        version after that."""

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        """Keep a replay from being committed from now on; false if the target holds it."""

    def trial(self, stamp: BatchStamp) -> TryRows | None:
        """A function that raises the error with which the target refuses some rows of a batch; ``None`` if it
        refuses none."""
        return None


@dataclass(frozen=True, kw_only=True)
class Followed:
    """How the rows of a sink follow those of a table, whose change feed they come from."""

    columns: tuple[str, ...]  # those that have the values of the table's columns of the same names
    is_whole: bool  # whether the feed begins with all rows of the table, and not with later changes
    has_preimages: bool  # whether the feed has the rows before updates, which delete a key that was changed

    def common(self, other: Followed | None) -> Followed | None:
        """What holds for rows of both."""
        return other and Followed(
            columns=tuple(name for name in self.columns if name in other.columns),
            is_whole=self.is_whole and other.is_whole,
            has_preimages=self.has_preimages and other.has_preimages,
        )


@dataclass(frozen=True, kw_only=True)
class SinkSpec:
    """A declared sink, and what is known of its rows, for the formats of `sinks/outside`."""

    name: TableName
    options: Mapping[str, str]
    schema: Mapping[str, Any]  # the columns of its rows, as ``StructType.jsonValue()`` gives them
    keys: tuple[str, ...] = ()  # the key of a row, if flows apply changes by key
    reads_changes: bool = False  # whether a source of its rows is a change feed
    limits_changes: bool = False  # whether the query itself limits the batches of that feed
    sources: int = 1  # how many sources its rows come from
    follows: Followed | None = None  # the columns of a table that its rows keep
    connection: Mapping[str, str] = field(default_factory=dict, repr=False)  # the profile's settings for it


class SinkStore(FlowTarget, TargetReader, Protocol):
    """A sink that commits rows and (checkpoint, batch) together, and so knows the state of its flows."""

    def check(self) -> None:
        """Raise the errors with which a run would fail; writes nothing."""

    def create(self) -> None:
        """Create the storage of the rows and of the state if it does not exist, and add new columns."""

    def finish_refresh(self) -> None:
        """Record that nothing of a full refresh is left to do."""


class SinkSender(Protocol):
    """Sends rows to a system that keeps no state. It checks the options of the sink when it is opened."""

    def send(self, rows: DataFrame, stamp: BatchStamp) -> None:
        """Send the rows; raises the error of a single row, too. To find such a row, parts of a batch are sent
        before the batch without it."""


def _send_to_format(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    """Write the rows with Spark's writer of the format."""
    rows.write.format(sink.format).mode("append").options(**{**connection, **sink.options}).save()


def _send_to_delta(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    # Delta skips the write if the table has this number of this id already.
    own = {"txnAppId": stamp.checkpoint, "txnVersion": str(stamp.batch)}
    rows.write.format("delta").mode("append").options(**sink.options).options(**own).save()


def _send_to_function(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    assert sink.function is not None
    sink.function(rows, stamp.batch)


@dataclass(frozen=True, kw_only=True)
class SinkFormat:
    """What the sinks of a format do. `describe`: says what a sink does, after "it". `open`: opens a sink that
    keeps the state of its flows beside its rows. ``None`` for others: a Delta table without rows records
    their batches, after `send` or a `sender` has sent the rows."""

    describe: Callable[[Sink], str]
    guarantee: Guarantee = "at least once"
    applies: frozenset[Applies] = frozenset({"append"})
    needs: tuple[str, ...] = ()  # the options that a sink must have; `path` is relative to the pipeline
    open: Callable[[SinkSpec], SinkStore] | None = None
    # What a sink with the option `guarantee: at_least_once` does in its place.
    weaker: SinkFormat | None = None
    send: Callable[[DataFrame, BatchStamp, Sink, Mapping[str, str]], None] = _send_to_format
    sender: Callable[[SinkSpec], SinkSender] | None = None


def _open(module: str, name: str) -> Callable[[SinkSpec], Any]:
    """Opens a sink with a class whose module is imported at its first use."""
    return lambda spec: getattr(import_module(f"headrace.sinks.outside.{module}"), name)(spec)


def _describe_topic(sink: Sink) -> str:
    return f"sends to the Kafka topic {sink.options.get('topic', 'of each row')}"


_FILES = SinkFormat(
    describe=lambda sink: f"adds {sink.format} files to {sink.options['path']}", needs=("path",)
)

_SEARCH = SinkFormat(
    describe=lambda sink: f"keeps the rows as documents, which readers find in {sink.options['index']}",
    guarantee="once for each key",
    needs=("index",),
    open=_open("search", "SearchSink"),
)

FORMATS: dict[str, SinkFormat] = {
    "delta": SinkFormat(
        describe=lambda sink: f"appends to the Delta table {sink.options['path']}",
        guarantee="exactly once",
        needs=("path",),
        send=_send_to_delta,
    ),
    "kafka": SinkFormat(
        describe=lambda sink: f"{_describe_topic(sink)}, for readers with isolation.level=read_committed",
        guarantee="exactly once",
        open=_open("kafka.sink", "KafkaSink"),
        weaker=SinkFormat(describe=lambda sink: _describe_topic(sink)),
    ),
    "parquet": _FILES,
    "json": _FILES,
    "csv": _FILES,
    "orc": _FILES,
    "postgres": SinkFormat(
        describe=lambda sink: f"writes to the table {sink.options['table']} of PostgreSQL",
        guarantee="exactly once",
        needs=("table",),
        open=_open("postgres.sink", "PostgresSink"),
    ),
    "redis": SinkFormat(
        describe=lambda sink: f"keeps the rows as values of Redis, in the keys {sink.options['prefix']}*",
        guarantee="once for each key",
        needs=("prefix",),
        open=_open("redis", "RedisSink"),
    ),
    "elasticsearch": _SEARCH,
    "opensearch": _SEARCH,
    "http": SinkFormat(
        describe=lambda sink: "sends the rows to a web hook", needs=("url",), sender=_open("http", "HttpSink")
    ),
    "jdbc": SinkFormat(
        describe=lambda sink: f"adds rows to the table {sink.options['dbtable']} by JDBC",
        needs=("url", "dbtable"),
    ),
    "function": SinkFormat(
        describe=lambda sink: f"calls {getattr(sink.function, '__name__', 'its function')} with each batch",
        send=_send_to_function,
    ),
}


def format_of(sink: Sink) -> SinkFormat:
    kind = FORMATS[sink.format]
    is_weaker = sink.options.get("guarantee") == "at_least_once"
    return kind.weaker if kind.weaker is not None and is_weaker else kind


def describe_sink(sink: Sink) -> str:
    kind = format_of(sink)
    return f"{kind.describe(sink)}: {kind.guarantee}"


def keeps_state(sink: Sink | None) -> bool:
    """Whether a sink keeps the state of its flows itself; others have a Delta table that records batches."""
    return sink is not None and format_of(sink).open is not None
