"""Evaluates the queries of a plan while the pipeline is active, for runs, replays and tests on given rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline, FolderHook
from headrace.errors import DatasetUnknownError, FlowUnknownError, did_you_mean
from headrace.model.declarations import Flow, MaterializedView, StreamingTable, is_once, snapshots_of
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.model.remedies import Remedies
from headrace.model.texts import size_text
from headrace.plan.properties import SCD_TYPE
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table, load_checksum, newest_version

if TYPE_CHECKING:
    from headrace.plan.bounded import Treat
    from headrace.plan.modes import RangeHook, SourceHook
    from headrace.plan.resolver import FindTable
    from headrace.plan.snapshots import SnapshotReader
    from headrace.run.context import AsRecords, Queries
    from headrace.runtime.session import RunningSpark
    from headrace.sources.bad_records import BadRecords


@dataclass(frozen=True, kw_only=True)
class SourceOverrides:
    """How a pipeline runs on given rows instead of its sources."""

    # A session with a catalog of its own, into which the pipeline registers its tables.
    running: RunningSpark | None = None
    sources: SourceHook | None = None
    ranges: RangeHook | None = None
    # Gives the ranges of a batch in the offsets of the topics that are replaced.
    as_records: AsRecords = tuple
    folders: FolderHook | None = None
    # Called for each table that no file declares, before it is looked up in the storage.
    find_table: FindTable | None = None
    check: Callable[[Plan], None] = lambda _: None


REAL_SOURCES = SourceOverrides()


@dataclass(frozen=True)
class PlanQueries:
    settings: ProjectSettings
    plan: Plan
    session: Callable[[], SparkSession]
    overrides: SourceOverrides = REAL_SOURCES

    def all(self) -> Queries:
        from headrace.run.context import Queries

        return Queries(
            self.build,
            self.build_ranges,
            self.find_bad_records,
            self.reading_snapshots,
            self.build_once,
            self.sending,
            self.overrides.as_records,
        )

    def build(self, session: SparkSession, declared: Flow, record_limit: int | None = None) -> DataFrame:
        """Evaluate a query against the real tables."""
        from headrace.plan.evaluate import evaluate
        from headrace.plan.modes import Running
        from headrace.plan.snapshots import marker_stream
        from headrace.plan.sources import once_stream

        with self._active(session, quarantines=True):
            if snapshots_of(declared) is not None:
                log = SnapshotLog(self.settings.storage.snapshots(declared.target))
                return marker_stream(session, log.pattern, self._planned(declared).schema)
            if is_once(declared):
                return once_stream(session, self.settings.storage, self._planned(declared).schema)
            mode = Running(sources=self.overrides.sources, record_limit=record_limit)
            return evaluate(session, declared, self.plan, mode)

    def build_once(self, session: SparkSession, declared: Flow) -> DataFrame:
        """Evaluate the batch query of a flow that is applied once."""
        from headrace.plan.evaluate import evaluate
        from headrace.plan.modes import Running

        with self._active(session):
            return evaluate(session, declared, self.plan, Running(sources=self.overrides.sources))

    @contextmanager
    def sending(self, session: SparkSession) -> Iterator[None]:
        """Let the function of a sink use the pipeline's tables."""
        from headrace.plan.evaluate import sending

        with self._active(session), sending(session, self.plan):
            yield

    def build_ranges(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
        treat: Treat | None = None,
    ) -> DataFrame:
        """Evaluate a flow over given ranges."""
        with self._active(session, quarantines=True):
            is_test = self.overrides.sources is not None
            return self._evaluate_ranges(
                session, planned, ranges, checkpoint, leaves_others=is_test, treat=treat
            )

    def find_bad_records(
        self, session: SparkSession, planned: PlannedFlow, ranges: Sequence[SourceRange], checkpoint: Location
    ) -> Sequence[BadRecords]:
        found: list[BadRecords] = []
        with self._active(session, quarantines=True, bad_records=found):
            self._evaluate_ranges(session, planned, ranges, checkpoint, leaves_others=True)
        return [one for one in found if not one.frame.isStreaming]

    def build_records(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        records: DataFrame,
        found: list[BadRecords] | None = None,
    ) -> DataFrame:
        """Evaluate a flow over records that were kept."""
        from headrace.plan.bounded import evaluate_records

        # No sources are replaced here: the records are the sources.
        active = ActivePipeline(
            self.settings, lambda: session, quarantines=found is not None, bad_records=found
        )
        with activate(active):
            return evaluate_records(session, planned, self.plan, records)

    @contextmanager
    def reading_snapshots(self, planned: PlannedFlow) -> Iterator[SnapshotReader]:
        """Read the snapshots of a flow in the pipeline's session."""
        from headrace.plan.snapshots import make_reader

        with activate(ActivePipeline(self.settings, self.session)):
            yield make_reader(planned.flow, self.plan.datasets, self.settings, self.session())

    @contextmanager
    def _active(
        self, session: SparkSession, *, quarantines: bool = False, bad_records: list[BadRecords] | None = None
    ) -> Iterator[None]:
        active = ActivePipeline(
            self.settings,
            lambda: session,
            folders=self.overrides.folders,
            quarantines=quarantines,
            bad_records=bad_records,
        )
        with activate(active):
            yield

    def _planned(self, declared: Flow) -> PlannedFlow:
        return next(one for one in self.plan.flows if one.flow.name == declared.name)

    def _evaluate_ranges(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        ranges: Sequence[SourceRange],
        checkpoint: Location,
        *,
        leaves_others: bool,
        treat: Treat | None = None,
    ) -> DataFrame:
        from headrace.plan.bounded import evaluate_ranges

        return evaluate_ranges(
            session,
            planned,
            self.plan,
            ranges,
            checkpoint,
            leaves_others=leaves_others,
            treat=treat,
            stand_ins=self.overrides.ranges,
        )


