"""Decorators of expectations: which dataset gets them, in which order, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr
from headrace.errors import ArgumentInvalidError, ExpectationInvalidError, PipelineFileFailedError
from headrace.model.declarations import Declarations, StreamingTable

Load = Callable[..., Declarations]

HEAD = "import headrace as hr\n"


def expectations(declared: Declarations) -> list[tuple[str, str, str]]:
    (dataset,) = declared.datasets
    return [(one.name, one.action, one.text) for one in dataset.expectations]


@pytest.mark.parametrize("decorator", ["@hr.table", "@hr.materialized_view()", "@hr.temporary_view"])
@pytest.mark.parametrize("above", [True, False])
def test_a_decorator_may_be_above_or_below_the_table(load: Load, decorator: str, above: bool) -> None:
    expected = '@hr.expect("has an id", "id IS  NOT\\n NULL")'
    lines = [expected, decorator] if above else [decorator, expected]
    declared = load(HEAD + "\n".join([*lines, "def orders():", "    ..."]))
    assert expectations(declared) == [("has an id", "warn", "id IS NOT NULL")]


def test_expectations_keep_the_order_in_which_they_are_read(load: Load) -> None:
    declared = load(
        HEAD
        + """
@hr.expect_or_drop("one", "a > 1")
@hr.table
@hr.expect_all_or_fail({"two": "a > 2", "three": "a > 3"})
@hr.expect_or_quarantine("four", "a > 4", nulls="fail")
def orders(): ...
"""
    )
    assert expectations(declared) == [
        ("one", "drop", "a > 1"),
        ("two", "fail", "a > 2"),
        ("three", "fail", "a > 3"),
        ("four", "quarantine", "a > 4"),
    ]
    (dataset,) = declared.datasets
    assert [one.nulls for one in dataset.expectations] == [None, None, None, "fail"]
    assert [one.location.line for one in dataset.expectations] == [3, 5, 5, 6]


def test_a_table_of_append_flows_takes_them_as_arguments(load: Load) -> None:
    declared = load(
        HEAD
        + """
hr.create_streaming_table("orders", expect_all={"a": "x > 0"}, expect_all_or_quarantine={"b": "y > 0"})
@hr.append_flow(target="orders")
def europe(): ...
"""
    )
    assert expectations(declared) == [("a", "warn", "x > 0"), ("b", "quarantine", "y > 0")]


def test_a_table_of_append_flows_takes_checks_as_an_argument(load: Load) -> None:
    declared = load(
        HEAD
        + """
hr.create_streaming_table("orders", checks=[
    hr.expect_unique("id", fail=True), hr.expect_fresh("at", within="1 hour"), hr.expect_row_count(like="raw")
])
"""
    )
    (dataset,) = declared.datasets
    assert isinstance(dataset, StreamingTable)
    assert [(one.name, one.fails, one.location.line) for one in dataset.checks] == [
        ("unique id", True, 4),
        ("at within 3600 s", False, 4),
        ("as many rows as raw", False, 4),
    ]


def test_files_of_spark_pipelines_may_use_them(load: Load) -> None:
    declared = load(
        HEAD
        + """
from pyspark import pipelines as dp
@dp.table
@hr.expect("a", "x > 0")
def orders(): ...
"""
    )
    assert expectations(declared) == [("a", "warn", "x > 0")]


def test_checks_of_a_whole_dataset(load: Load) -> None:
    declared = load(
        HEAD
        + """
@hr.table
@hr.expect_unique(["id", "day"])
@hr.expect_row_count(like="raw", fail=True)
@hr.expect_fresh("at", within="15 minutes")
@hr.expect("a", "x > 0")
def orders(): ...
"""
    )
    (dataset,) = declared.datasets
    assert isinstance(dataset, StreamingTable)
    assert [(one.name, one.fails, one.location.line) for one in dataset.checks] == [
        ("unique id, day", False, 4),
        ("as many rows as raw", True, 5),
        ("at within 900 s", False, 6),
    ]
    assert expectations(declared) == [("a", "warn", "x > 0")]


@pytest.mark.parametrize(
    "call",
    [
        "expect_unique([])",
        "expect_unique(1)",
        'expect_fresh("at", within="soon")',
        "expect_row_count(like=1)",
    ],
)
def test_a_wrong_check_is_refused(load: Load, call: str) -> None:
    with pytest.raises(ArgumentInvalidError):
        load(f"{HEAD}@hr.table\n@hr.{call}\ndef orders(): ...\n")


@pytest.mark.parametrize("checks", ['hr.expect_unique("id")', '[hr.expect("a", "x > 0")]', '["id"]', "1"])
def test_checks_of_a_table_are_a_list(load: Load, checks: str) -> None:
    with pytest.raises(ArgumentInvalidError, match="checks"):
        load(f'{HEAD}hr.create_streaming_table("orders", checks={checks})\n')


def test_a_temporary_view_has_no_checks(load: Load) -> None:
    with pytest.raises(ExpectationInvalidError) as caught:
        load(HEAD + '@hr.temporary_view\n@hr.expect_unique("id")\ndef orders(): ...\n')
    assert "has no table for the check `unique id`" in caught.value.summary


def test_an_append_flow_has_no_expectations_of_its_own(load: Load) -> None:
    with pytest.raises(ExpectationInvalidError) as caught:
        load(
            HEAD
            + """
hr.create_streaming_table("orders")
@hr.append_flow(target="orders")
@hr.expect("a", "x > 0")
def europe(): ...
"""
        )
    assert "`europe` has expectations and declares no dataset" in str(caught.value)
    assert caught.value.location is not None and caught.value.location.line == 5
    assert "expect_all={..}" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ('hr.expect("", "x > 0")', "not a name"),
        ('hr.expect("a\\nb", "x > 0")', "not a name"),
        ("hr.expect(1, 'x > 0')", "name must be text"),
        ('hr.expect("a", True)', "must be SQL text or a Column"),
        ('hr.expect("a", " ")', "must be SQL text or a Column"),
        ('hr.expect("a", "x > 0", nulls="drop")', 'nulls must be "pass" or "fail"'),
        ('hr.expect_all("x > 0")', "must be a dict of conditions by name"),
    ],
)
def test_wrong_arguments_are_refused(load: Load, call: str, problem: str) -> None:
    with pytest.raises((ArgumentInvalidError, PipelineFileFailedError), match=problem):
        load(f"{HEAD}@hr.table\n@{call}\ndef orders(): ...\n")


def test_outside_of_a_pipeline_the_function_stays_as_it_is() -> None:
    def orders() -> int:
        return 7

    assert hr.expect("a", "x > 0")(orders) is orders
    with pytest.raises(ArgumentInvalidError, match="must be put on a function"):
        hr.expect("a", "x > 0")(None)  # type: ignore[type-var]
