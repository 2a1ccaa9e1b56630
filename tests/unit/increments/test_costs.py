"""A view under AUTO is refreshed by what has changed only if that costs less than the whole view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from headrace.increments.by_keys import inside_of
from headrace.increments.costs import Costs, faded, is_small, with_attempt
from headrace.increments.increment import NotIncrementalError
from headrace.model.declarations import RefreshPolicy
from headrace.run.increments import reason_of
from headrace.storage.row_counts import refresh_seconds
from headrace.storage.table_log import LoggedCommit

MB = 10**6
COSTS = Costs(
    seconds={"full": 8.0},
    changed_rows=1_000,
    changed_bytes=MB,
    input_bytes=500 * MB,
    view_rows=1_000_000,
    view_bytes=50 * MB,
)
REJECTED = "INCREMENTAL_PLAN_REJECTED_BY_COST_MODEL"


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [
        ({}, 500 * MB, False),
        ({}, 31 * MB, True),
        ({"full": 1.9}, 500 * MB, True),
        ({"full": 9.0}, 31 * MB, True),
        ({"full": 2.0}, 32 * MB, False),
    ],
)
def test_a_view_that_is_computed_in_two_seconds_is_computed_as_a_whole(
    seconds: dict[str, float], size: int, expected: bool
) -> None:
    assert is_small(seconds, lambda: size) is expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"changed_rows": 300_000}, None),
        ({"changed_rows": 300_000, "changed_bytes": 150 * MB}, "300,000 rows have changed"),
        ({"changed_bytes": 600 * MB}, "about as much as the whole view"),
        ({"seconds": {"full": 8.0, "merge": 9.1}}, "took 9.1 s, the whole view 8.0 s"),
        ({"seconds": {"full": 8.0, "merge": 7.9}}, None),
    ],
)
def test_aggregates_are_merged_if_the_change_is_small(change: dict[str, object], reason: str | None) -> None:
    costs = replace(COSTS, **change)
    if reason is None:
        costs.check("merge")
        return
    with pytest.raises(NotIncrementalError, match=reason):
        costs.check("merge")


@pytest.mark.parametrize(
    ("keys", "read", "is_expensive", "reason"),
    [
        (1_000, 10 * MB, False, None),
        (100_000, 10 * MB, False, None),  # pruned: up to a fifth of the view
        (300_000, 10 * MB, False, "300,000 keys are affected"),
        (100_000, 400 * MB, False, "100,000 keys are affected"),
        (100_000, 300 * MB, True, None),
        (1_000, 400 * MB, False, "about as much as the whole view"),
    ],
)
def test_keys_are_computed_again_if_they_are_few(
    keys: int, read: int, is_expensive: bool, reason: str | None
) -> None:
    COSTS.check("keys")
    if reason is None:
        assert COSTS.check_keys(keys, read, is_expensive=is_expensive) >= keys
        return
    with pytest.raises(NotIncrementalError, match=reason):
        COSTS.check_keys(keys, read, is_expensive=is_expensive)


def test_keys_are_not_computed_again_where_the_whole_view_takes_less_than_five_seconds() -> None:
    with pytest.raises(NotIncrementalError, match=r"takes 4\.9 s"):
        replace(COSTS, seconds={"full": 4.9}).check("keys")


def test_keys_are_not_looked_for_if_the_change_alone_is_too_large() -> None:
    with pytest.raises(NotIncrementalError, match="about as much as the whole view"):
        replace(COSTS, changed_bytes=170 * MB).check("keys")
    replace(COSTS, changed_bytes=170 * MB).check("keys", is_expensive=True)


def test_keys_that_were_looked_for_in_vain_are_not_looked_for_at_each_refresh() -> None:
    seconds, looks = {"full": 10.0}, 0
    for _ in range(100):
        if seconds.get("keys", 0.0) <= seconds["full"]:
            looks += 1
            seconds = {**with_attempt(seconds, 3.0), "full": 10.0}
        else:
            seconds = {**faded(seconds, "full"), "full": 10.0}
    assert looks * 3.0 < 0.03 * 100 * 10.0
    assert with_attempt({"full": 10.0}, 0.1) == {}


def test_a_slow_strategy_is_tried_again_some_day() -> None:
    seconds = {"full": 5.0, "merge": 6.0}
    for _ in range(10):
        seconds = {**faded(seconds, "full"), "full": 5.0}
    assert seconds["merge"] < 5.0


def test_the_seconds_of_a_first_increment_count_less() -> None:
    """It also compiles its code: a second one shows what it takes."""
    first = {"began": 1, "increment": {"strategy": "keys", "first": True}, "seconds": {"full": 5.0}}
    again = {**first, "increment": {"strategy": "keys"}}
    assert refresh_seconds(_refresh(first, 6001)) == {"full": 5.0, "keys": 4.0}
    assert refresh_seconds(_refresh(again, 6001)) == {"full": 5.0, "keys": 6.0}


def _refresh(metadata: dict[str, Any], timestamp_ms: int) -> LoggedCommit:
    return LoggedCommit(1, timestamp_ms, metadata, {}, "WRITE", "Headrace", True)


def test_files_are_not_left_out_by_dates_that_python_does_not_have() -> None:
    column: Any = None
    assert inside_of(column, pa.array([5_000_000], type=pa.date32())) is None


@pytest.mark.parametrize(
    ("error", "policy", "text"),
    [
        (PySparkException("[ARITHMETIC_OVERFLOW] overflow"), "incremental", "OVERFLOW"),
        (PySparkException("a file is lost"), "auto", "a file is lost"),
        (PySparkException("a file is lost"), "incremental", None),
        (RuntimeError("a failure of Headrace"), "auto", None),
    ],
)
def test_the_whole_view_is_computed_if_an_increment_fails_that_nobody_has_asked_for(
    error: Exception, policy: RefreshPolicy, text: str | None
) -> None:
    reason = reason_of(error, policy)
    assert reason is None if text is None else text in str(reason)
