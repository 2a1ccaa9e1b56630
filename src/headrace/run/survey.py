"""Collects the facts about a flow before it starts: its declaration, checkpoint, table and sources."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace import errors
from headrace.errors import HeadraceError
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position
from headrace.model.remedies import Remedies
from headrace.plan.sources import refuse_read_twice
from headrace.plan.stages import PlannedFlow
from headrace.sinks.delta.table import CLEARING
from headrace.sinks.target import TargetReader, TargetState
from headrace.sources.registry import (
    committed_positions,
    committed_sources,
    describe_source,
    load_next_positions,
    read_back,
)
from headrace.sources.requests import Past, Systems
from headrace.state.checkpoint import (
    check_readable,
    generations,
    is_seeded,
    load_identity,
    load_query,
    load_state,
)
from headrace.state.facts import (
    FENCED,
    CheckpointFacts,
    FlowFacts,
    History,
    SourceFacts,
    TableFacts,
    load_history,
)
from headrace.state.ledger import Ledger
from headrace.state.opening import rebuild_remedy, repair_command, resume_remedy
from headrace.storage.location import Location
from headrace.storage.table_log import is_table


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The facts that `state.opening.decide` needs."""

    flow: FlowFacts
    table: TargetState
    facts: TableFacts
    checkpoint: CheckpointFacts | None


@dataclass(frozen=True, kw_only=True)
class FlowSurveyor:
    """Collects the facts about a flow before it starts; changes nothing."""

    planned: PlannedFlow
    settings: ProjectSettings
    systems: Systems
    target: TargetReader
    declared_flows: frozenset[str] = frozenset()

    @property
    def checkpoints(self) -> Location:
        return self.settings.storage.flow_checkpoints(self.planned.flow.target, self.planned.flow.name)

    @property
    def ledger(self) -> Ledger:
        flow = self.planned.flow
        return Ledger(self.settings.storage.ledger(flow.target, flow.name), flow.target, flow.name)

    def survey(self, remedies: Remedies) -> Survey | None:
        """Collect the facts that decide how the flow starts; ``None`` if its target does not exist yet."""
        planned, flow, ledger = self.planned, self.planned.flow, self.ledger
        table = self.target.state()
        if table is None:
            return None
        if table.refreshing not in (None, CLEARING):
            raise unfinished_refresh(planned)
        reset = flow.name in remedies.reset
        current = table.checkpoints.get(flow.name)
        history = load_history(ledger, self.target, table.table_id, table.version, current)
        last = self._last_batch(table, reset)
        if last is not None and reset:
            history = history.with_last(last)
        on_data_loss = self.settings.on_data_loss
        policies = {on_data_loss, *(source.on_data_loss for source in planned.sources)}
        past = Past(flow=flow, history=history, ledger=ledger.folder, opens=reset or "record" in policies)
        facts = FlowFacts(
            flow=flow.name,
            dataset=str(flow.target),
            location=flow.location,
            folder=str(self.checkpoints),
            declared_flows=self.declared_flows,
            sources=self.look(past),
            stateful=planned.stateful,
            describe=describe_source,
            on_data_loss=on_data_loss,
            reset=reset,
            start=remedies.start if reset else None,
            rename_from=remedies.rename_flow.get(flow.name),
            query=planned.fingerprint,
            readers=tuple(one.short for one in planned.readers),
            places=tuple(one.location for one in planned.sources),
        )
        # A damaged checkpoint does not matter if the user asks for a new one.
        looks = not reset or facts.rename_from is not None
        return Survey(
            flow=facts,
            table=table,
            facts=self._table_facts(table, last, history),
            checkpoint=_checkpoint(self.checkpoints, facts, table) if looks else None,
        )

    def _last_batch(self, table: TargetState, reset: bool) -> Mapping[str, Any] | None:
        """The metadata of the flow's last batch that the table holds, in a reset also from its checkpoint."""
        current = table.checkpoints.get(self.planned.flow.name)
        held = None if current is None else table.transactions.get(current)
        if current is None or held is None or held == FENCED:
            return None
        last = self.ledger.last_batch(self.target, current, held)
        return _read_back(self.checkpoints, current, held) if last is None and reset else last

    def _table_facts(
        self, table: TargetState, last: Mapping[str, Any] | None, history: History
    ) -> TableFacts:
        ledger = self.ledger
        return TableFacts(
            table_id=table.table_id,
            fresh=table.version == 0,
            checkpoints=table.checkpoints,
            transactions=table.transactions,
            positions=None if last is None else committed_positions(last),
            sources=() if last is None else committed_sources(last),
            version=table.version,
            folded=ledger.next_version(table.table_id) - 1,
            ledger_stale=bool(ledger.stale_folds(self.target, table.table_id, table.version)),
            history=history,
        )

    def look(self, past: Past | None = None) -> tuple[SourceFacts, ...]:
        """The flow's sources as they are now. `past`: what the flow has read so far; ``None`` if its table
        does not exist or is emptied."""
        known = past or Past(flow=self.planned.flow)
        found = tuple(source.look(self.systems, known) for source in self.planned.sources)
        refuse_read_twice(self.planned.sources, {facts.source.index: facts for facts in found})
        return found


