"""Resets: new checkpoints for chosen flows, which continue after everything that was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ResumeImpossibleError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position
from headrace.model.remedies import ChosenStart, Remedies
from headrace.model.texts import counted, html_table
from headrace.plan.stages import Plan, PlannedFlow
from headrace.project.engine import Engine
from headrace.project.operations import held_flows, logged_operation, new_update
from headrace.project.plan_choices import check_remedies
from headrace.run.opening import prepare_flow
from headrace.run.runners import make_opener
from headrace.run.survey import FlowSurveyor
from headrace.run.targets import target_reader
from headrace.sources.kafka.facts import ranges_text
from headrace.state.facts import Open


@dataclass(frozen=True, kw_only=True)
class FlowReset:
    flow: str
    dataset: TableName
    # Each source, with the position at which the new checkpoint continues; `None` reads it from its
    # beginning.
    sources: tuple[tuple[str, Position | None], ...]
    # The number of ranges that are recorded as lost: the sources no longer hold them, or the user passes over
    # them.
    losses: int = 0
    repeats: tuple[Mapping[str, Any], ...] = ()  # the offsets that are read again, because the user allows it

    def lines(self) -> Iterator[str]:
        yield f"{self.flow}  gets a new checkpoint; the rows of {self.dataset.short} are kept"
        for name, position in self.sources:
            if position is None:
                yield f"{self.flow}  reads {name} from the beginning"
            else:
                yield f"{self.flow}  continues {name} {position.describe()}"
        if self.losses:
            ranges = counted(self.losses, "range")
            yield f"{self.flow}  records {ranges} as lost, which it will not read"
        for line in ranges_text(self.repeats):
            yield f"{self.flow}  reads again {line}"

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "dataset": str(self.dataset),
            "sources": [
                {"source": name, "position": None if position is None else position.to_json()}
                for name, position in self.sources
            ],
            "losses": self.losses,
            "repeats": [dict(one) for one in self.repeats],
        }


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    resets: tuple[FlowReset, ...]
    plan: Plan = field(repr=False)

    def __repr__(self) -> str:
        return f"<ResetPlan of {', '.join(one.flow for one in self.resets)}>"

    def _repr_html_(self) -> str:
        return html_table(", ".join(one.flow for one in self.resets), (), (), self.lines())

    def lines(self) -> Iterator[str]:
        for one in self.resets:
            yield from one.lines()

    def to_json(self) -> dict[str, Any]:
        return {"flows": [one.to_json() for one in self.resets]}


class Resetter:
    def __init__(self, settings: ProjectSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine

    def plan(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """What a reset would do; changes nothing. `start`: where their checkpoints start; by default they
        continue."""
        settings, plan = self._engine.reach()
        remedies = Remedies(reset=frozenset(flows), start=start)
        check_remedies(remedies, plan)
        systems = self._engine.systems(settings)
        with closing(systems):
            resets = []
            for planned in _chosen(plan, remedies):
                surveyor = FlowSurveyor(
                    planned=planned,
                    settings=settings,
                    systems=systems,
                    target=target_reader(planned, settings.storage, self._engine.read_table),
                    declared_flows=plan.flows_of(planned.flow.target),
                )
                flow = planned.flow
                if surveyor.target.state() is None:
                    raise ResumeImpossibleError(
                        f"flow {flow.name} cannot be reset: its table {flow.target.short} does not exist",
                        location=flow.location,
                        facts=("nothing was changed",),
                        remedies=(f"read everything:   headrace full-refresh {flow.target.short}",),
                        params={"flow": flow.name},
                    )
                opening = prepare_flow(surveyor, remedies).opening
                assert isinstance(opening, Open)
                positions = opening.positions or {}
                root = settings.root
                resets.append(
                    FlowReset(
                        flow=flow.name,
                        dataset=flow.target,
                        sources=tuple((one.title(root), positions.get(one.index)) for one in planned.sources),
                        losses=len(opening.losses),
                        repeats=opening.repeats,
                    )
                )
        return ResetPlan(resets=tuple(resets), plan=plan)

    def reset(self, flows: Sequence[str], start: ChosenStart | None = None) -> ResetPlan:
        """Open new checkpoints. One commit of each table names the new one, and fences the old one. `start`:
        where their checkpoints start; by default they continue."""
        planned, update = self.plan(flows, start), new_update()
        plan, remedies = planned.plan, Remedies(reset=frozenset(flows), start=start)
        chosen = _chosen(plan, remedies)
        names = tuple(dict.fromkeys(one.dataset for one in planned.resets))
        with (
            closing(self._engine.context(plan.project, plan, update, remedies=remedies)) as context,
            logged_operation(self._settings, update, "RESET", names) as outcome,
            held_flows(chosen, context),
        ):
            for one in chosen:
                make_opener(one, plan, context).open(remedies)
            outcome.update(planned.to_json())
        return planned


def _chosen(plan: Plan, remedies: Remedies) -> list[PlannedFlow]:
    return [planned for planned in plan.flows if planned.flow.name in remedies.reset]
