"""The steps of a batch: those of its function, joined with those that Spark reports."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from headrace.run.steps import BatchSteps


def progress(batch: int, durations: str) -> Any:
    """A progress report of Spark, as it comes from the JVM."""
    return SimpleNamespace(
        batchId=lambda: batch,
        durationMs=lambda: SimpleNamespace(toString=lambda: durations),
        timestamp=lambda: "2026-11-27T09:00:00.100Z",
    )


def query(*reports: Any) -> Any:
    newest = reports[-1] if reports else None
    return SimpleNamespace(
        name="orders", _jsq=SimpleNamespace(lastProgress=lambda: newest, recentProgress=lambda: list(reports))
    )


WHOLE = (
    "{addBatch=300, commitOffsets=9, getBatch=1, latestOffset=4, queryPlanning=10, triggerExecution=340, "
    "walCommit=12}"
)


def test_the_steps_of_a_batch_are_reported_once_spark_has_reported_it() -> None:
    reported: list[tuple[str, int, Mapping[str, int], Mapping[str, int]]] = []
    steps = BatchSteps(lambda at, *found: reported.append((at.isoformat(), *found)))
    steps.look(query())
    steps.ended(7, {"turn": 0.0, "checks": 0.02, "write": 0.2, "commit": 0.05}, {"gc": 3})
    steps.look(query(progress(6, WHOLE)))
    # A trigger that has found nothing has the number of the next batch.
    steps.look(query(progress(7, "{latestOffset=4, triggerExecution=5}")))
    assert reported == []
    for _ in range(2):
        steps.look(query(progress(6, WHOLE), progress(7, WHOLE)))
    expected = {"offsets": 16, "planning": 11, "turn": 0, "checks": 20, "write": 200, "commit": 50}
    expected |= {"report": 30, "marks": 9}
    assert reported == [("2026-11-27T09:00:00.440000+00:00", 7, expected, {"gc": 3})]
    assert list(reported[0][2]) == list(expected)


def test_an_error_of_a_report_fails_no_flow() -> None:
    steps = BatchSteps(cast(Any, None))
    steps.ended(7, {}, {})
    steps.look(query(progress(7, WHOLE)))
