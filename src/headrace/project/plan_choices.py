"""The datasets and flows of a plan that a user names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.errors import DatasetUnknownError, FlowUnknownError, did_you_mean
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan.stages import Plan


def find_datasets(names: Iterable[str], plan: Plan) -> tuple[TableName, ...]:
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
