"""Parts of a plan by name; errors suggest similar names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.errors import DatasetUnknownError, FlowUnknownError
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan.stages import Plan


def find_datasets(names: Iterable[str], plan: Plan) -> tuple[TableName, ...]:
    """The stored datasets that a user names.

    Raises:
        DatasetUnknownError: The pipeline declares none of this name.
    """
    if isinstance(names, str):
        names = [names]
    stored = [d.name for d in plan.datasets if isinstance(d, StreamingTable | MaterializedView)]
    found = []
    for text in names:
        name = plan.project.table_name(text)
        if name not in stored:
            near = difflib.get_close_matches(text, [n.name for n in stored] + [str(n) for n in stored], n=1)
            raise DatasetUnknownError(
                f"the pipeline {plan.project.name} declares no table `{text}`",
                remedies=(f"did you mean `{near[0]}`?" if near else "headrace plan lists its datasets",),
                params={"dataset": text},
            )
        found.append(name)
    return tuple(found)


def select(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan of some datasets only; the tables that they read are not updated.

    Raises:
        DatasetUnknownError: The pipeline declares none of this name.
    """
    wanted = frozenset(find_datasets(names, plan))
    changes = None if plan.changes is None else tuple(one for one in plan.changes if one.dataset in wanted)
    return replace(plan, selected=wanted, changes=changes)


def check_remedies(remedies: Remedies, plan: Plan) -> None:
    """Check that remedies name flows of the pipeline.

    Raises:
        FlowUnknownError: A flow does not exist.
    """
    known = [planned.flow.name for planned in plan.flows]
    for name in sorted(remedies.flows):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise FlowUnknownError(
                f"the pipeline {plan.project.name} declares no flow `{name}`",
                remedies=(f"did you mean `{near[0]}`?" if near else f"its flows: {', '.join(known)}",),
                params={"flow": name},
            )
