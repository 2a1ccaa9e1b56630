"""Sinks without transactions, in which a key never goes back: each key keeps the version of its row.

A version is that of the table that the rows come from, within an epoch: a new checkpoint begins a new one.
A system applies a row only if it holds no newer one for the key. So a batch that is sent again changes
nothing, and a driver that stalled cannot bring old rows back. A deleted key keeps its version for some days.
The state of the flows is one document beside the rows. It is replaced only if no other driver has changed it.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from operator import and_
from typing import Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace import errors
from headrace.model.counts import BatchCounts
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sinks.outside.by_key import (
    IS_DELETE,
    JSON_OPTIONS,
    KEEP_OUT_OF_FEED,
    NOT_TEXT,
    PROBLEM,
    RECORDS,
    VERSION,
    RowsByKey,
    invalid,
    refused,
    unavailable,
    unknown_option,
)
from headrace.sinks.outside.stateful import SinkState, SinkTransaction, StatefulSink, StatefulWriter
from headrace.sinks.protocol import fenced
from headrace.sinks.target import BatchStamp, SinkSpec, SplitRows

KEPT = timedelta(days=3)
"""How long the system keeps the ranges of a batch. The storage keeps them, too."""
TOMBSTONE_S = 7 * 86_400
"""The seconds for which a deleted key keeps its version."""
OPTIONS = ("url", "keys")
_ID, _BODY = "__headrace_id", "__headrace_body"
_AT_ONCE = 500
"""Rows that are sent in one request."""
_KEY_TYPES = ("string", "byte", "short", "integer", "long", "date", "boolean", "decimal")
_DONE = pa.schema({"records": pa.int64(), "problem": pa.string()})


@dataclass(frozen=True, slots=True)
class Document:
    """The newest row of a key. `body`: its value; ``None`` if the key is deleted."""

    id: str
    version: int
    body: str | None


class SendError(Exception):
    """Rows could not be sent. `id`: the key of the row that the system refuses; ``None`` if it does not
    answer. `is_fenced`: a full refresh has begun meanwhile."""

    def __init__(self, text: str, id: str | None = None, *, is_fenced: bool = False) -> None:
        super().__init__(text)
        self.id, self.is_fenced = id, is_fenced


class Client(Protocol):
    """Sends rows to a system; tasks get copies of it. Each method raises `SendError`."""

    def send(self, documents: Iterable[Sequence[Document]], epoch: int, kept_from: int) -> None:
        """Apply each row, unless the system holds a newer one of its key."""

    def try_out(self, documents: Iterable[Sequence[Document]]) -> None:
        """Raise the error for rows that the system refuses; it keeps none of them."""


@dataclass(kw_only=True)
class Stored:
    """The document that a system keeps of a sink.

    Args:
        owner: The name of the sink.
        epoch: How many checkpoints have fed it.
        kept_from: The epoch of the last full refresh; the rows of earlier ones are removed.
        cleared: Equal to `kept_from` once they are removed.
        mark: What identifies the document to the system.
    """

    state: SinkState
    owner: str
    epoch: int = 1
    kept_from: int = 1
    cleared: int = 1
    mark: Any = None


class VersionedTransaction(SinkTransaction):
    """Replaces the document at the end, if nobody else has."""

    def __init__(self, sink: VersionedSink, stored: Stored) -> None:
        self.sink, self.stored, self.state = sink, stored, stored.state

    def open(self) -> None:
        # The new checkpoint may read another table, whose versions are lower.
        self.stored = replace(self.stored, epoch=self.stored.epoch + 1)

    def clear(self) -> None:
        # The rows are removed once the epoch is recorded: another driver may have opened the sink before.
        self.stored = replace(self.stored, kept_from=self.stored.epoch)

    def record(self, state: SinkState, document: Mapping[str, Any]) -> None:
        self.sink.replace_document(replace(self.stored, state=state), document)
        if self.stored.cleared < self.stored.kept_from:
            self.sink.finish_clearing()


class VersionedSink(StatefulSink):
    """A system that keeps the newest row of each key, and its version."""

    option_names: Sequence[str]
    forms: Sequence[tuple[str, str]] = ()  # the options for the form of the rows, with their defaults

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        unknown_option(spec, (*OPTIONS, *self.option_names))
        self.rows = RowsByKey.of(spec)
        if not (self.rows.is_feed and spec.reads_changes):
            what = "its rows have no version of a table, by which a key could never go back"
            remedy = "let the flow read a change feed:   hr.read_changes(<table>)"
            raise invalid(spec, what, "old rows could replace newer ones", remedy)
        kinds = self.types = {one["name"]: one["type"] for one in spec.schema["fields"]}
        for key in self.rows.keys:
            if not str(kinds[key]).startswith(_KEY_TYPES):
                what = f"values of its key `{key}` have no form that is always the same ({kinds[key]})"
                raise invalid(spec, what, None, f"cast it in the query:   CAST({key} AS STRING)")

    @property
    def form(self) -> str:
        """The keys and the form of the rows. It is a part of the id of the sink's rows: where it changes, the
        older rows need a full refresh."""
        options = [self.spec.options.get(name, default) for name, default in self.forms]
        return " ".join([",".join(self.rows.keys), *options])

    @property
    @abstractmethod
    def client(self) -> Client: ...

    def body(self) -> Column:
        """The value of a row, as a text."""
        return F.to_json(F.struct(*map(quoted_column, self.rows.columns)), JSON_OPTIONS)

    @abstractmethod
    def find_document(self) -> Stored | None:
        """What the system keeps where the sink has its rows; ``None`` if there is nothing."""

    def read_document(self) -> Stored | None:
        """What the system keeps of the sink; ``None`` if there is nothing."""
        stored = self.find_document()
        if stored is not None and stored.owner != str(self.spec.name):
            what = f"{self.location} belongs to the sink {stored.owner}"
            raise invalid(
                self.spec,
                what,
                "the versions of two tables cannot be compared",
                "choose another prefix or index",
            )
        return stored

    def new_document(self, cleared: int) -> Stored:
        return Stored(state=SinkState(), owner=str(self.spec.name), cleared=cleared)

    @abstractmethod
    def replace_document(self, stored: Stored, commit: Mapping[str, Any] | None) -> None:
        """Replace what the system keeps of the sink, and add what a commit says; call `taken` if the document
        is another than that of `stored.mark`."""

    @abstractmethod
    def remove_older(self, epoch: int) -> None:
        """Remove the rows of earlier epochs."""

    def finish_clearing(self) -> None:
        """Remove the rows from before the newest full refresh, if that is still to do."""
        stored = self.read_document()
        if stored is not None and stored.cleared < stored.kept_from:
            self.remove_older(stored.kept_from)
            self.replace_document(replace(stored, cleared=stored.kept_from), None)

    @contextmanager
    def transaction(self) -> Iterator[VersionedTransaction]:
        yield VersionedTransaction(self, self.open_document())

    def open_document(self) -> Stored:
        stored = self.read_document()
        if stored is None:
            raise self.unavailable("it has lost the state of the sink")
        return stored

    def state(self) -> SinkState | None:
        stored = self.read_document()
        return None if stored is None else stored.state

    def writer(self, session: SparkSession, stamp: BatchStamp, held: int) -> VersionedWriter:
        return VersionedWriter(sink=self, stamp=stamp, held=held)

    def try_rows(self, flow: str, session: SparkSession, rows: DataFrame) -> None:
        # A part of a batch can have the row before an update alone, which would delete the key.
        send_rows(self, rows, None)

    def unavailable(self, message: str) -> errors.SinkUnavailableError:
        return unavailable(self.spec, f"{self.location} does not answer: {message}")

    def taken(self) -> NoReturn:
        """Another driver has changed the state of the sink meanwhile: the flow is tried again."""
        raise self.unavailable("another driver has written to it at the same time")


@dataclass
class VersionedWriter(StatefulWriter):
    """Sends the rows of a batch, before the batch is committed; a repeated batch sends the same rows."""

    sink: VersionedSink
    _records: int = field(default=0, init=False)

    def stage(self, rows: SplitRows) -> None:
        stored = self.sink.open_document()
        # Rows of a batch that another driver has committed, or of a replaced checkpoint, are not sent.
        last = stored.state.last_batch(self.stamp.checkpoint)
        if last != self.held:
            raise fenced(self.stamp, last)
        self._records = send_rows(self.sink, rows.accepted, stored)

    def apply(self, transaction: Any, split: SplitRows) -> BatchCounts:
        return replace(split.counts(self._records), kind="send")


def send_rows(sink: VersionedSink, rows: DataFrame, stored: Stored | None) -> int:
    """Send the newest row of each key, in tasks. Returns the number of records. `stored`: ``None`` only tries
    whether the system takes the rows."""
    by_key, spec = sink.rows, sink.spec
    newest = by_key.newest(rows)
    given = [F.col(quoted_column(key)).cast("string") for key in by_key.keys]
    body = F.when(~F.col(IS_DELETE), sink.body())
    is_text = reduce(and_, (F.coalesce(F.is_valid_utf8(one), F.lit(True)) for one in (*given, body)))
    texts = [F.make_valid_utf8(one) for one in given]
    problem = F.coalesce(F.col(PROBLEM), F.when(~is_text, NOT_TEXT)).alias(PROBLEM)
    frame = newest.select(
        *(text.alias(f"key{number}") for number, text in enumerate(texts)),
        _joined(texts).alias(_ID),
        F.make_valid_utf8(body).alias(_BODY),
        *(VERSION, RECORDS),
        problem,
    )
    epochs = None if stored is None else (stored.epoch, stored.kept_from)
    task = SendTask(client=sink.client, epochs=epochs)
    done = [one.asDict() for one in frame.mapInArrow(task, "records long, problem string").collect()]
    for text in filter(None, (one["problem"] for one in done)):
        problem = json.loads(text)
        if "row" in problem:
            row = {key: problem["row"][f"key{number}"] for number, key in enumerate(by_key.keys)}
            raise by_key.refused(spec, problem["reason"], row)
        if problem["is_fenced"]:
            raise sink.unavailable("another driver has begun a full refresh")
        if problem["id"] is None:
            raise sink.unavailable(problem["message"])
        raise refused(spec, problem["message"], {"key": problem["id"]}, [KEEP_OUT_OF_FEED])
    return sum(one["records"] for one in done)


def _joined(texts: Sequence[Column]) -> Column:
    """The id of a key. Two keys of several columns never have the same one."""
    if len(texts) == 1:
        return texts[0]
    return F.concat_ws(
        ":", *(F.replace(F.replace(one, F.lit("%"), F.lit("%25")), F.lit(":"), F.lit("%3A")) for one in texts)
    )


@dataclass(frozen=True, kw_only=True)
class SendTask:
    """The function of a task: sends its rows, and gives the number of records, or the reason why not."""

    client: Client
    epochs: tuple[int, int] | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records, problem = 0, None

        def parts() -> Iterator[Sequence[Document]]:
            nonlocal records, problem
            for batch in batches:
                if (bad := batch.filter(pc.is_valid(batch[PROBLEM])).slice(0, 1)).num_rows:
                    row = bad.to_pylist()[0]
                    problem = {"reason": row[PROBLEM], "row": row}
                    return
                records += pc.sum(batch[RECORDS]).as_py() or 0
                for start in range(0, batch.num_rows, _AT_ONCE):
                    part = batch.slice(start, _AT_ONCE)
                    yield list(map(Document, *(part[name].to_pylist() for name in (_ID, VERSION, _BODY))))

        try:
            if self.epochs is None:
                self.client.try_out(parts())
            else:
                self.client.send(parts(), *self.epochs)
        except SendError as error:
            problem = {"message": str(error), "id": error.id, "is_fenced": error.is_fenced}
        text = None if problem is None else json.dumps(problem, default=str)
        yield pa.RecordBatch.from_pylist([{"records": records, "problem": text}], _DONE)
