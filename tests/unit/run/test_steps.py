"""The steps of a batch: those of its function, joined with those that Spark reports."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from headrace.run.reporting import BatchSteps


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
    reported: list[dict[str, Any]] = []
    steps = BatchSteps(lambda: {"gc": 3}, lambda **found: reported.append(found))
    steps.look(query())
    steps.ended(7, {"turn": 0.0, "checks": 0.02, "write": 0.2, "commit": 0.05})
    steps.look(query(progress(6, WHOLE)))
    # A trigger that has found nothing has the number of the next batch.
    steps.look(query(progress(7, "{latestOffset=4, triggerExecution=5}")))
    assert reported == []
    for _ in range(2):
        steps.look(query(progress(6, WHOLE), progress(7, WHOLE)))
    expected = {"offsets": 16, "planning": 11, "turn": 0, "checks": 20, "write": 200, "commit": 50}
    expected |= {"report": 30, "marks": 9}
    at = datetime(2026, 11, 27, 9, 0, 0, 440_000, UTC)
    assert reported == [{"at": at, "batch": 7, "steps_ms": expected, "jvm_ms": {"gc": 3}}]
    assert list(reported[0]["steps_ms"]) == list(expected)


def test_an_error_of_a_report_fails_no_flow() -> None:
    def fail(**_: Any) -> dict[str, int]:
        failed.append(1)
        raise RuntimeError("gone")

    failed: list[int] = []
    BatchSteps(fail, fail).ended(7, {})
    steps = BatchSteps(dict, fail)
    steps.ended(7, {})
    steps.look(query(progress(7, WHOLE)))
    assert len(failed) == 2
