"""Replaces the sources of previewed queries: bounded batches of what the sources hold now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.contracts.changes import without_own_columns
from headrace.contracts.expectations import accepted
from headrace.errors import SourceUnsupportedError
from headrace.model.changes import OPERATION, SEQUENCE, TRUNCATE, UPSERT
from headrace.model.declarations import AutoCdcFlow, Dataset, snapshots_of
from headrace.model.names import TableName, quoted_column
from headrace.model.queries import PythonQuery
from headrace.model.snapshots import Snapshots, StoredSnapshots
from headrace.plan.evaluate import evaluate
from headrace.plan.modes import Bounded, TableAccess
from headrace.plan.names import quoted
from headrace.plan.snapshots import make_reader
from headrace.plan.stages import Declared, Plan
from headrace.plan.stored import StoredTable, load_stored
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.delta.effects import newest_of_each_key
from headrace.sources.answers import SourceSeen
from headrace.sources.delta.reader import as_inserts, changes_of
from headrace.sources.registry import kind_for
from headrace.sources.requests import Sampling, SourceRead
from headrace.sources.systems import Systems


class PreviewReader:
    """Builds queries over what their sources hold now."""

    def __init__(self, session: SparkSession, plan: Plan, systems: Systems, *, records: int) -> None:
        self._session = session
        self._plan = plan
        self._sampling = Sampling(systems, plan.project, records)
        self._storage = plan.project.storage
        self._datasets = {str(dataset.name).casefold(): dataset for dataset in plan.datasets}
        self._computed: dict[TableName, DataFrame] = {}
        self._computing: list[TableName] = []
        self._seen: dict[str, SourceSeen] = {}

    @property
    def seen(self) -> tuple[SourceSeen, ...]:
        return tuple(self._seen.values())

    def union(self, queries: Sequence[Declared]) -> DataFrame:
        """The rows of one query, or of all flows of one table."""
        frames = [self._query(query) for query in queries]
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionByName(frame, allowMissingColumns=True)
        return union

    def _query(self, query: Declared) -> DataFrame:
        mode = Bounded(sources=self._source, tables=self._table)
        if (snapshots := snapshots_of(query)) is not None:
            query = self._snapshot(query, snapshots)
        frame = evaluate(self._session, query, self._plan, mode)
        if frame.isStreaming:
            raise SourceUnsupportedError(
                f"`{query.name}` reads a stream that was built outside of its function",
                location=query.location,
                facts=["a preview can replace only the reads inside of query functions"],
                remedies=["move the read into the function"],
                params={"name": str(query.name)},
            )
        return frame

    def _snapshot(self, query: Declared, source: Snapshots) -> Declared:
        """The query of a flow that applies snapshots, with the rows of the newest one that can be read."""

        def rows() -> DataFrame:
            if isinstance(source, StoredSnapshots) and not source.is_path:
                return without_own_columns(self._session.read.table(source.name))
            project = self._plan.project
            return make_reader(query, self._plan.datasets, project, self._session).newest()

        return replace(query, query=PythonQuery(rows, query.query.location))

    # -- tables

    def _table(self, access: TableAccess) -> DataFrame | None:
        dataset = self._datasets.get(str(access.name).casefold())
        name = access.name if dataset is None else dataset.name
        stored = load_stored(self._storage, name)
        reason = None if dataset is None else self._reason_to_compute(dataset, stored)
        if dataset is not None and reason is not None:
            self._note(SourceSeen(kind="table", name=name.short, computed=reason))
            frame = self._compute(dataset)
            return as_inserts(frame) if access.changes else frame
        version = None if stored is None else stored.version
        self._note(SourceSeen(kind="table", name=name.short, version=version))
        if not access.streaming:
            # Spark reads the table from the session's catalog, with its options for time travel.
            return None
        if access.changes:
            return changes_of(self._session.read.table(quoted(name)), quoted(name), access.options)
        return self._session.read.table(quoted(name))

    def _reason_to_compute(self, dataset: Dataset, stored: StoredTable | None) -> str | None:
        if stored is None:
            return "the table does not exist yet"
        there = {field["name"].casefold() for field in stored.schema["fields"]}
        wanted = [field["name"] for field in self._plan.schemas[dataset.name]["fields"]]
        lacking = [name for name in wanted if name.casefold() not in there]
        return f"the table does not have {', '.join(lacking)} yet" if lacking else None

    def _compute(self, dataset: Dataset) -> DataFrame:
        if dataset.name in self._computing:
            # A query that looks up its own table finds nothing before the first run.
            from pyspark.sql.types import StructType

            schema = StructType.fromJson(dict(self._plan.schemas[dataset.name]))
            return new_frame(self._session, [], schema)
        if dataset.name not in self._computed:
            self._computing.append(dataset.name)
            try:
                queries = self._plan.queries_of(dataset)
                frame = accepted(self.union(queries), dataset.expectations)
                first = queries[0]
                has_rows = snapshots_of(first) is not None
                if isinstance(first, AutoCdcFlow) and not (has_rows or first.history or first.kept_if_null):
                    frame = current_rows(frame, first.keys)
                self._computed[dataset.name] = frame
            finally:
                self._computing.pop()
        return self._computed[dataset.name]

    # -- sources

    def _source(self, read: SourceRead) -> DataFrame | None:
        if not read.request.streaming:
            return None
        sample = kind_for(read.request.format).reader.sample(read, self._sampling)
        self._note(sample.seen)
        return sample.frame

    def _note(self, seen: SourceSeen) -> None:
        self._seen.setdefault(f"{seen.kind} {seen.name}", seen)


def current_rows(changes: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The rows of a table after all change records, which a run would apply to it."""
    complete = " AND ".join(f"{quoted_column(name)} IS NOT NULL" for name in keys)
    valid = changes.where(f"{SEQUENCE}.value IS NOT NULL AND ({OPERATION} = '{TRUNCATE}' OR ({complete}))")
    newest = newest_of_each_key(valid, keys)
    truncated = newest.where(F.col(OPERATION) == TRUNCATE).agg(F.max(SEQUENCE).alias("__headrace_truncated"))
    rows = newest.where(F.col(OPERATION) == UPSERT).crossJoin(F.broadcast(truncated))
    rows = rows.where(F.coalesce(F.col(SEQUENCE) > F.col("__headrace_truncated"), F.lit(True)))
    names = changes.columns[: changes.columns.index(OPERATION)]
    return rows.select(*map(quoted_column, names))
