"""Expectations on a real Spark: what `plan` refuses, and which rows a run keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.contracts.expectations import RowSplit, with_checks
from headrace.contracts.rejected import REASONS
from headrace.declare.loader import activate, load_declarations
from headrace.declare.registry import ActivePipeline
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import Action, Expectation
from headrace.model.project import ProjectSettings
from headrace.plan.build import build_plan
from headrace.plan.evaluate import loading
from headrace.plan.stages import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Planned = Callable[[str], Plan]

ORDERS = """\
import headrace as hr
from pyspark.sql import Window, functions as F
from headrace import spark

@hr.table
{expectations}
def orders():
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().select(
        F.col("value").alias("id"), F.lit("ada").alias("customer"), F.array(F.lit(1)).alias("items")
    )
"""


@pytest.fixture
def planned(spark: SparkSession, make_project: Callable[[str], ProjectSettings]) -> Planned:
    """Plan a pipeline of one file."""
    settings = make_project("127.0.0.1:9")

    def run(source: str) -> Plan:
        file = settings.root / "transformations" / "orders.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        found = ProjectSettings(
            **{**vars(settings), "libraries": ("transformations/**",), "redactor": settings.redactor}
        )
        active = ActivePipeline(found, lambda: spark)
        with loading(found, lambda: spark) as session:
            declarations = load_declarations(found, session)
        with activate(active):
            return build_plan(spark, found, declarations, offline=True)

    return run


def refusal(planned: Planned, expectations: str, source: str = ORDERS) -> str:
    with pytest.raises(HeadraceError) as caught:
        planned(source.format(expectations=expectations))
    return str(caught.value)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ('"amount > 0"', "uses the column `amount`, which the query does not return"),
        ("\"custmer = 'ada'\"", "did you mean `customer`"),
        ('"id >"', "cannot be resolved"),
        ('"id + 1"', "gives BIGINT, not BOOLEAN"),
        ('"rand() > 0.5"', "is not deterministic"),
        ('"id in (select 1)"', "has a subquery"),
        ('"exists (select 1)"', "has a subquery"),
        ('"count(*) > 0"', "needs other rows"),
        ('"explode(items) > 0"', "cannot be resolved"),
        ('F.col("amount") > 0', "uses the column `amount`"),
        ('"row_number() over (order by id) < 3"', "needs other rows"),
        ('F.max("id").over(Window.partitionBy("customer")) > 1', "needs other rows"),
    ],
)
def test_plan_refuses_a_condition_that_cannot_be_checked(
    planned: Planned, condition: str, problem: str
) -> None:
    text = refusal(planned, f'@hr.expect("valid", {condition})')
    assert problem in text
    assert "`valid` of `orders`" in text
    assert "transformations/orders.py:6" in text


def test_a_condition_on_a_column_that_was_left_out_before_distinct_is_refused(planned: Planned) -> None:
    # Of equal rows, one can pass and another one can fail.
    view = """
@hr.materialized_view
@hr.expect_or_drop("valid", "id > 0")
def customers():
    return spark.read.table("orders").select("customer").distinct()
"""
    text = refusal(planned, "", ORDERS + view)
    assert (
        "`valid` of `customers` uses a column that the rows do not have when duplicates are removed" in text
    )
    planned((ORDERS + view.replace("id > 0", "customer <> 'ada'")).format(expectations=""))


def test_plan_names_every_wrong_expectation_at_once(planned: Planned) -> None:
    text = refusal(planned, '@hr.expect("one", "x > 0")\n@hr.expect_or_drop("two", "id + 1")')
    assert "`one`" in text and "`two`" in text


def test_a_name_is_used_once_in_a_dataset(planned: Planned) -> None:
    text = refusal(planned, '@hr.expect("valid", "id > 0")\n@hr.expect_or_drop("valid", "id > 1")')
    assert "`valid` of `orders` is declared twice" in text


def test_plan_refuses_a_quarantine_of_a_temporary_view(planned: Planned) -> None:
    text = refusal(
        planned,
        "",
        ORDERS
        + """
