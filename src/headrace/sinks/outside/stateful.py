"""Sinks that keep the state of their flows beside the rows: a transaction of theirs commits both.

A kind of sink gives transactions, the newest state, and the documents of its commits. The protocol is here.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self

from headrace.model.counts import BatchCounts
from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.protocol import (
    batch_metadata,
    check_fenced,
    check_opening,
    fenced,
    generation_metadata,
    is_held,
)
from headrace.sinks.target import (
    BatchStamp,
    BatchWriter,
    Committed,
    Followed,
    OpenedGeneration,
    SinkSpec,
    SinkStore,
    SplitRows,
    TryRows,
)
from headrace.state.facts import FENCED

_PAGE = 200
"""The number of commits that are read at once to find the newest batches."""


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """The state of the flows of a sink after a commit. `replaced`: by flow the checkpoint that its newest one
    has replaced, and the last batch of it whose rows the sink kept. `follows`: what holds for the rows of all
    queries that have written to the sink; ``None`` if nothing is known."""

    version: int = -1  # -1 before the first commit
    table_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    refreshing: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    follows: Followed | None = None

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Self:
        replaced = {flow: (old, at) for flow, (old, at) in value["replaced"].items()}
        follows = value.get("follows")
        if follows is not None:
            follows = Followed(**{**follows, "columns": tuple(follows["columns"])})
        return cls(**{**value, "replaced": replaced, "follows": follows})

    def kept(self) -> dict[str, Any]:
        """What a system keeps of the state, as JSON; `of_json` reads it. The second part of the id is that of
        the rows which are there."""
        return {**asdict(self), "table_id": self.table_id.split("/")[0]}

    def fenced(self, flow: str) -> tuple[str, int] | None:
        return self.replaced.get(flow)

    def last_batch(self, checkpoint: str) -> int:
        """The last batch that the sink holds of a checkpoint; -1 if none."""
        return self.transactions.get(checkpoint, -1)

    def with_rows(self, follows: Followed | None, *, clear: bool = False) -> SinkState:
        """The state once rows of a query are added to those that are there."""
        is_first = clear or not self.checkpoints
        return replace(self, follows=follows if is_first else self.follows and self.follows.common(follows))

    def with_batch(self, checkpoint: str, batch: int) -> SinkState:
        return replace(self, transactions={**self.transactions, checkpoint: batch})

    def with_generation(self, opened: OpenedGeneration) -> SinkState:
        """The state after the opening of a generation; raises the refusals of the protocol."""
        flow, fences, is_clear = opened.flow, opened.opening.fences, opened.opening.reason == "full-refresh"
        check_opening(opened, self.checkpoints.get(flow))
        replaced, transactions = dict(self.replaced), dict(self.transactions)
        replaced.pop(flow, None)
        if fences is not None and fences != opened.checkpoint:
            held = self.last_batch(fences)
            check_fenced(opened, held)
            replaced[flow] = (fences, -1 if is_clear else held)
            transactions[fences] = FENCED
        if opened.opening.positions is not None:
            transactions[opened.checkpoint] = 0
        kept = {name: one for name, one in self.checkpoints.items() if name != opened.renamed_from}
        return replace(
            self,
            refreshing=self.refreshing if opened.refreshing is None else opened.refreshing,
            checkpoints={**kept, flow: opened.checkpoint},
            transactions=transactions,
            replaced=replaced,
        )


class SinkTransaction(Protocol):
    """A transaction of a sink that holds off all others. `state`: the state before it."""

    state: SinkState

    def open(self) -> None:
        """Called when a new checkpoint begins to feed the sink."""
        return

    def clear(self) -> None:
        """Remove all rows of the sink."""

    def record(self, state: SinkState, document: Mapping[str, Any]) -> None:
        """Record the state after the transaction, and what its commit says; the transaction commits both."""


class _Undone(Exception):
    """Undoes a transaction that only tries rows."""


class StatefulSink(SinkStore, ABC):
    """A sink whose transactions commit rows and state together."""

    def __init__(self, spec: SinkSpec) -> None:
        self.spec = spec

    @abstractmethod
    def transaction(self) -> AbstractContextManager[SinkTransaction]:
        """A transaction, which commits at the end of the context and undoes all of it after an error."""

    @abstractmethod
    def documents(self, first: int, last: int) -> Iterable[Mapping[str, Any]]:
        """What the commits from a version until another one have recorded, in order, as `record` got them."""

    @abstractmethod
    def writer(self, session: SparkSession, stamp: BatchStamp, held: int) -> StatefulWriter:
        """Begin a batch that the sink does not hold."""

    @abstractmethod
    def state(self) -> SinkState | None: ...

    def known_state(self) -> SinkState:
        """The newest state, as far as this process knows; the commit of a batch meets a newer one."""
        return self.state() or SinkState()

    def finish_refresh(self) -> None:
        with self.transaction() as transaction:
            self.record(transaction, replace(transaction.state, refreshing=None), {})

    def mark(self, version: int) -> str | None:
        found = next(iter(self.documents(version, version)), None)
        return None if found is None else str(found["mark"])

    def commits(
        self, first: int, last: int | None = None, *, others: bool = True
    ) -> Iterator[Mapping[str, Any]]:
        for one in self.documents(first, FENCED if last is None else last):
            if "headrace" in one:
                yield one

    def newest_batches(self, after: int = -1) -> Iterator[Mapping[str, Any]]:
        known = self.span
        for end in range(known.stop - 1, max(after, known.start - 1), -_PAGE):
            found = list(self.commits(max(after + 1, known.start, end - _PAGE + 1), end))
            yield from (one for one in reversed(found) if "batch" in one)

    def remove_strays(self, flow: str, found: Callable[[], object]) -> None:
        """A commit is part of the sink or does not exist."""

    def begin(self, session: SparkSession, stamp: BatchStamp) -> BatchWriter | None:
        held = self.known_state().last_batch(stamp.checkpoint)
        return None if is_held(stamp, held, self.location) else self.writer(session, stamp, held)

    def trial(self, stamp: BatchStamp) -> TryRows:
        return partial(self.try_rows, stamp.flow)

    def try_rows(self, flow: str, session: SparkSession, rows: DataFrame) -> None:
        """Raise the error with which the sink refuses some rows of a flow; it keeps none of them."""
        stamp = BatchStamp(pipeline="", flow=flow, checkpoint="", batch=0, ranges=())
        split = SplitRows(accepted=rows)
        with self.writer(session, stamp, -1) as writer, suppress(_Undone):
            writer.stage(split)
            with self.transaction() as transaction:
                writer.apply(transaction, split)
                raise _Undone

    def open_generation(self, opened: OpenedGeneration) -> int:
        with self.transaction() as transaction:
            state = transaction.state.with_rows(self.spec.follows, clear=opened.clear).with_generation(opened)
            transaction.open()
            if opened.clear:
                transaction.clear()
            return self.record(transaction, state, generation_metadata(opened))

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        with self.transaction() as transaction:
            held = transaction.state.last_batch(stamp.checkpoint)
            if held < stamp.batch:
                self.record(transaction, transaction.state.with_batch(stamp.checkpoint, stamp.batch + 1), {})
        return held != stamp.batch

    @staticmethod
    def record(transaction: SinkTransaction, state: SinkState, metadata: Mapping[str, Any]) -> int:
        """Record the state after a transaction, and the metadata of its commit. Returns its version."""
        version = transaction.state.version + 1
        marks = {"version": version, "timestamp": int(time.time() * 1000), "mark": uuid.uuid4().hex}
        transaction.record(replace(state, version=version), {**metadata, **marks})
        return version


@dataclass
class StatefulWriter(BatchWriter, ABC):
    """Writes one batch: `stage` brings the rows near the sink, `apply` is a part of the transaction."""

    sink: StatefulSink
    stamp: BatchStamp
    held: int
    split: SplitRows | None = field(default=None, init=False)

    @abstractmethod
    def stage(self, rows: SplitRows) -> None: ...

    @abstractmethod
    def apply(self, transaction: Any, split: SplitRows) -> BatchCounts:
        """Write the rows within the transaction, and count them."""

    def write(self, rows: SplitRows) -> None:
        self.split = rows
        self.stage(rows)

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self.split is not None, "the batch is written first"
        with self.sink.transaction() as transaction:
            # Another driver may have committed a batch since this one began.
            last = transaction.state.last_batch(self.stamp.checkpoint)
            if last != self.held:
                raise fenced(self.stamp, last)
            counts = self.apply(transaction, self.split)
            stamp = self.stamp if ranges is None else replace(self.stamp, ranges=ranges)
            state = transaction.state.with_rows(self.sink.spec.follows)
            state = state.with_batch(stamp.checkpoint, stamp.batch)
            version = self.sink.record(transaction, state, batch_metadata(stamp, counts))
        return Committed(version=version, counts=counts)
