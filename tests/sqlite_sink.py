"""A format of sinks in one module and one line: rows and the state of their flows in an SQLite database.

Rows and (checkpoint, batch) are written in one transaction. A row of a sink with keys stays as a tombstone
after its key is deleted, so that older records are known.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.counts import BatchCounts, RowChanges
from headrace.model.names import DELETE, OPERATION, SEQUENCE
from headrace.sinks.delta.effects import RECORDS, newest_of_each_key
from headrace.sinks.outside.stateful import SinkState, SinkTransaction, StatefulSink, StatefulWriter
from headrace.sinks.target import FORMATS, BatchStamp, SinkFormat, SplitRows

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_TABLES = """
CREATE TABLE target (state TEXT);
CREATE TABLE commits (version INTEGER PRIMARY KEY, document TEXT);
CREATE TABLE rows (key TEXT PRIMARY KEY, sequence TEXT, row TEXT);
"""


def between(step: str) -> None:
    """Called between the statements of a batch; a test replaces it."""


@dataclass(kw_only=True)
class SqliteTransaction(SinkTransaction):
    """A transaction of the database."""

    database: sqlite3.Connection
    state: SinkState

    def clear(self) -> None:
        self.database.execute("DELETE FROM rows")

    def record(self, state: SinkState, document: Mapping[str, Any]) -> None:
        between("opening" if "opens" in document else "rows")
        self.database.execute("UPDATE target SET state = ?", [json.dumps(state.kept())])
        self.database.execute("INSERT INTO commits VALUES (?, ?)", [state.version, json.dumps(document)])
        between("batch")


class SqliteSink(StatefulSink):
    """A sink in a database of its own."""

    @property
    def location(self) -> str:
        return self.spec.options["path"]

    def check(self) -> None:
        if not Path(self.location).parent.is_dir():
            raise FileNotFoundError(self.location)

    def create(self) -> None:
        with self.connect() as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'target'").fetchone():
                for statement in _TABLES.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO target VALUES (?)", [json.dumps(SinkState().kept())])

    def state(self) -> SinkState | None:
        if not Path(self.location).exists():
            return None
        with self.connect() as database:
            return _state(database)

    @property
    def span(self) -> range:
        with self.connect() as database:
            ((first, last),) = database.execute("SELECT min(version), max(version) FROM commits")
        return range(0) if first is None else range(first, last + 1)

    def documents(self, first: int, last: int) -> list[Mapping[str, Any]]:
        asked = "SELECT document FROM commits WHERE version BETWEEN ? AND ? ORDER BY version"
        with self.connect() as database:
            return [json.loads(text) for (text,) in database.execute(asked, [first, last])]

    def writer(self, session: SparkSession, stamp: BatchStamp, held: int) -> SqliteWriter:
        return SqliteWriter(sink=self, stamp=stamp, held=held)

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        with self.connect() as database:
            state = _state(database)
            assert state is not None, "a run creates the sink first"
            yield SqliteTransaction(database=database, state=state)
        between("commit")

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.location, timeout=60, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")


@dataclass
class SqliteWriter(StatefulWriter):
    """Writes one batch: the rows are collected first, then written with its number in one transaction."""

    sink: SqliteSink
    rows: list[Row] = field(default_factory=list)

    def stage(self, rows: SplitRows) -> None:
        keys = self.sink.spec.keys
        self.rows = (newest_of_each_key(rows.accepted, keys) if keys else rows.accepted).collect()

    def apply(self, transaction: SqliteTransaction, split: SplitRows) -> BatchCounts:
        if self.sink.spec.keys:
            changes = self._apply(transaction.database)
            accepted = sum(row[RECORDS] for row in self.rows)
            return replace(split.counts(accepted), kind="merge", changes=changes)
        for row in self.rows:
            self._put(transaction.database, uuid.uuid4().hex, None, row)
        return split.counts(len(self.rows))

    def _apply(self, database: sqlite3.Connection) -> RowChanges:
        done = dict.fromkeys(("inserted", "updated", "deleted"), 0)
        for row in self.rows:
            key = json.dumps([row[name] for name in self.sink.spec.keys], default=str)
            found = database.execute("SELECT sequence, row FROM rows WHERE key = ?", [key]).fetchone()
            if found is not None and _order(row[SEQUENCE]) <= _order(json.loads(found[0])):
                continue
            had = found is not None and found[1] is not None
            is_delete = row[OPERATION] == DELETE
            self._put(database, key, row[SEQUENCE], None if is_delete else row)
            if had or not is_delete:
                done["deleted" if is_delete else "updated" if had else "inserted"] += 1
        superseded = sum(row[RECORDS] for row in self.rows) - sum(done.values())
        return RowChanges(**done, superseded=superseded)

    def _put(self, database: sqlite3.Connection, key: str, sequence: Any, row: Row | None) -> None:
        names = [one["name"] for one in self.sink.spec.schema["fields"] if one["name"] != SEQUENCE]
        text = None if row is None else json.dumps({name: row[name] for name in names}, default=str)
        values = [key, json.dumps(sequence), text]
        database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", values)


def _order(sequence: Any) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in sequence]


def _state(database: sqlite3.Connection) -> SinkState | None:
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'target'").fetchone():
        return None
    ((text,),) = database.execute("SELECT state FROM target")
    return SinkState.of_json(json.loads(text))


FORMATS["sqlite"] = SinkFormat(
    describe=lambda sink: f"writes to the database {sink.options['path']}",
    guarantee="exactly once",
    applies=frozenset({"append", "changes"}),
    needs=("path",),
    open=SqliteSink,
)
