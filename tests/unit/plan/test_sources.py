"""What the sources of a plan hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import PlanFailedError, TopicNotFoundError
from headrace.model.names import TableName
from headrace.plan.sources import find_sources
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
