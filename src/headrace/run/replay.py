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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.contracts.expectations import RowSplit
from headrace.errors import ReplayImpossibleError
from headrace.model.declarations import AutoCdcFlow
from headrace.plan.bounded import can_evaluate_records
from headrace.plan.stages import PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.failpoints import reach
from headrace.run.narrowing import union
from headrace.run.targets import flow_target, side_tables
from headrace.run.trial import BuildRecords, Outcome, Trial
from headrace.runtime.lazy_pyspark import SparkSession, StructType
from headrace.sinks.delta.commit import mark_replaying, settle_replay
from headrace.sinks.delta.row_states import unsettled_replays
from headrace.sinks.target import BatchStamp, Committed, SplitRows
from headrace.state.lease import Lease
from headrace.storage.location import Location
from headrace.storage.table_log import replay_transaction

if TYPE_CHECKING:
    import pyarrow as pa

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
