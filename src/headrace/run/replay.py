"""A replay of a flow: takes rejected rows through today's code, and moves each into the table exactly once.

1. One commit on the quarantine marks the rows as replaying, with the name of the replay. Rows that are
   rejected again stay, with their new reasons.
2. One commit on the table adds the rows. The replays of a flow have one transaction id with rising numbers.
3. One commit on the quarantine marks the rows as replayed.

If the process ends in between, the next replay finds out whether the table holds the number: then it repeats
step 3. Otherwise it fences the number, and the rows are quarantined again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol

from headrace.contracts.expectations import RowSplit, is_passed, is_unresolved, with_checks
from headrace.contracts.rejected import ID, PROBLEM, REASONS, Rejected, has_record, row_as_json, rows_of_json
from headrace.errors import FlowFailedError, ReplayImpossibleError
from headrace.model.declarations import AutoCdcFlow, Expectation
from headrace.model.names import quoted_path
from headrace.plan.sources import can_evaluate_records
from headrace.plan.stages import Coordinates, PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.failpoints import reach
from headrace.run.failures import Failures
from headrace.run.narrowing import RAISED, find_reason, union
from headrace.run.targets import flow_target, side_tables
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession, StructType
from headrace.sinks.delta.commit import mark_replaying, settle_replay
from headrace.sinks.delta.row_states import unsettled_replays
from headrace.sinks.target import BatchStamp, Committed, SplitRows
from headrace.sources.bad_records import CODE, BadRecords
from headrace.sources.records import CARRIED
from headrace.sources.registry import COORDINATES
from headrace.state.lease import Lease
from headrace.storage.location import Location
from headrace.storage.table_log import replay_transaction

if TYPE_CHECKING:
    import pyarrow as pa


_SEARCHED = 10
"""Records on which the query fails that are searched for one by one; the others wait for another replay."""


_EXPLAINED = 10_000
"""Bad records that are found at once; any further ones are searched for."""
_IDENTIFYING = (*dict.fromkeys(name for one in COORDINATES for name in one.names), "value")
"""What two records of a source have in common only if they are the same, or bad for the same reason."""
_NO_ROW = "the query gives no row for the record"


class BuildRecords(Protocol):
    """Evaluates a flow's query as a batch over records that were kept; see `plan.bounded`.

    A bad record stops the query. With ``found`` the reads leave bad records out, and add them there.
    """

    def __call__(
        self,
        session: SparkSession,
        planned: PlannedFlow,
        records: DataFrame,
        found: list[BadRecords] | None = None,
    ) -> DataFrame: ...


@dataclass
class Outcome:
    """The result of a replay. `left`: the ids of rows that were not tried, since too many others have
    failed, or since they cannot be tried. `parts`: the rows of the query for the rows that leave, cached."""

    taken: list[str] = field(default_factory=list)  # the ids of the rows that leave the quarantine
    rejected: list[Rejected] = field(default_factory=list)  # the rows that stay, with their new reasons
    left: list[str] = field(default_factory=list)
    searches: int = 0
    parts: list[DataFrame] = field(default_factory=list)
    kept: list[DataFrame] = field(default_factory=list, repr=False)

    def release(self) -> None:
        for frame in self.kept:
            frame.unpersist()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Runs a flow's query and its expectations on rejected rows.

    A row with its original record goes through the query if that can be done: always if the query gave no
    row for it; else if the query makes one row of each record. Otherwise the row that was kept as JSON is
    checked as it is.
    """

    session: SparkSession
    planned: PlannedFlow
    schema: StructType
    build: BuildRecords | None  # evaluates the query; ``None`` if it cannot be evaluated over single records
    failures: Failures

    def run(self, rejected: DataFrame, ids: pa.Array, outcome: Outcome) -> None:
        traced = self._coordinates is not None
        held = self._with_ids(rejected, ids).persist()
        outcome.kept.append(held)
        as_record = has_record() & (F.col("row").isNull() | F.lit(traced))
        if self.build is None:
            as_record = F.lit(False)
        route = F.when(as_record, "record").when(F.col("row").isNotNull(), "row").alias("route")
        routes: dict[str | None, list[str]] = {}
        for id, way in held.select("id", route).orderBy("id").collect():
            routes.setdefault(way, []).append(id)
        outcome.left += routes.get(None, ())
        if chosen := routes.get("row"):
            self._try_rows(self._with_ids(held, chosen), chosen, outcome)
        if chosen := routes.get("record"):
            readable = self._readable(held, chosen, outcome)
            self._try_records(held, self._without_bad(held, readable, outcome), outcome)

    @property
    def _coordinates(self) -> Coordinates | None:
        """The coordinate columns of the rows, if the records of the sources have coordinates too."""
        have_them = all(one.coordinates for one in self.planned.sources)
        return self.planned.coordinates if have_them else None

    def _try_rows(self, rejected: DataFrame, ids: Sequence[str], outcome: Outcome) -> None:
        from pyspark.errors import AnalysisException

        read = rows_of_json(rejected, self.schema).persist()
        outcome.kept.append(read)
        problems = read.where(f"{PROBLEM} IS NOT NULL").select(ID, PROBLEM).collect()
        outcome.rejected += [Rejected.because(id, "row", "ROW_NOT_READABLE", text) for id, text in problems]
        good = read.where(f"{PROBLEM} IS NULL").drop(PROBLEM)
        waiting = set(ids) - {id for id, _ in problems}
        try:
            checked = with_checks(good, self.planned.expectations)
        except AnalysisException as error:
            if (hidden := self._hidden(good)) is None:
                raise
            raise hidden from error
        self._check(checked, waiting, outcome)

    def _hidden(self, rows: DataFrame) -> ReplayImpossibleError | None:
        """The error for an expectation on a column that rows kept as JSON do not have: the query hides it."""
        from pyspark.errors import AnalysisException

        for one in self.planned.expectations:
            try:
                with_checks(rows, [one])
            except AnalysisException as error:
                if is_unresolved(error):
                    column = (error.getMessageParameters() or {}).get("objectName", "").replace("`", "")
                    return _hidden_column(self.planned, one, column)
        return None

    def _try_records(self, rejected: DataFrame, ids: Sequence[str], outcome: Outcome) -> None:
        """Run the query on records. If it fails on some of them, find those by halves."""
        if not ids:
            return
        try:
            if self._try_query(rejected, ids, outcome):
                return
            reason = None
        except Exception as failure:
            error = self.failures.as_error(failure, self.planned.flow)
            if not isinstance(error, RAISED):
                raise error from failure
            found = find_reason(self.failures.text_of(failure), error, self.planned.expectations)
            kind = "exception" if isinstance(error, FlowFailedError) else "record"
            reason = Rejected.because(ids[0], kind, *found)
        if len(ids) == 1:
            outcome.searches += 1
            if reason is not None:
                outcome.rejected.append(reason)
            return
        if outcome.searches >= _SEARCHED:
            outcome.left += ids
            return
        half = len(ids) // 2
        self._try_records(rejected, ids[:half], outcome)
        self._try_records(rejected, ids[half:], outcome)

    def _without_bad(self, rejected: DataFrame, ids: Sequence[str], outcome: Outcome) -> list[str]:
        """The rows whose record the readers can decode."""
        if not ids:
            return []
        assert self.build is not None
        records = self._with_ids(rejected, ids).select("id", "source.*")
        reads: list[BadRecords] = []
        self.build(self.session, self.planned, records.drop("id"), reads)
        bad = {one.id: one for read in reads if not read.frame.isStreaming for one in _bad_of(records, read)}
        outcome.rejected += bad.values()
        return [id for id in ids if id not in bad]

    def _try_query(self, rejected: DataFrame, ids: Sequence[str], outcome: Outcome) -> bool:
        """Run the query on records; false if some are rejected, and it is not known which."""
        assert self.build is not None
        mine = self._with_ids(rejected, ids)
        rows = self.build(self.session, self.planned, mine.select("source.*"))
        if rows.isStreaming:
            raise _read_outside(self.planned)
        coordinates = self._coordinates
        if coordinates is not None:
            paths = coordinates.to_json()
            places = {name: f"{ID}_{name}" for name in paths}
            parts = (F.col(f"source.{name}").alias(place) for name, place in places.items())
            keys = mine.select(F.col("id").alias(ID), *parts)
            same = [F.col(quoted_path(path)) == F.col(places[name]) for name, path in paths.items()]
            # Behind this join, conditions would not find columns that the query hides.
            checked = with_checks(rows, self.planned.expectations)
            self._check(checked.join(F.broadcast(keys), same).drop(*places.values()), set(ids), outcome)
            return True
        return self._check_untraced(rows, ids, outcome)

    def _check(self, checked: DataFrame, ids: set[str], outcome: Outcome) -> None:
        """Judge rows of which each comes from one rejected row."""
        checked = checked.persist()
        outcome.kept.append(checked)
        failing = self._failing(checked)
        columns = [name for name in failing.columns if name != REASONS]
        found = failing.select(ID, REASONS, row_as_json(columns)).collect()
        without = ids - {id for (id,) in checked.select(ID).collect()}
        outcome.rejected += [Rejected.failing(id, names, row) for id, names, row in found]
        outcome.rejected += [Rejected.because(id, "record", "NO_ROW", _NO_ROW) for id in sorted(without)]
        outcome.taken += sorted(ids - without - {id for id, _, _ in found})
        deciding = [
            n for n, one in enumerate(self.planned.expectations) if one.action in ("quarantine", "fail")
        ]
        outcome.parts.append(checked.where(is_passed(*deciding)).drop(ID))

    def _check_untraced(self, rows: DataFrame, ids: Sequence[str], outcome: Outcome) -> bool:
        """Check rows of which it is not known which record each comes from: all pass, or none is taken."""
        checked = with_checks(rows, self.planned.expectations).persist()
        # Without expectations nothing else would compute the rows here.
        checked.count()
        failing = self._failing(checked).select(REASONS).distinct().collect()
        if not failing:
            outcome.kept.append(checked)
            outcome.taken += ids
            outcome.parts.append(checked)
            return True
        checked.unpersist()
        if len(ids) == 1:
            names = {name: None for (names,) in failing for name in names}
            outcome.rejected.append(Rejected.failing(ids[0], list(names)))
        return False

    def _failing(self, checked: DataFrame) -> DataFrame:
        """The rows that are rejected or would stop the flow."""
        split = RowSplit(checked, self.planned.expectations, str(self.planned.flow.target))
        return split.quarantined.unionByName(split.stopping)

    def _with_ids(self, rejected: DataFrame, ids: Sequence[str] | pa.Array) -> DataFrame:
        import pyarrow as pa

        chosen = new_frame(self.session, pa.table({"id": pa.array(ids, pa.string())}))
        return rejected.join(F.broadcast(chosen), "id")

    def _readable(self, rejected: DataFrame, ids: Sequence[str], outcome: Outcome) -> list[str]:
        """The rows whose record comes from one source of the query, each record once."""
        records = self._with_ids(rejected, ids).select("id", "source.*")
        owners = (F.coalesce(one.owns(), F.lit(False)).cast("int") for one in self.planned.sources)
        longest = sorted(COORDINATES, key=lambda one: -len(one.parts))
        found = (F.when(F.concat(*c.names).isNotNull(), F.concat_ws("/", *c.names)) for c in longest)
        record = F.coalesce(*found, "id")
        readable = records.where(reduce(add, owners) == 1)
        first = readable.groupBy(record).agg(F.min("id").alias("id")).select("id")
        kept = {id for (id,) in first.collect()}
        outcome.left += [id for id in ids if id not in kept]
        return [id for id in ids if id in kept]