def find_datasets(names: Iterable[str], plan: Plan) -> tuple[TableName, ...]:
    """The stored datasets that a user names."""
    if isinstance(names, str):
        names = [names]
    stored = [d.name for d in plan.datasets if isinstance(d, StreamingTable | MaterializedView)]
    known = [n.name for n in stored] + [str(n) for n in stored]
    found = []
    for text in names:
        name = plan.project.table_name(text)
        if name not in stored:
            raise DatasetUnknownError(
                f"the pipeline {plan.project.name} declares no table `{text}`",
                remedies=did_you_mean(text, known, "list its datasets:   headrace plan"),
                params={"dataset": text},
            )
        found.append(name)
    return tuple(found)


def select(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan of some datasets only; the tables that they read are not updated."""
    wanted = frozenset(find_datasets(names, plan))
    changes = None if plan.changes is None else tuple(one for one in plan.changes if one.dataset in wanted)
    return replace(plan, selected=wanted, changes=changes)


def check_remedies(remedies: Remedies, plan: Plan) -> None:
    known = [planned.flow.name for planned in plan.flows]
    for name in sorted(remedies.flows):
        if name not in known:
            raise FlowUnknownError(
                f"the pipeline {plan.project.name} declares no flow `{name}`",
                remedies=did_you_mean(name, known, f"its flows: {', '.join(known)}"),
                params={"flow": name},
            )


def find_index_notes(plan: Plan) -> Iterator[Note]:
    """A note for each table with changes by key whose index needs more memory than it may have."""
    opens = (stage for stage in plan.stages if isinstance(stage, OpenTableStage))
    stages = [stage for stage in opens if stage.properties.get(SCD_TYPE) == "1"]
    if not stages:
        return
    from headrace.run.targets import index_memory
    from headrace.sinks.delta.key_index import BYTES_PER_KEY
    from headrace.sinks.delta.table_index import memory_of

    limit, taken = index_memory(plan.project), 0
    for stage in stages if limit else ():
        path = plan.project.storage.table(stage.table.name)
        if not is_table(path):
            continue
        rows = _count_rows(path)
        if rows is None:
            continue
        needed = memory_of(rows)
        if needed + taken <= limit:
            taken += rows * BYTES_PER_KEY
        else:
            others = f"; the indexes of other tables need {size_text(taken)}" if taken else ""
            yield Note(
                level="note",
                text=f"{stage.table.name.short} has {rows:,} rows: the index of its keys needs "
                f"{size_text(needed)} while it is built, and all indexes may have "
                f"{size_text(limit)}{others}. Each batch reads the keys of the whole table instead, which is "
                "slower",
                location=stage.table.location,
                remedy=f"give it more memory:   upsert: {{index_memory: {-(-(needed + taken) // 2**30)}g}}",
            )


def _count_rows(table: Location) -> int | None:
    """The number of rows by the statistics of the log; ``None`` if they do not have it."""
    import pyarrow as pa

    try:
        read = open_delta(table)
        added = pa.table(read.get_add_actions())
        numbers = added["num_records"].to_pylist() if "num_records" in added.column_names else [None]
        deleted = load_checksum(table, newest_version(table)).get("numDeletedRecordsOpt") or 0
    except Exception:
        # A note is worth no failure of the plan; a table that cannot be read is refused elsewhere.
        return None
    return None if None in numbers and added.num_rows else sum(filter(None, numbers)) - int(deleted)
