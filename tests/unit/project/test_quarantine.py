"""A replay names the flows whose rows it can replay; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import ReplayImpossibleError
from headrace.model.names import TableName
from headrace.plan.stages import Plan
from headrace.project.quarantine import _flows_of

ORDERS = TableName("default", "orders")


def plan(*flows: str) -> Plan:
    declared = [SimpleNamespace(flow=SimpleNamespace(name=name)) for name in flows]
    return cast("Plan", SimpleNamespace(refreshes=(), feeding=lambda _: declared))


def test_rows_of_a_flow_that_no_file_declares_leave_the_other_flows() -> None:
    ids: dict[str, Any] = {"gone": [1], "here": [2]}
    with pytest.raises(ReplayImpossibleError) as caught:
        _flows_of(ORDERS, plan("here", "idle"), ids)
    assert [one.rpartition(":   ")[2] for one in caught.value.remedies] == [
        "headrace quarantine replay orders --flow here",
        "headrace quarantine discard orders --flow gone",
    ]