def _bad_of(records: DataFrame, read: BadRecords) -> list[Rejected]:
    columns = [name for name in _IDENTIFYING if name in read.frame.columns]
    same = [F.col(f"held.{name}").eqNullSafe(F.col(f"bad.{name}")) for name in columns]
    joined = records.alias("held").join(read.frame.alias("bad"), same).orderBy("id").limit(_EXPLAINED)
    value = F.col("held.value")
    found = joined.select("id", CODE, F.substring(value, 1, CARRIED), F.octet_length(value)).collect()
    return [
        Rejected.because(id, "record", code, read.rules.explain(code, *rest)) for id, code, *rest in found
    ]


def _read_outside(planned: PlannedFlow) -> ReplayImpossibleError:
    flow = planned.flow
    return ReplayImpossibleError(
        f"records of flow {flow.name} cannot be replayed: its source is read outside of the query function",
        location=flow.location,
        facts=("nothing was changed",),
        remedies=("read the source within the function",),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


def _hidden_column(planned: PlannedFlow, expectation: Expectation, column: str) -> ReplayImpossibleError:
    flow = planned.flow
    name = flow.target.short
    return ReplayImpossibleError(
        f"rejected rows of flow {flow.name} cannot be replayed: the expectation `{expectation.name}` uses "
        f"the column `{column}`, which the query does not return",
        location=expectation.location,
        facts=("the quarantine has the rows as the query returned them", "nothing was changed"),
        remedies=(
            "use columns in the expectation that the query returns, and replay again",
            "or replay only records without a row:   "
            f'headrace quarantine replay {name} --where "row IS NULL"',
            f"or read everything again:   headrace full-refresh {name}",
        ),
        params={"flow": flow.name, "dataset": str(flow.target), "expectation": expectation.name},
    )


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FlowReplay:
    flow: str
    replayed: int = 0
    rejected: int = 0  # rows that were rejected again; they have their new reasons
    left: int = 0
    accepted: int = 0
    dropped: int = 0
    replay: str | None = None  # the id of the replay; ``None`` if nothing was committed
    version: int | None = None


def refuse_stateful(planned: PlannedFlow) -> None:
    if not planned.stateful:
        return
    flow = planned.flow
    raise ReplayImpossibleError(
        f"rejected rows of flow {flow.name} cannot be replayed: its query keeps state",
        location=flow.location,
        facts=(
            "the result of its query for a record depends on earlier records, which a replay does not read",
            "nothing was changed",
        ),
        remedies=(
            f"send corrected records to the source:   headrace quarantine export {flow.target.short} "
            f"{flow.target.short}.jsonl --records",
            f"or read everything again:   headrace full-refresh {flow.target.short}",
        ),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


@dataclass(frozen=True, kw_only=True)
class FlowReplayer:
    planned: PlannedFlow
    context: UpdateContext
    build: BuildRecords
    lease: Lease

    def run(self, ids: pa.Array) -> FlowReplay:
        planned = self.planned
        session = self.context.session(dict(planned.flow.spark_conf))
        trial = Trial(
            session=session,
            planned=planned,
            schema=self._columns(session),
            build=self.build if can_evaluate_records(planned) else None,
            failures=self.context.failures(planned.sources),
        )
        outcome = Outcome()
        try:
            trial.run(session.read.format("delta").load(str(self._quarantine)), ids, outcome)
            return self._finish(session, outcome)
        finally:
            outcome.release()

    def _finish(self, session: SparkSession, outcome: Outcome) -> FlowReplay:
        flow = self.planned.flow.name
        # Rising, and never that of another process.
        number = 2 * (time.time_ns() // 1000)
        stamp = self._stamp(f"headrace-replays-{flow}#{number}", len(outcome.taken))
        rejected, left = len(outcome.rejected), len(outcome.left)
        if not outcome.taken:
            mark_replaying(self._quarantine, _outcome_table(outcome), stamp)
            return FlowReplay(flow=flow, rejected=rejected, left=left)
        committed = self._commit(session, outcome, stamp)
        assert stamp.replay is not None
        settle_replay(self._quarantine, stamp.replay, state="replayed")
        return FlowReplay(
            flow=flow,
            replayed=len(outcome.taken),
            accepted=committed.counts.accepted,
            dropped=committed.counts.dropped,
            replay=stamp.replay,
            version=committed.version,
            rejected=rejected,
            left=left,
        )

    def _commit(self, session: SparkSession, outcome: Outcome, stamp: BatchStamp) -> Committed:
        """Mark the rows in the quarantine, and commit what the query returned for them."""
        planned = self.planned
        target = flow_target(planned, self.context, session)
        split = RowSplit(
            union(outcome.parts, lacks_columns=True), planned.expectations, str(planned.flow.target)
        )
        writer = target.begin(session, stamp)
        assert writer is not None, "the id of the replay is new"
        try:
            with writer, SplitRows(accepted=split.accepted, counts=split.counts) as rows:
                writer.write(rows)
                mark_replaying(self._quarantine, _outcome_table(outcome), stamp)
                reach("replay-marked", stamp.flow, 0)
                self.lease.check(stamp.flow)
                committed = writer.commit()
        except Exception:
            self._settle(session, stamp)
            raise
        reach("replay-committed", stamp.flow, 0)
        return committed

    def settle_interrupted(self, session: SparkSession) -> None:
        for replay, flow in unsettled_replays(self._quarantine).items():
            if flow == self.planned.flow.name:
                _LOG.info("flow %s: replay %s was interrupted", flow, replay)
                self._settle(session, self._stamp(replay, 0))

    def _stamp(self, replay: str, rows: int) -> BatchStamp:
        checkpoint, number = replay_transaction(replay)
        return BatchStamp(
            pipeline=self.context.settings.name,
            flow=self.planned.flow.name,
            checkpoint=checkpoint,
            batch=number,
            ranges=(),
            replayed=rows,
            replay=replay,
        )

    def _settle(self, session: SparkSession, stamp: BatchStamp) -> None:
        if stamp.replay is None or stamp.replay not in unsettled_replays(self._quarantine):
            return
        target = flow_target(self.planned, self.context, session)
        is_missing = target.fence_replay(session, stamp)
        if is_missing:
            _, tombstones = side_tables(self.planned.flow.target, self.context.settings.storage)
            tombstones.forget(session, stamp.checkpoint, after=stamp.batch - 1)
        state = "quarantined" if is_missing else "replayed"
        settle_replay(self._quarantine, stamp.replay, state=state)

    def _columns(self, session: SparkSession) -> StructType:
        """The columns of the rows that were kept as JSON: those of change records, or of the table."""
        if isinstance(self.planned.flow, AutoCdcFlow) or self.planned.sink is not None:
            from pyspark.sql.types import StructType

            return StructType.fromJson(dict(self.planned.schema))
        table = self.context.settings.storage.table(self.planned.flow.target)
        return session.read.format("delta").load(str(table)).schema

    @property
    def _quarantine(self) -> Location:
        return self.context.settings.storage.quarantine(self.planned.flow.target)


def _outcome_table(outcome: Outcome) -> pa.Table:
    import pyarrow as pa

    text = pa.string()
    reason = pa.struct([("kind", text), ("name", text), ("message", text)])
    schema = pa.schema([("id", text), ("state", text), ("reasons", pa.list_(reason)), ("row", text)])
    rows: list[Mapping[str, Any]] = [
        {"id": id, "state": "replaying", "reasons": None, "row": None} for id in outcome.taken
    ]
    rows += [
        {"id": one.id, "state": "quarantined", "reasons": list(one.reasons), "row": one.row}
        for one in outcome.rejected
    ]
    return pa.Table.from_pylist(rows, schema=schema)