@hr.temporary_view
@hr.expect_or_quarantine("valid", "id > 0")
def small():
    return spark.read.table("orders")
""",
    )
    assert "a temporary view has none" in text


def test_plan_refuses_columns_with_the_names_of_checks(planned: Planned) -> None:
    text = refusal(
        planned, '@hr.expect("valid", "id > 0")', ORDERS.replace('"customer"', '"__HEADRACE_check_0"')
    )
    assert "returns the column `__HEADRACE_check_0`" in text
    assert "transformations/orders.py:7" in text


def test_a_view_with_a_python_condition_has_the_same_fingerprint_at_each_load(planned: Planned) -> None:
    """Until its code changes; and fields whose name has a dot are no coordinates."""
    source = """\
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.table
def orders():
    raw = hr.read_kafka("orders").drop("_source")
    source = F.struct(F.col("key").alias("a.b"), F.lit(1).alias("path"), F.lit("x").alias("offset"))
    return raw.withColumn("_source", source)

@hr.materialized_view
@hr.expect_or_drop("even", F.udf(lambda n: n % 2 == 0, "boolean")("n"))
def view():
    return spark.read.table("orders").selectExpr("length(value) AS n")
"""
    first, second = ([one.fingerprint for one in planned(source).refreshes] for _ in range(2))
    assert first == second
    assert [one.fingerprint for one in planned(source.replace("== 0", "== 1")).refreshes] != first


def test_conditions_of_deterministic_functions_and_the_clock_are_allowed(planned: Planned) -> None:
    plan = planned(
        ORDERS.format(
            expectations='@hr.expect("now", "current_timestamp() > timestamp\'2020-01-01\'")\n'
            '@hr.expect_or_drop("column", F.col("customer").isin("ada", "bob"))\n'
            '@hr.expect("null", "NULL")'
        )
    )
    (flow,) = plan.flows
    assert [(one.name, one.nulls) for one in flow.expectations] == [
        ("now", "pass"),
        ("column", "pass"),
        ("null", "pass"),
    ]


def test_a_dropping_view_is_not_row_by_row(planned: Planned, tmp_path: Path) -> None:
    """Rows that a view drops are in no table, so records cannot be judged one by one."""
    source = """\
import headrace as hr
from headrace import spark

@hr.temporary_view
{expectations}
def raw():
    return hr.read_kafka("orders")

@hr.table
def orders():
    return spark.readStream.table("raw")
"""
    (kept,) = planned(source.format(expectations='@hr.expect("offset", "_source.offset > 1")')).flows
    (dropped,) = planned(
        source.format(expectations='@hr.expect_or_drop("offset", "_source.offset > 1")')
    ).flows
    assert kept.coordinates is not None
    assert dropped.coordinates is None


def test_rows_are_split_and_counted_by_any_number_of_expectations(spark: SparkSession) -> None:
    actions: list[Action] = ["drop", "quarantine", "warn"]
    conditions = [f"id < {n}" if n % 3 == 2 else f"id <> {n}" for n in range(130)]
    expectations = [
        Expectation(
            name=str(number),
            condition=condition,
            text=condition,
            action=actions[number % 3],
            location=SourceLocation("orders.py", 1),
        )
        for number, condition in enumerate(conditions)
    ]
    split = RowSplit(with_checks(spark.range(200).toDF("id"), expectations), expectations, "orders")
    accepted = [row.id for row in split.accepted.collect()]
    assert sorted(accepted) == [id for id in range(200) if id >= 130 or id % 3 == 2]
    counts = split.counts(len(accepted))
    assert (counts.input, counts.quarantined, counts.dropped) == (200, 43, 44)
    failed = [200 - n if n % 3 == 2 else 1 for n in range(130)]
    assert [(one.passed, one.failed) for one in counts.expectations] == [(200 - n, n) for n in failed]
    reasons = {row.id: row[REASONS] for row in split.quarantined.collect()}
    assert reasons.keys() == set(range(1, 130, 3))
    assert reasons[7] == ["2", "5", "7"]
