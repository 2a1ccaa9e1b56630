"""Full refreshes: which datasets may be rebuilt, and which losses are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import FullRefreshNotAllowedError, RefreshLosesDataError, SourceLocation
from headrace.model.declarations import StreamingTable
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.stages import Plan
from headrace.project.refresh import RefreshPlan, UnrecoverableData, choose_datasets

ORDERS, KEPT = TableName("default", "orders"), TableName("default", "kept")


@pytest.fixture
def plan(make_project: Callable[..., ProjectSettings]) -> Plan:
    location = SourceLocation("shop.py", 3)
    properties = {"Pipelines.reset.allowed": "False"}
    return Plan(
        project=make_project(),
        datasets=(
            StreamingTable(name=ORDERS, location=location),
            StreamingTable(name=KEPT, location=location, table_properties=properties),
        ),
        all_levels=(),
    )


def test_a_table_that_forbids_it_is_not_rebuilt(plan: Plan) -> None:
    assert choose_datasets(["orders"], plan) == (ORDERS,)
    assert choose_datasets(None, plan) == (ORDERS,)
    with pytest.raises(FullRefreshNotAllowedError) as caught:
        choose_datasets(["orders", "kept"], plan)
    assert (caught.value.params["dataset"], str(caught.value.location)) == ("default.kept", "shop.py:3")


def test_a_loss_is_accepted_by_the_name_of_its_dataset(plan: Plan) -> None:
    def refused(accept: list[str], *gone: UnrecoverableData) -> bool:
        planned = RefreshPlan(plan=plan, names=(ORDERS,), downstream=(), sizes={}, gone=gone)
        try:
            planned.refuse_losses(accept)
        except RefreshLosesDataError:
            return True
        return False

    expired = UnrecoverableData(dataset=ORDERS, text="20 records have expired", count=20)
    once = UnrecoverableData(dataset=ORDERS, text="the folder is gone", count=None, flow="history")
    assert not refused([])
    assert refused([], expired) and refused(["kept"], expired) and not refused(["orders"], expired)
    assert refused(["orders"], once)
