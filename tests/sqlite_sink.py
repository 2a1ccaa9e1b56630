"""A format of sinks in one module and one line: rows and the state of their flows in an SQLite database.

Rows and (checkpoint, batch) are written in one transaction. A row of a sink with keys stays as a tombstone
after its key is deleted, so that older records are known.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.changes import DELETE, OPERATION, SEQUENCE
from headrace.model.counts import RowChanges
from headrace.sinks.delta.effects import RECORDS, newest_of_each_key
from headrace.sinks.protocol import (
    batch_metadata,
    check_fenced,
    check_opening,
    fenced,
    generation_metadata,
    is_held,
)
from headrace.sinks.target import (
    FORMATS,
    BatchStamp,
    BatchWriter,
    Committed,
    OpenedGeneration,
    SinkFormat,
    SinkSpec,
    SplitRows,
)
from headrace.state.facts import FENCED

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from headrace.model.ranges import SourceRange

_TABLES = """
CREATE TABLE target (id TEXT, refreshing TEXT);
CREATE TABLE flows (flow TEXT PRIMARY KEY, checkpoint TEXT, fenced TEXT, fenced_at INTEGER);
CREATE TABLE checkpoints (checkpoint TEXT PRIMARY KEY, batch INTEGER);
CREATE TABLE commits (version INTEGER PRIMARY KEY, mark TEXT, said TEXT);
CREATE TABLE rows (key TEXT PRIMARY KEY, sequence TEXT, row TEXT);
"""


def between(step: str) -> None:
    """Called between the statements of a batch, and after its commit; a test replaces it."""


@dataclass(frozen=True, kw_only=True)
class SqliteState:
    """The state of the flows of a database."""

    version: int
    table_id: str
    refreshing: str | None
    checkpoints: Mapping[str, str]
    transactions: Mapping[str, int]
    replaced: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def fenced(self, flow: str) -> tuple[str, int] | None:
        return self.replaced.get(flow)


class SqliteSink:
    """A sink in a database of its own."""

    def __init__(self, spec: SinkSpec) -> None:
        self.spec = spec
        self.location = spec.options["path"]

    def check(self) -> None:
        if not Path(self.location).parent.is_dir():
            raise FileNotFoundError(self.location)

    def create(self) -> None:
        with self.transaction() as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'target'").fetchone():
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO target VALUES (?, NULL)", [uuid.uuid4().hex])
                _log(database, {})

    def finish_refresh(self) -> None:
        with self.transaction() as database:
            database.execute("UPDATE target SET refreshing = NULL")

    def state(self) -> SqliteState | None:
        if not Path(self.location).exists():
            return None
        with self.transaction() as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'target'").fetchone():
                return None
            ((table_id, refreshing),) = database.execute("SELECT id, refreshing FROM target")
            ((version,),) = database.execute("SELECT max(version) FROM commits")
            flows = database.execute("SELECT flow, checkpoint, fenced, fenced_at FROM flows").fetchall()
            return SqliteState(
                version=version,
                table_id=table_id,
                refreshing=refreshing,
                checkpoints={flow: checkpoint for flow, checkpoint, _, _ in flows},
                transactions=dict(database.execute("SELECT checkpoint, batch FROM checkpoints")),
                replaced={flow: (old, at) for flow, _, old, at in flows if old is not None},
            )

    @property
    def span(self) -> range:
        with self.transaction() as database:
            ((first, last),) = database.execute("SELECT min(version), max(version) FROM commits")
        return range(first, last + 1)

    def mark(self, version: int) -> str | None:
        with self.transaction() as database:
            found = database.execute("SELECT mark FROM commits WHERE version = ?", [version]).fetchone()
        return None if found is None else str(found[0])

    def commits(
        self, first: int, last: int | None = None, *, others: bool = True
    ) -> Iterator[Mapping[str, Any]]:
        end = FENCED if last is None else last
        with self.transaction() as database:
            asked = "SELECT version, said FROM commits WHERE version BETWEEN ? AND ? ORDER BY version"
            found = database.execute(asked, [first, end]).fetchall()
        yield from ({**json.loads(said), "version": version} for version, said in found if said != "{}")

    def newest_batches(self, after: int = -1) -> Iterator[Mapping[str, Any]]:
        yield from (one for one in reversed(list(self.commits(after + 1))) if "batch" in one)

    def remove_strays(self, flow: str, found: Callable[[], object]) -> None:
        """A commit is part of the database or does not exist."""

    def begin(self, session: SparkSession, stamp: BatchStamp) -> SqliteWriter | None:
        with self.transaction() as database:
            held = _held(database, stamp.checkpoint)
        return None if is_held(stamp, held, self.location) else SqliteWriter(self, stamp, held)

    def open_generation(self, opened: OpenedGeneration) -> int:
        flow, fences = opened.flow, opened.opening.fences
        with self.transaction() as database:
            now = database.execute("SELECT checkpoint FROM flows WHERE flow = ?", [flow]).fetchone()
            check_opening(opened, None if now is None else now[0])
            old, kept = None, -1
            if fences is not None and fences != opened.checkpoint:
                held = _held(database, fences)
                check_fenced(opened, held)
                old, kept = fences, -1 if opened.opening.reason == "full-refresh" else held
                _hold(database, fences, FENCED)
            if opened.renamed_from is not None:
                database.execute("DELETE FROM flows WHERE flow = ?", [opened.renamed_from])
            new = [flow, opened.checkpoint, old, kept]
            database.execute("INSERT OR REPLACE INTO flows VALUES (?, ?, ?, ?)", new)
            if opened.opening.positions is not None:
                _hold(database, opened.checkpoint, 0)
            if opened.clear:
                database.execute("DELETE FROM rows")
            if opened.refreshing is not None:
                database.execute("UPDATE target SET refreshing = ?", [opened.refreshing])
            between("opening")
            return _log(database, generation_metadata(opened))

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        with self.transaction() as database:
            held = _held(database, stamp.checkpoint)
            if held < stamp.batch:
                _hold(database, stamp.checkpoint, stamp.batch + 1)
        return held != stamp.batch

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.location, timeout=60, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")


class SqliteWriter(BatchWriter):
    """Writes one batch: the rows are collected first, then written with its number in one transaction."""

    def __init__(self, sink: SqliteSink, stamp: BatchStamp, held: int) -> None:
        self._sink = sink
        self._stamp = stamp
        self._held = held
        self._split: SplitRows | None = None
        self._rows: list[Row] = []

    def write(self, rows: SplitRows) -> None:
        keys, self._split = self._sink.spec.keys, rows
        self._rows = (newest_of_each_key(rows.accepted, keys) if keys else rows.accepted).collect()

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self._split is not None, "the batch is written first"
        stamp = self._stamp if ranges is None else replace(self._stamp, ranges=ranges)
        with self._sink.transaction() as database:
            if _held(database, stamp.checkpoint) != self._held:
                raise fenced(stamp)
            if self._sink.spec.keys:
                changes = self._apply(database)
                accepted = sum(row[RECORDS] for row in self._rows)
                counts = replace(self._split.counts(accepted), kind="merge", changes=changes)
            else:
                for row in self._rows:
                    self._put(database, uuid.uuid4().hex, None, row)
                counts = self._split.counts(len(self._rows))
            between("rows")
            _hold(database, stamp.checkpoint, stamp.batch)
            version = _log(database, batch_metadata(stamp, counts))
            between("batch")
        between("commit")
        return Committed(version=version, counts=counts)

    def _apply(self, database: sqlite3.Connection) -> RowChanges:
        done = dict.fromkeys(("inserted", "updated", "deleted"), 0)
        for row in self._rows:
            key = json.dumps([row[name] for name in self._sink.spec.keys], default=str)
            found = database.execute("SELECT sequence, row FROM rows WHERE key = ?", [key]).fetchone()
            if found is not None and _order(row[SEQUENCE]) <= _order(json.loads(found[0])):
                continue
            had = found is not None and found[1] is not None
            is_delete = row[OPERATION] == DELETE
            self._put(database, key, row[SEQUENCE], None if is_delete else row)
            if had or not is_delete:
                done["deleted" if is_delete else "updated" if had else "inserted"] += 1
        superseded = sum(row[RECORDS] for row in self._rows) - sum(done.values())
        return RowChanges(**done, superseded=superseded)

    def _put(self, database: sqlite3.Connection, key: str, sequence: Any, row: Row | None) -> None:
        names = [one["name"] for one in self._sink.spec.schema["fields"] if one["name"] != SEQUENCE]
        text = None if row is None else json.dumps({name: row[name] for name in names}, default=str)
        values = [key, json.dumps(sequence), text]
        database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)


def _order(sequence: Any) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in sequence]


def _held(database: sqlite3.Connection, checkpoint: str) -> int:
    found = database.execute("SELECT batch FROM checkpoints WHERE checkpoint = ?", [checkpoint]).fetchone()
    return -1 if found is None else int(found[0])


def _hold(database: sqlite3.Connection, checkpoint: str, batch: int) -> None:
    database.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?)", [checkpoint, batch])


def _log(database: sqlite3.Connection, said: Mapping[str, Any]) -> int:
    ((version,),) = database.execute("SELECT coalesce(max(version) + 1, 0) FROM commits")
    text = json.dumps({**said, "timestamp": int(time.time() * 1000)} if said else {})
    database.execute("INSERT INTO commits VALUES (?, ?, ?)", [version, uuid.uuid4().hex, text])
    return int(version)


FORMATS["sqlite"] = SinkFormat(
    describe=lambda sink: f"writes to the database {sink.options['path']}",
    guarantee="exactly once",
    applies=frozenset({"append", "changes"}),
    needs=("path",),
    open=SqliteSink,
)
