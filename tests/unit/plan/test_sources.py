"""What the sources of a plan hold, and which reads of a query are one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import PlanFailedError, TopicNotFoundError
from headrace.model.names import TableName
from headrace.plan.logical import Leaf
from headrace.plan.sources import find_sources, share_reads
from headrace.plan.stages import RunFlowStage
from headrace.storage.layout import Storage


class Missing:
    index = 0

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def find(self, systems: Any, *, is_new: bool) -> Any:
        raise TopicNotFoundError(f"no topic `{self.topic}`", params={"topic": self.topic})


def test_all_missing_topics_are_named_at_once(tmp_path: Path) -> None:
    stages = []
    for name in ("orders", "visits"):
        flow = SimpleNamespace(name=name, target=TableName("default", name))
        planned: Any = SimpleNamespace(flow=flow, sources=(Missing(name),))
        stages.append(RunFlowStage(planned=planned))
    project = SimpleNamespace(storage=Storage.at("./lake", tmp_path))
    plan: Any = SimpleNamespace(stages=stages, project=project)
    systems: Any = SimpleNamespace()
    with pytest.raises(PlanFailedError) as caught:
        find_sources(plan, systems)
    assert [one.params["topic"] for one in caught.value.errors] == ["orders", "visits"]
    stages[1].planned.sources[0].topic = "orders"
    with pytest.raises(TopicNotFoundError):
        find_sources(plan, systems)
    plan.stages = stages[:1]
    with pytest.raises(TopicNotFoundError):
        find_sources(plan, systems)


def leaf(read: int, provider: str, path: str, **options: str) -> Leaf:
    return Leaf(index=read, folder=read, read=read, provider=provider, options={"path": path, **options})


def test_equal_reads_of_a_table_are_one_read() -> None:
    leaves = [
        leaf(0, "delta", "/orders", **{"headrace.location": "a.py:1"}),
        leaf(1, "delta", "/orders", **{"headrace.location": "a.py:2"}),
        leaf(2, "delta", "/orders", skipChangeCommits="true"),
        leaf(3, "delta", "/others"),
        leaf(4, "json", "/landing"),
        leaf(5, "json", "/landing"),
        leaf(6, "parquet", "/stand-in"),
        leaf(7, "parquet", "/stand-in"),
    ]
    found = share_reads(leaves, lambda path: path == "/stand-in")
    assert [one.read for one in found] == [0, 0, 2, 3, 4, 5, 6, 6]
    assert [one.index for one in found] == [one.index for one in leaves]
