"""Replays rejected rows of a dataset: under the leases of its flows, one flow after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import ReplayImpossibleError
from headrace.model.names import TableName
from headrace.observe.quarantine import RejectedRows, RowFilter
from headrace.plan.stages import OpenTableStage, Plan, PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.replay import FlowReplay, FlowReplayer, refuse_stateful
from headrace.run.tables import open_table, register_tables
from headrace.run.trial import BuildRecords
from headrace.state.lease import Lease

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """What became of rejected rows."""

    dataset: TableName
    flows: tuple[FlowReplay, ...] = ()
    pending: int = 0  # rows that match too, and whose batch the dataset does not hold yet

    @property
    def replayed(self) -> int:
        """Rows that left the quarantine."""
        return sum(one.replayed for one in self.flows)

    @property
    def rejected(self) -> int:
        """Rows that were rejected again."""
        return sum(one.rejected for one in self.flows)

    @property
    def left(self) -> int:
        """Rows that were not tried."""
        return sum(one.left for one in self.flows)

    def to_json(self) -> dict[str, Any]:
        names = ("replayed", "rejected", "left", "accepted", "dropped", "replay", "version")
        flows = [{"flow": one.flow} | {name: getattr(one, name) for name in names} for one in self.flows]
        counts = {"replayed": self.replayed, "rejected": self.rejected, "left": self.left}
        return {**counts, "pending": self.pending, "flows": flows}

    def lines(self) -> Iterator[str]:
        """What became of the rows: one line for each fact."""
        name = self.dataset.short
        if not self.flows:
            yield f"{name}  no quarantined row matches"
        for one in self.flows:
            dropped = f", {one.dropped:,} dropped" if one.dropped else ""
            done = f"{one.replayed:,} replayed ({one.accepted:,} in the table{dropped})"
            yield f"{name}  flow {one.flow}: {done}, {one.rejected:,} rejected again"
            if one.left:
                yield f"{name}  flow {one.flow}: {one.left:,} not tried"
        if self.pending:
            yield f"{name}  {self.pending:,} pending: the next run repeats their batch first"


def replay_dataset(
    found: RejectedRows,
    chosen: RowFilter,
    plan: Plan,
    context: UpdateContext,
    build: BuildRecords,
) -> ReplayResult:
    """Replay rejected rows of a dataset.

    Raises:
        ReplayImpossibleError: The rows have no code to go through.
        SecondDriverError: A flow of the dataset runs.
        HeadraceError: The query failed.
    """
    rows = found.choose(chosen)
    flows = _flows_of(found.dataset, plan, _quarantined(rows))
    for planned in flows:
        refuse_stateful(planned)
    stage = next(
        one for one in plan.stages if isinstance(one, OpenTableStage) and one.table.name == found.dataset
    )
    storage = context.settings.storage
    feeding = plan.feeding(found.dataset)
    with _leases(feeding, context) as leases:
        register_tables(plan, context.spark)
        open_table(stage, feeding, storage, context.spark)
        replayers = [
            FlowReplayer(planned=one, plan=plan, context=context, build=build, lease=leases[one.flow.name])
            for one in feeding
        ]
        for one in replayers:
            one.settle_interrupted(context.spark)
        # Under the leases, and after interrupted replays: no other process changes the rows any more.
        now = RejectedRows(found.dataset, found.path, found.target).choose(chosen)
        ids = _quarantined(now)
        done = [one.run(ids[name]) for one in replayers if (name := one.planned.flow.name) in ids]
    pending = sum(row == "pending" for row in now.column("state").to_pylist())
    return ReplayResult(dataset=found.dataset, flows=tuple(done), pending=pending)


def _flows_of(dataset: TableName, plan: Plan, ids: dict[str, Any]) -> list[PlannedFlow]:
    """The flows that have rejected some rows."""
    if any(one.flow.target == dataset for one in plan.refreshes):
        raise ReplayImpossibleError(
            f"rejected rows of {dataset.short} cannot be replayed: it is a materialized view",
            facts=("each refresh computes the view and its quarantine anew", "nothing was changed"),
            remedies=("correct its query or what it reads, and run:   headrace run",),
            params={"dataset": str(dataset)},
        )
    declared = {one.flow.name: one for one in plan.feeding(dataset)}
    gone = sorted(ids.keys() - declared)
    if gone:
        raise ReplayImpossibleError(
            f"no file declares the flow {gone[0]} of {dataset.short}, which has rejected the rows",
            facts=("nothing was changed",),
            remedies=(
                f"replay the rows of other flows:   headrace quarantine replay {dataset.short} --flow FLOW",
                f"or discard them:   headrace quarantine discard {dataset.short} --flow {gone[0]}",
            ),
            params={"dataset": str(dataset), "flows": gone},
        )
    return [declared[name] for name in sorted(ids)]


def _quarantined(rows: pa.Table) -> dict[str, pa.Array]:
    """The ids of quarantined rows, by flow."""
    import pyarrow.compute as pc

    rows = rows.filter(pc.field("state") == "quarantined")
    flows = rows.column("flow")
    return {
        name: rows.filter(pc.equal(flows, name)).column("id").combine_chunks()
        for name in sorted(set(flows.to_pylist()))
    }


@contextlib.contextmanager
def _leases(feeding: tuple[PlannedFlow, ...], context: UpdateContext) -> Iterator[dict[str, Lease]]:
    """The leases of all flows of a dataset."""
    storage = context.settings.storage
    with contextlib.ExitStack() as held:
        leases = {}
        for one in feeding:
            flow = one.flow
            lease = context.heart.acquire(storage.lease(flow.target, flow.name), flow.name)
            held.callback(context.heart.release, lease)
            leases[flow.name] = lease
        yield leases