def find_unfinished(folder: Location, table: TargetState) -> Location | None:
    """A checkpoint that was created, but not committed to the table, because the process ended in between. It
    has planned no batches, so nothing is lost with it.
    """
    known = generations(folder)
    if not known:
        return None
    try:
        identity = load_identity(known[-1])
    except HeadraceError:
        # A checkpoint that was just made is left out: opening it reports what is wrong with it.
        return None
    if identity.checkpoint in table.checkpoints.values() or identity.checkpoint in table.transactions:
        return None
    planned = load_state(known[-1]).last_planned
    return known[-1] if planned < 0 or (planned == 0 and is_seeded(known[-1])) else None


def _checkpoint(folder: Location, facts: FlowFacts, table: TargetState) -> CheckpointFacts | None:
    known = generations(folder)
    try:
        if known and known[-1] == find_unfinished(folder, table):
            known = known[:-1]
        return _load_checkpoint(known[-1], facts, table) if known else None
    except errors.CheckpointCorruptError as error:
        raise _with_remedy(error, facts) from error
    except errors.CheckpointForeignError as error:
        raise _with_move(error, facts, known[-1], table) from error
    except errors.StorageNewerError as error:
        raise error.with_location(facts.location) from error


def _load_checkpoint(path: Location, facts: FlowFacts, table: TargetState) -> CheckpointFacts:
    identity = load_identity(path)
    if identity.flow != facts.flow or identity.dataset != facts.dataset:
        raise errors.CheckpointForeignError(
            f"flow {facts.flow}: the checkpoint {path} belongs to flow {identity.flow}",
            location=facts.location,
            facts=(
                f"that flow writes {identity.dataset.removeprefix('default.')}",
                "nothing was read or written",
            ),
            params={"flow": facts.flow, "owner": identity.flow, "checkpoint": str(path)},
        )
    state = load_state(path)
    check_readable(path)
    positions: dict[int, Position] = {}
    if state.last_planned >= 0:
        held = table.transactions.get(identity.checkpoint, -1) >= state.last_planned
        next_batch = state.last_planned + 1 if held else state.last_planned
        positions = load_next_positions(path, next_batch, identity.sources)
    query = load_query(path)
    return CheckpointFacts(
        identity=identity,
        query=None if query is None else query.fingerprint,
        last_planned=state.last_planned,
        last_finished=state.last_finished,
        positions=positions,
    )


