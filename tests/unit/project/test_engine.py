"""A registry that does not answer while a run is planned is asked again."""

from __future__ import annotations

import pytest

from headrace.errors import SchemaRegistryUnreachableError
from headrace.project import engine
from headrace.project.engine import plan_with_retries
from headrace.run.stop import StopSignal


def failing(times: int) -> tuple[list[int], object]:
    """A function that fails some times, and its calls."""
    calls: list[int] = []

    def plan() -> str:
        calls.append(len(calls))
        if len(calls) <= times:
            raise SchemaRegistryUnreachableError("the registry does not answer")
        return "the plan"

    return calls, plan


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_WAITS_S", (0.0, 0.0))


def test_a_registry_that_answers_later_is_enough() -> None:
    calls, plan = failing(2)
    assert plan_with_retries(plan, None) == "the plan"  # type: ignore[arg-type]
    assert len(calls) == 3


def test_the_last_failure_is_reported() -> None:
    calls, plan = failing(9)
    with pytest.raises(SchemaRegistryUnreachableError):
        plan_with_retries(plan, None)  # type: ignore[arg-type]
    assert len(calls) == 3


def test_a_stop_ends_the_attempts() -> None:
    calls, plan = failing(9)
    stop = StopSignal()
    stop.request()
    with pytest.raises(SchemaRegistryUnreachableError):
        plan_with_retries(plan, stop)  # type: ignore[arg-type]
    assert len(calls) == 1
