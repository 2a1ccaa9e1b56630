"""Calls the checks of a run for `plan`, and reports the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import assert_never

from headrace.errors import BrokerUnreachableError, HeadraceError, StartInvalidError, UpstreamMissingError
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan import stages
from headrace.run.opening import prepare_flow
from headrace.run.readiness import find_blocked, inputs_of
from headrace.run.survey import FlowSurveyor
from headrace.run.tables import check_table
from headrace.run.targets import target_reader
from headrace.run.views import input_missing
from headrace.sinks.delta.reader import ReadTable
from headrace.sinks.delta.table import TableState
from headrace.sources.requests import Systems
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

_LOOKS = 5
"""Looks at the storage after which a refusal counts that differs from the one before."""


def find_lasting_refusals(
    plan: stages.Plan, systems: Systems, read_table: ReadTable, forget: Callable[[], None]
) -> stages.Plan:
    """As `find_refusals`, without the refusals that a run which commits meanwhile seems to give: its files
    are read one after another. `forget`: lets the files of the storage be read again."""
    before: Sequence[object] = ()
    for _ in range(_LOOKS):
        found = find_refusals(plan, systems, read_table)
        refused = [(one.code, one.params) for one in found.refusals]
        if not refused or refused == before:
            break
        before = refused
        forget()
    return found


def find_refusals(plan: stages.Plan, systems: Systems, read_table: ReadTable) -> stages.Plan:
    """Add the errors of a run to a plan, and remove the changes that the run would then not make. An error
    that only follows from another one is omitted. `systems`: the systems of its sources; flows whose system
    does not answer are not checked."""
    preflight = PreflightCheck(plan, systems, read_table)
    refused = preflight.refused_tables()
    # What a refused table blocks is not reported again.
    blocked = find_blocked(plan, {})
    found = {name: error for name, error in blocked.items() if isinstance(error, HeadraceError)}

    def look(stage: stages.RunFlowStage | stages.RefreshViewStage) -> HeadraceError | None:
        planned = stage.planned
        if planned.flow.name in found or planned.flow.target in refused:
            return None
        if isinstance(planned, stages.PlannedRefresh):
            return preflight.missing_input(planned)
        return preflight.refusal(planned)

    looked = [stage for stage in plan.stages if not isinstance(stage, stages.OpenTableStage)]
    errors = plan.project.storage.root.files.gather(look, looked)
    for stage, error in zip(looked, errors, strict=True):
        found |= {} if error is None else {stage.planned.flow.name: error}
    plan = replace(plan, refusals=(*refused.values(), *found.values()))
    if plan.changes is None:
        return plan
    unopened = find_blocked(plan, refused) if refused else blocked
    changes = _made(plan, plan.changes, unopened.keys(), {*unopened, *found})
    return replace(plan, changes=changes)


def _made(
    plan: stages.Plan, changes: Sequence[stages.Change], unopened: Set[str], idle: Set[str]
) -> tuple[stages.Change, ...]:
    """The changes that a run makes although something is refused. `changes`: the changes that it would make
    if nothing were refused."""
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
    """Calls the checks of each flow and view, for a plan."""

    def __init__(self, plan: stages.Plan, systems: Systems, read_table: ReadTable) -> None:
        self._plan = plan
        self._systems = replace(systems, read_table=self._read_opened)
        self._read_table = read_table
        self._opened: dict[Location, stages.OpenTableStage] = {}
        self._moving: set[str] = set()
        for stage in plan.stages:
            match stage:
                case stages.OpenTableStage(table=table):
                    self._opened[plan.project.storage.table(table.name)] = stage
                    self._moving.add(str(table.name))
                case stages.RefreshViewStage(view=view):
                    self._moving.add(str(view.name))
                case stages.RunFlowStage():
                    pass
                case _:
                    assert_never(stage)

    def refused_tables(self) -> dict[TableName, HeadraceError]:
        storage = self._plan.project.storage

        def look(stage: stages.OpenTableStage) -> HeadraceError | None:
            try:
                check_table(stage, self._plan.feeding(stage.table.name), storage, self._read_table)
            except HeadraceError as refusal:
                return refusal
            return None

        opened = list(self._opened.values())
        errors = storage.root.files.gather(look, opened)
        return {one.table.name: error for one, error in zip(opened, errors, strict=True) if error is not None}

    def refusal(self, planned: stages.PlannedFlow) -> HeadraceError | None:
        """The error with which a run would not start the flow; ``None`` if it would, or if the broker does
        not answer."""
        try:
            surveyor = FlowSurveyor(
                planned=planned,
                settings=self._plan.project,
                systems=self._systems,
                target=target_reader(planned, self._plan.project.storage, self._read_opened),
                declared_flows=self._plan.flows_of(planned.flow.target),
            )
            prepare_flow(surveyor, Remedies())
        except BrokerUnreachableError:
            return None
        except (UpstreamMissingError, StartInvalidError) as error:
            # A table that the same run creates or feeds will exist, and have more versions.
            first, _ = error.params.get("versions", (0, 0))
            comes = error.params.get("table") in self._moving and error.params.get("version", first) >= first
            return None if comes else error
        except HeadraceError as error:
            return error
        return None

    def missing_input(self, planned: stages.PlannedRefresh) -> HeadraceError | None:
        """The error of a view that cannot be computed; ``None`` if its inputs exist or the same run creates
        them."""
        for name in inputs_of(planned, self._plan):
            if str(name) not in self._moving and not is_table(self._plan.project.storage.table(name)):
                return input_missing(planned.flow, name)
        return None

    def _read_opened(self, path: Location) -> TableState:
        """Read a table, with the properties that it will have once the run has opened it."""
        state = self._read_table(path)
        stage = self._opened.get(path)
        return replace(state, properties={**state.properties, **stage.properties}) if stage else state