def _read_back(folder: Location, checkpoint: str, batch: int) -> Mapping[str, Any] | None:
    """What a checkpoint has read in a batch by its own offset log, in the form of a commit."""
    for path in generations(folder):
        with contextlib.suppress(errors.CheckpointCorruptError):
            identity = load_identity(path)
            if identity.checkpoint == checkpoint:
                return read_back(path, identity, batch)
    return None


def _with_remedy(error: errors.CheckpointCorruptError, facts: FlowFacts) -> HeadraceError:
    return errors.CheckpointCorruptError(
        f"flow {facts.flow}: {error.summary}",
        location=facts.location,
        facts=(*error.facts, "nothing was read or written"),
        remedies=(repair_command(facts.flow), *(f"or {remedy}" for remedy in resume_remedy(facts))),
        params={**error.params, "flow": facts.flow},
    )


def _with_move(
    error: errors.CheckpointForeignError, facts: FlowFacts, path: Location, table: TargetState
) -> HeadraceError:
    """Without the folder, a flow that has written the table continues only from a new checkpoint."""
    away = f"{facts.flow}-checkpoint-{path.name}"
    then = resume_remedy(facts) if facts.flow in table.checkpoints else ("run again:   headrace run",)
    return error.with_(
        location=facts.location,
        remedies=(
            f"move the folder out of the storage:   {path.move_command(away)}",
            *(f"then {remedy}" for remedy in then),
        ),
        params={**error.params, "flow": facts.flow},
    )


def table_lost(planned: PlannedFlow, fact: str) -> errors.TableLostError:
    flow = planned.flow
    return errors.TableLostError(
        f"flow {flow.name}: the table {flow.target.short} is missing, but its checkpoint exists",
        location=flow.location,
        facts=(fact, "nothing was read or written"),
        remedies=(
            "restore the folder from a copy, then run again:   headrace run",
            f"or {rebuild_remedy(flow.target.short, [one.short for one in planned.readers])}",
        ),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


def check_tombstones(surveyor: FlowSurveyor, survey: Survey) -> None:
    """Check that the deleted keys of a flow that has deleted rows are still there."""
    planned, flow = surveyor.planned, surveyor.planned.flow
    path = surveyor.settings.storage.tombstones(flow.target)
    if not survey.facts.history.deletes or planned.sink is not None or is_table(path):
        return
    raise errors.TableLostError(
        f"flow {flow.name}: the deleted keys of {flow.target.short} are missing",
        location=flow.location,
        facts=(
            f"{path} holds no Delta table, and the flow has deleted rows",
            "an older record of a deleted key would restore its row; nothing was read or written",
        ),
        remedies=(
            "restore the folder, then run again:   headrace run",
            f"or read everything again:   headrace full-refresh {flow.target.short}",
        ),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


def unfinished_refresh(planned: PlannedFlow) -> errors.RefreshUnfinishedError:
    flow = planned.flow
    return errors.RefreshUnfinishedError(
        f"a full refresh of {flow.target.short} was interrupted",
        location=flow.location,
        facts=("its rows were removed, and its flows have not read them again",),
        remedies=(f"complete it:   headrace full-refresh {flow.target.short}",),
        params={"flow": flow.name, "dataset": str(flow.target)},
    )


def is_drained(
    planned: PlannedFlow, sources: Iterable[SourceFacts], checkpoint: CheckpointFacts | None, systems: Systems
) -> bool:
    """Whether the checkpoint has read everything in its sources, so that no query is needed. False if this is
    not certain; a stateful query may still have rows to emit.
    """
    if checkpoint is None or planned.stateful or checkpoint.last_planned < 0:
        return False
    if checkpoint.last_finished != checkpoint.last_planned:
        return False
    flow, positions = planned.flow, checkpoint.positions
    path = systems.storage.checkpoint(flow.target, flow.name, checkpoint.identity.generation)
    facts = {one.source.index: one for one in sources}
    return all(
        source.index in positions and source.is_drained(facts[source.index], positions[source.index], path)
        for source in planned.sources
    )
