"""Writes a batch into PostgreSQL: tasks copy the rows, and a transaction applies them."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.counts import BatchCounts, RowChanges
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.sinks.outside.by_key import IS_DELETE, JSON_OPTIONS, PROBLEM, RECORDS
from headrace.sinks.outside.postgres.database import Database, first_line
from headrace.sinks.outside.stateful import StatefulWriter
from headrace.sinks.target import SplitRows

if TYPE_CHECKING:
    from psycopg.sql import Composable

    from headrace.sinks.outside.postgres.sink import PostgresTransaction

_ATTEMPT = "headrace_attempt"
"""The column of a staging table with the attempt of a task that has copied a row."""
_DONE = pa.schema({"attempt": pa.string(), "rows": pa.int64(), "records": pa.int64(), "problem": pa.string()})


@dataclass
class PostgresWriter(StatefulWriter):
    """Writes one batch. Each task copies its rows in a transaction of its own. Only the rows of attempts that
    have ended well are applied: Spark repeats a task whose executor is lost, and the lost one may go on."""

    database: Database
    _staged: list[Mapping[str, Any]] = field(default_factory=list, init=False)

    def stage(self, rows: SplitRows) -> None:
        database, by_key = self.database, self.database.rows
        wanted = by_key.newest(rows.accepted) if by_key.keys else rows.accepted
        frame = wanted.select(*(_copied(wanted, name) for name in by_key.columns), *self._marks())
        made = self._sql(
            "DROP TABLE IF EXISTS {schema}.{staging}; CREATE UNLOGGED TABLE {schema}.{staging} AS "
            "SELECT {names}, false AS {is_delete}, ''::text AS {attempt} FROM {target} LIMIT 0"
        )
        with database.connect() as connection:
            connection.execute(made)
        copy = CopyTask(
            conninfo=database.conninfo, statement=self._sql("COPY {schema}.{staging} FROM STDIN").as_string()
        )
        done = "attempt string, rows long, records long, problem string"
        self._staged = [one.asDict() for one in frame.mapInArrow(copy, done).collect()]
        for text in filter(None, (one["problem"] for one in self._staged)):
            problem = json.loads(text)
            if "row" in problem:
                raise by_key.refused(database.spec, problem["reason"], problem["row"])
            if problem["is_away"]:
                raise database.unavailable(problem["message"])
            raise database.refused(problem["message"], problem["place"])

    def _marks(self) -> list[Column]:
        if self.database.rows.keys:
            return [F.col(IS_DELETE), F.col(RECORDS), F.col(PROBLEM)]
        problem = F.lit(None).cast("string").alias(PROBLEM)
        return [F.lit(False).alias(IS_DELETE), F.lit(1).cast("long").alias(RECORDS), problem]

    def _sql(self, text: str, **names: Any) -> Any:
        # The next batch of the flow removes the table that an interrupted one has left.
        flow = f"{self.database.key} {self.stamp.flow}"
        staging = f"headrace_staged_{hashlib.sha256(flow.encode()).hexdigest()[:20]}"
        stored = list(self.database.stored_names.values())
        named = {"staging": staging, "names": stored, "is_delete": IS_DELETE, "attempt": _ATTEMPT}
        return self.database.sql(text, **named, **names)

    def apply(self, transaction: PostgresTransaction, split: SplitRows) -> BatchCounts:
        database, execute, sql = self.database, transaction.connection.execute, self._sql
        attempts = [[one["attempt"] for one in self._staged]]
        records = sum(one["records"] for one in self._staged)
        ours = "FROM {schema}.{staging} s WHERE s.{attempt} = ANY(%s)"
        ((there,),) = execute(sql("SELECT count(*) " + ours), attempts)
        if there != sum(one["rows"] for one in self._staged):
            raise database.unavailable("it has lost rows that were copied for the batch")
        deleted = 0
        keys = {f"key{number}": key for number, key in enumerate(database.stored_keys)}
        same = " AND ".join(f"t.{{{name}}} = s.{{{name}}}" for name in keys)
        if database.rows.is_feed:
            using = ours.replace("FROM", "USING", 1)
            removed = sql(f"DELETE FROM {{target}} t {using} AND s.{{is_delete}} AND {same}", **keys)
            deleted = execute(removed, attempts).rowcount
        rows = sql("SELECT {names} " + ours + " AND NOT s.{is_delete}")
        held = 0
        if database.rows.keys:
            asked = sql(
                f"SELECT count(*) FROM {{target}} t JOIN {{rows}} ON {same}", rows=_staged(rows), **keys
            )
            ((held,),) = execute(asked, attempts)
        ((wanted,),) = execute(sql("SELECT count(*) FROM {rows}", rows=_staged(rows)), attempts)
        written = execute(database.insert(database.stored_names.values(), rows), attempts).rowcount
        inserted = min(wanted - held, written)
        execute(sql("DROP TABLE {schema}.{staging}"))
        counts = replace(split.counts(records), kind="send")
        if not database.rows.keys:
            return counts
        changes = RowChanges(
            inserted=inserted,
            updated=written - inserted,
            deleted=deleted,
            superseded=records - written - deleted,
        )
        return replace(counts, changes=changes)


@dataclass(frozen=True, kw_only=True)
class CopyTask:
    """The function of a task: copies its rows in one transaction, and gives its attempt and its counts."""

    conninfo: str
    statement: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import psycopg

        attempt, rows, records, problem = uuid.uuid4().hex, 0, 0, None
        try:
            with (
                psycopg.connect(self.conninfo) as connection,
                connection.cursor() as cursor,
                cursor.copy(self.statement) as copy,
            ):
                for batch in batches:
                    problem = problem or _problem(batch)
                    rows += batch.num_rows
                    records += pc.sum(batch[RECORDS]).as_py() or 0
                    columns = (one.to_pylist() for one in batch.drop_columns([RECORDS, PROBLEM]).columns)
                    for row in zip(*columns, strict=True):
                        copy.write_row((*row, attempt))
        except psycopg.Error as error:
            place = error.diag.context or error.diag.message_detail or ""
            is_away = isinstance(error, psycopg.OperationalError)
            problem = json.dumps({"is_away": is_away, "message": first_line(error), "place": place})
        except (ValueError, OverflowError) as error:
            # Python has no dates and times before the year 1 and after 9999.
            problem = json.dumps({"is_away": False, "message": first_line(error), "place": ""})
        done = {"attempt": attempt, "rows": rows, "records": records, "problem": problem}
        yield pa.RecordBatch.from_pylist([done], _DONE)


def _staged(rows: Composable) -> Composable:
    from psycopg import sql

    return sql.SQL("({}) s").format(rows)


def _problem(batch: pa.RecordBatch) -> str | None:
    """The first row that cannot be written by its key, as JSON."""
    bad = batch.filter(pc.is_valid(batch[PROBLEM])).slice(0, 1).to_pylist()
    return json.dumps({"reason": bad[0][PROBLEM], "row": bad[0]}, default=str) if bad else None


def _copied(rows: DataFrame, name: str) -> Column:
    """A column as psycopg can write it."""
    kind, value = rows.schema[name].dataType.jsonValue(), F.col(quoted_column(name))
    if kind == "variant" or not isinstance(kind, str):
        return F.to_json(value, JSON_OPTIONS).alias(name)
    return value
