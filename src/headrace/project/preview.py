"""Rows of a query on what its sources hold now; nothing is written.

Every stream becomes a batch: the newest records of a topic, the newest files of a folder, a table as
it is. A table of the pipeline that does not exist yet is computed from its own query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace import errors
from headrace.contracts.changes import without_own_columns
from headrace.contracts.expectations import accepted, check_columns, count_of, is_passed, with_checks
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.errors import NOT_COMMITTED, did_you_mean
from headrace.model.declarations import (
    AutoCdcFlow,
    Dataset,
    Expectation,
    ExpectationCount,
    TemporaryView,
    snapshots_of,
)
from headrace.model.names import OPERATION, SEQUENCE, TRUNCATE, UPSERT, TableName, quoted_column, quoted_path
from headrace.model.queries import PythonQuery
from headrace.model.snapshots import Snapshots, StoredSnapshots
from headrace.observe.read import rows_html, rows_to_json, unknown_column
from headrace.plan.catalog import isolated_session
from headrace.plan.columns import paths
from headrace.plan.evaluate import evaluate, session_settings, shortened
from headrace.plan.modes import Bounded, TableAccess
from headrace.plan.names import find_dataset, quoted
from headrace.plan.snapshots import make_reader
from headrace.plan.stages import Declared, Plan
from headrace.plan.stored import StoredTable, load_stored
from headrace.run.failures import Failures
from headrace.runtime.gateway import new_frame, quiet
from headrace.runtime.lazy_pyspark import DataFrame, DataType, F, SparkSession, T
from headrace.sinks.delta.effects import newest_of_each_key
from headrace.sources.bad_records import CODE, BadRecords
from headrace.sources.delta.reader import as_inserts, changes_of
from headrace.sources.files.bad_files import explain_bad_file
from headrace.sources.records import CARRIED
from headrace.sources.registry import COORDINATES, kind_for
from headrace.sources.requests import Sampling, SourceRead, SourceSeen, Systems

_EXAMPLES = 3  # the number of bad records that a preview shows for each reason
_PLAIN = (
    *("boolean", "byte", "short", "integer", "long", "float", "double", "decimal"),
    *("string", "char", "varchar", "date"),
)
"""The types whose Python values are the same, no matter how Spark passes them on."""


@dataclass(frozen=True, kw_only=True)
class PreviewedBadRecords:
    name: str  # the reason, such as ``RECORD_UNPARSEABLE``
    records: int
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Preview:
    dataset: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool  # whether the query has more rows than the limit
    sources: tuple[SourceSeen, ...]
    # How many of the computed rows each expectation passes and fails. Rows that an expectation rejects are
    # not among `rows`.
    expectations: tuple[ExpectationCount, ...] = ()
    # The records that have no rows, by reason; a run would quarantine them.
    bad_records: tuple[PreviewedBadRecords, ...] = ()

    def __repr__(self) -> str:
        return f"<Preview of {self.dataset}: {len(self.rows):,} x {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return rows_html(self.dataset, self.columns, self.rows, is_cut=self.is_cut)

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            **rows_to_json(self.columns, self.types, self.rows),
            "cut": self.is_cut,
            "sources": [source.to_json() for source in self.sources],
            "expectations": [one.to_json() for one in self.expectations],
            "bad_records": [asdict(one) for one in self.bad_records],
        }


def find_previewed(name: str, plan: Plan) -> tuple[str, tuple[Declared, ...]]:
    """The queries behind a name: those of a dataset, else that of a flow."""
    target = str(plan.project.table_name(name)).casefold()
    for dataset in plan.datasets:
        if str(dataset.name).casefold() == target:
            return dataset.name.short, plan.queries_of(dataset)
    for planned in plan.flows:
        if planned.flow.name.casefold() == name.casefold():
            return planned.flow.name, (planned.flow,)
    known = [dataset.name.short for dataset in plan.datasets] + [one.flow.name for one in plan.flows]
    raise errors.DatasetUnknownError(
        f"the pipeline {plan.project.name} declares no dataset or flow `{name}`",
        remedies=did_you_mean(name, known, "list its datasets:   headrace plan"),
        params={"dataset": name},
    )


def take_preview(
    spark: SparkSession,
    plan: Plan,
    name: str,
    systems: Systems,
    *,
    records: int,
    where: str | None = None,
    limit: int = 20,
    columns: Sequence[str] = (),
    log_file: Path | None = None,
) -> Preview:
    """Compute rows of a dataset's query, or of one flow's."""
    label, queries = find_previewed(name, plan)
    first = queries[0]
    target = first.name if isinstance(first, TemporaryView) else first.target
    dataset = next(one for one in plan.datasets if one.name == target)
    with isolated_session(spark, plan.project.database) as (session, catalog):
        for table in plan.tables_read:
            if load_stored(plan.project.storage, table) is not None:
                catalog.add_stored(table, plan.project.storage.table(table))
            else:
                catalog.copy_from(spark, table)
        looker = PreviewReader(session, plan, systems, records=records)
        found: list[BadRecords] = []
        active = ActivePipeline(plan.project, lambda: session, quarantines=True, bad_records=found)
        with (
            activate(active),
            session_settings(session, first.spark_conf, name=label, location=first.location),
        ):
            frame = looker.union(queries, partial(with_checks, expectations=dataset.expectations))
            own = check_columns(len(dataset.expectations))
            chosen = _selected(_filtered(frame, where, label, own), columns, label, dataset.expectations)
            fields = chosen.schema.fields[: len(chosen.columns) - len(dataset.expectations)]
            try:
                with quiet():
                    values = collect_columns(chosen.limit(limit + 1))
                    bad_records = tuple(_rejected(found))
            except Exception as error:
                failures = Failures(settings=plan.project, log_file=log_file)
                coded = explain_bad_file(error, first, None)
                coded = coded or failures.as_error(error, first, expectations=dataset.expectations)
                raise coded.with_(facts=[one for one in coded.facts if one != NOT_COMMITTED]) from error
        rows = tuple(zip(*values, strict=True))
        kept, counts = _judged(rows[:limit], dataset, len(fields))
        return Preview(
            dataset=label,
            columns=tuple(columns) or tuple(field.name for field in fields),
            types=tuple(type_name(field.dataType) for field in fields),
            rows=kept,
            is_cut=len(rows) > limit,
            sources=looker.seen,
            expectations=counts,
            bad_records=bad_records,
        )


def _rejected(found: Sequence[BadRecords]) -> Iterator[PreviewedBadRecords]:
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    for read in found:
        if read.frame.isStreaming:
            continue
        parts = dict.fromkeys(name for one in COORDINATES for name in one.names)
        place = [name for name in parts if name in read.frame.columns]
        value = F.substring("value", 1, CARRIED).alias("value")
        chosen = read.frame.select(CODE, *place, value, F.octet_length("value").alias("size"))
        counted = {row[CODE]: row["count"] for row in read.frame.groupBy(CODE).count().collect()}
        counts.update(counted)
        for row in chosen.limit(_EXAMPLES).collect() if counted else ():
            at = " ".join(f"{name} {row[name]}" for name in place)
            text = read.rules.explain(row[CODE], row["value"], row["size"])
            examples.setdefault(row[CODE], []).append(f"{at}: {text}")
    for name, count in sorted(counts.items()):
        yield PreviewedBadRecords(
            name=name, records=count, examples=tuple(examples.get(name, ())[:_EXAMPLES])
        )


def _judged(
    rows: Sequence[tuple[Any, ...]], dataset: Dataset, columns: int
) -> tuple[tuple[tuple[Any, ...], ...], tuple[ExpectationCount, ...]]:
    rules = dataset.expectations
    kept = [
        row[:columns]
        for row in rows
        if all(passed or not one.rejects for one, passed in zip(rules, row[columns:], strict=True))
    ]
    counts = []
    for index, one in enumerate(rules, columns):
        failed = sum(not row[index] for row in rows)
        counts.append(count_of(one, str(dataset.name), len(rows), failed))
    return tuple(kept), tuple(counts)


def _filtered(frame: DataFrame, where: str | None, label: str, own: Sequence[str]) -> DataFrame:
    from pyspark.errors import PySparkException

    if where is None:
        return frame
    try:
        with quiet():
            return frame.where(where)
    except PySparkException as error:
        if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            name = (error.getMessageParameters() or {}).get("objectName", "")
            raise unknown_column(
                name.replace("`", ""), list(paths(frame.drop(*own).schema.jsonValue())), label, where
            ) from error
        raise errors.ReadConditionInvalidError(
            f"the condition `{where}` cannot be evaluated",
            facts=tuple(shortened(str(error)).splitlines()[:3]),
            remedies=("see the options:   headrace preview --help",),
            params={"where": where},
        ) from error


def _selected(
    frame: DataFrame, columns: Sequence[str], label: str, expectations: Sequence[Expectation]
) -> DataFrame:
    """The columns of checked rows, and after them whether each expectation is passed."""
    own = check_columns(len(expectations))
    known = list(paths(frame.drop(*own).schema.jsonValue()))
    for column in columns:
        if column not in known:
            raise unknown_column(column, known, label)
    checks = [is_passed(index) for index in range(len(expectations))]
    if not columns:
        return frame.select("*", *checks).drop(*own)
    return frame.select(*(F.col(quoted_path(column)).alias(column) for column in columns), *checks)


def type_name(kind: DataType) -> str:
    value = kind.jsonValue()
    return value if isinstance(value, str) else str(value["type"])


def collect_columns(frame: DataFrame) -> list[list[Any]]:
    fields = frame.schema.fields
    if all(type_name(field.dataType).startswith(_PLAIN) for field in fields):
        # The import of PyArrow, and with it of NumPy, takes longer than a small query.
        rows = frame.collect()
        return [[row[number] for row in rows] for number in range(len(fields))]
    # By their places: a view may have two columns of one name.
    renamed = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    chosen = [
        F.col(name) if _is_arrow(field.dataType) else F.col(name).cast("string")
        for name, field in zip(renamed.columns, frame.schema.fields, strict=True)
    ]
    table = renamed.select(chosen).toArrow()
    return [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]


def _is_arrow(kind: DataType) -> bool:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import VariantType

    try:
        to_arrow_type(kind, timezone="UTC")
    except Exception:
        # Spark has types that Arrow lacks, and says so by several errors.
        return False
    return not isinstance(kind, VariantType)


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

    def union(self, queries: Sequence[Declared], treat: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """The rows of one query, or of all flows of one table."""
        frames = [treat(self._query(query)) for query in queries]
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
            raise errors.SourceUnsupportedError(
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
        dataset = find_dataset(self._datasets, access.name, access.parts)
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
            schema = T.StructType.fromJson(dict(self._plan.schemas[dataset.name]))
            return new_frame(self._session, [], schema)
        if dataset.name not in self._computed:
            self._computing.append(dataset.name)
            try:
                queries = self._plan.queries_of(dataset)
                frame = self.union(queries, partial(accepted, expectations=dataset.expectations))
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
