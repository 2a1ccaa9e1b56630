"""What a run would refuse, told beforehand: the same questions are asked, and nothing is made or changed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from headrace.errors import BrokerUnreachableError, HeadraceError, StartInvalidError, UpstreamMissingError
from headrace.model.declarations import MaterializedView
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan.stages import (
    Change,
    OpenTableStage,
    Plan,
    PlannedFlow,
    PlannedView,
    RefreshViewStage,
    RunFlowStage,
    Stage,
)
from headrace.run.opening import require_readable
from headrace.run.survey import ReadTable, survey_flow, survey_sources
from headrace.run.tables import refuse_table
from headrace.run.upstream import find_blocked
from headrace.run.views import input_missing, inputs_of
from headrace.sinks.delta.table import TableState, is_table
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.state.facts import Open
from headrace.state.opening import decide


def find_refusals(plan: Plan, cluster: KafkaCluster | None, read_table: ReadTable) -> Plan:
    """The plan with what a run would refuse, and without the changes that so would not be made.

    What is refused because of another refusal of the same run is left out: the first has to be dealt
    with anyway.

    Args:
        plan: What would be run.
        cluster: The Kafka cluster; ``None`` where it does not answer, and flows from it are not looked at.
        read_table: Reads a table's newest snapshot.
    """
    stages = [stage for level in plan.levels for stage in level]
    refused: dict[TableName, HeadraceError] = {}
    for stage in stages:
        if isinstance(stage, OpenTableStage):
            fed_by = [p for p in plan.flows if p.flow.target == stage.table.name]
            try:
                refuse_table(stage, fed_by, plan.project.storage, read_table)
            except HeadraceError as refusal:
                refused[stage.table.name] = refusal
    # What a refused table hinders is left to its refusal.
    blocked = find_blocked(plan, {})
    found = {name: error for name, error in blocked.items() if isinstance(error, HeadraceError)}
    preflight = PreflightCheck(plan, stages, cluster, read_table)
    for stage in stages:
        match stage:
            case RunFlowStage(planned=planned):
                name, is_open = planned.flow.name, planned.flow.target not in refused
                error = preflight.refusal(planned) if is_open and name not in found else None
            case RefreshViewStage(planned=view):
                name = str(view.view.name)
                error = None if name in found else preflight.missing_input(view)
            case _:
                continue
        found |= {} if error is None else {name: error}
    plan = replace(plan, refusals=(*refused.values(), *found.values()))
    if plan.changes is None:
        return plan
    unopened = find_blocked(plan, refused) if refused else blocked
    changes = _made(plan, plan.changes, unopened.keys(), {*unopened, *found})
    return replace(plan, changes=changes)


def _made(plan: Plan, changes: Sequence[Change], unopened: Set[str], idle: Set[str]) -> tuple[Change, ...]:
    """The changes that a run would make.

    Args:
        plan: The plan.
        changes: Those that it would make if nothing were refused.
        unopened: The flows for which no table is opened.
        idle: The flows and views that do not get as far as their queries.
    """
    fed_by: dict[TableName, set[str]] = {}
    for planned in plan.flows:
        fed_by.setdefault(planned.flow.target, set()).add(planned.flow.name)
    unmade = {str(name) for name, flows in fed_by.items() if flows <= unopened} | idle
    return tuple(
        one
        for one in changes
        if one.kind == "keep"
        or not (str(one.dataset) in unmade or (one.part == "query" and one.name in idle))
    )


class PreflightCheck:
    """How each flow would start.

    Args:
        plan: What would be run.
        stages: Its stages.
        cluster: The Kafka cluster, if it is running.
        read_table: Reads a table's newest snapshot.
    """

    def __init__(
        self, plan: Plan, stages: Sequence[Stage], cluster: KafkaCluster | None, read_table: ReadTable
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._read_table = read_table
        storage = plan.project.storage
        self._opened = {storage.table(s.table.name): s for s in stages if isinstance(s, OpenTableStage)}
        views = {str(s.planned.view.name) for s in stages if isinstance(s, RefreshViewStage)}
        self._moving = {str(stage.table.name) for stage in self._opened.values()} | views

    def refusal(self, planned: PlannedFlow) -> HeadraceError | None:
        """Why the flow would not be opened; ``None`` where it would, or where that cannot be told."""
        if self._cluster is None and any(source.kind == "kafka" for source in planned.sources):
            return None
        try:
            self._open(planned, self._cluster or KafkaCluster(self._plan.project.kafka))
        except BrokerUnreachableError:
            # Nor would it for the flows that follow, each after its own time of waiting.
            self._cluster = None
            return None
        except (UpstreamMissingError, StartInvalidError) as error:
            # A table that the same run makes or feeds is there, and has more versions, by then.
            first, _ = error.params.get("versions", (0, 0))
            comes = error.params.get("table") in self._moving and error.params.get("version", first) >= first
            return None if comes else error
        except HeadraceError as error:
            return error
        return None

    def missing_input(self, planned: PlannedView) -> HeadraceError | None:
        """Why a view cannot be computed; ``None`` where all that it reads is there, or is made first."""
        assert isinstance(planned.view, MaterializedView)
        for name in inputs_of(planned, self._plan):
            if str(name) not in self._moving and not is_table(self._plan.project.storage.table(name)):
                return input_missing(planned.view, name)
        return None

    def _open(self, planned: PlannedFlow, cluster: KafkaCluster) -> None:
        flow, storage = planned.flow, self._plan.project.storage
        target = storage.table(flow.target)
        if not is_table(target):
            sources, kafka = survey_sources(planned, storage, cluster, self._look)
            require_readable(planned, Open(reason="first"), sources, kafka, cluster, self._look)
            return
        survey = survey_flow(
            planned,
            self._plan.project,
            cluster,
            self._look,
            declared_flows=frozenset(
                one.flow.name for one in self._plan.flows if one.flow.target == flow.target
            ),
            remedies=Remedies(),
        )
        opening = decide(survey.flow, survey.facts, survey.checkpoint)
        if isinstance(opening, Open):
            asked = survey.flow
            require_readable(planned, opening, asked.sources, asked.kafka, cluster, self._look)

    def _look(self, path: Path) -> TableState:
        """A table with the properties that it has once the run has opened it."""
        state = self._read_table(path)
        stage = self._opened.get(path)
        return replace(state, properties={**state.properties, **stage.properties}) if stage else state
