"""Checks of expectations against the columns of their dataset, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headrace.contracts.expectations import OWN_COLUMNS, condition, is_unresolved, with_conditions
from headrace.errors import ColumnInvalidError, ExpectationInvalidError, HeadraceError
from headrace.model.declarations import Dataset, Declarations, Expectation, TemporaryView
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.evaluate import missing_column, shortened
from headrace.plan.intercept import suspended
from headrace.plan.logical import LogicalPlan, Node, read_plan
from headrace.runtime.lazy_pyspark import Column, DataFrame, SparkSession
from headrace.syntax.locations import argument_location

_PASSES = f"{OWN_COLUMNS}passes"


def check_declared_expectations(declarations: Declarations) -> Iterator[HeadraceError]:
    """The errors that show without the columns: names that are used twice, quarantine in a view, and checks
    that name no table."""
    stored = [one.name for one in declarations.datasets if not isinstance(one, TemporaryView)]
    for dataset in declarations.datasets:
        for check in () if isinstance(dataset, TemporaryView) else dataset.checks:
            if check.like and TableName.parse(check.like, dataset.name.schema) not in stored:
                yield ExpectationInvalidError(
                    f"the check `{check.name}` of `{dataset.name.short}` names `{check.like}`, which is "
                    "not a table or materialized view of this pipeline",
                    location=check.location,
                    facts=[f"its tables: {', '.join(one.short for one in stored)}"],
                    remedies=["name one of them"],
                    params={"dataset": str(dataset.name), "expectation": check.name},
                )
        counted = Counter(one.name for one in dataset.expectations)
        for one in {one.name: one for one in dataset.expectations}.values():
            if counted[one.name] > 1:
                yield _invalid(one, dataset, "is declared twice", "give each expectation its own name")
            if one.action == "quarantine" and isinstance(dataset, TemporaryView):
                yield _invalid(
                    one,
                    dataset,
                    "would move rows of a temporary view to a quarantine table; a temporary view has none",
                    "use it on the table that reads the view, or expect_or_drop here",
                )


def check_conditions(
    session: SparkSession, frame: DataFrame, dataset: Dataset, settings: ProjectSettings
) -> Iterator[HeadraceError]:
    if not dataset.expectations:
        return
    taken = [name for name in frame.columns if name.lower().startswith(OWN_COLUMNS)]
    if taken:
        yield ColumnInvalidError(
            f"the query of `{dataset.name.short}` returns the column `{taken[0]}`",
            location=dataset.location,
            facts=[f"the columns that check expectations have names that begin with `{OWN_COLUMNS}`"],
            remedies=[f'select it under another name: F.col("{taken[0]}").alias("{taken[0].lstrip("_")}")'],
            params={"dataset": str(dataset.name), "column": taken[0]},
        )
        return
    for expectation in dataset.expectations:
        with suspended():
            error = _check(session, frame, dataset, expectation, settings)
        if error is not None:
            yield error


def _check(
    session: SparkSession,
    frame: DataFrame,
    dataset: Dataset,
    expectation: Expectation,
    settings: ProjectSettings,
) -> HeadraceError | None:
    from pyspark.errors import PySparkException

    try:
        checked = _checked(frame, condition(expectation).alias(_PASSES))
    except PySparkException as error:
        missing = missing_column(error, dataset.name.short, expectation.location, settings.root)
        if missing is not None:
            return missing.with_(
                summary=f"the expectation `{expectation.name}` of `{dataset.name.short}` uses the column "
                f"`{missing.params['column']}`, which the query does not return"
            )
        remedy = "write a whole SQL condition, such as `id > 0`"
        return _invalid(expectation, dataset, f"cannot be resolved: {shortened(str(error))}", remedy)
    problem = _problem(read_plan(session, checked), checked, frame)
    return None if problem is None else _invalid(expectation, dataset, *problem)


def _checked(frame: DataFrame, column: Column) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return frame.select(column)
    except AnalysisException as error:
        if not is_unresolved(error):
            raise
        return with_conditions(frame, [column])


def _problem(plan: LogicalPlan, checked: DataFrame, frame: DataFrame) -> tuple[str, str] | None:
    """What is wrong with a condition, and the remedy."""
    column = checked.schema.fields[-1]
    if column.dataType.typeName() not in ("boolean", "void"):
        return (
            f"gives {column.dataType.simpleString().upper()}, not BOOLEAN",
            "compare the value, as in `amount > 0`",
        )
    # Spark puts a window or a generator between the condition and the query, or an aggregate into the query.
    if plan.root.kind != "Project" or not _is_over(plan, frame):
        return (
            "needs other rows than the one it checks (an aggregate, a window or a generator)",
            "compute the value in the query, or check it in a materialized view",
        )
    if _widens_distinct(plan.java_plan.child(), frame):
        return (
            "uses a column that the rows do not have when duplicates are removed",
            "select the column, or check the rows in a temporary view, before duplicates are removed",
        )
    expression = plan.java_plan.expressions().last()
    jvm: Any = checked.sparkSession._jvm
    if expression.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()):
        return "has a subquery", "join the other table in the query, and compare the joined column"
    if not expression.deterministic():
        return (
            "is not deterministic: checked again, the same row could give another result",
            "leave out rand(), uuid() and the like; current_timestamp() is allowed",
        )
    return None


def _is_over(plan: LogicalPlan, frame: DataFrame) -> bool:
    """Whether a condition is computed right above its query, which may return more columns for it."""
    query: Any = frame._jdf
    if plan.java_plan.child().equals(query.queryExecution().analyzed()):
        return True
    return _nodes(plan.root.children[0]) == _nodes(read_plan(frame.sparkSession, frame).root)


_DISTINCT = frozenset({"Distinct", "Deduplicate", "DeduplicateWithinWatermark"})


def _widens_distinct(checked: Any, frame: DataFrame) -> bool:
    """Whether rows that are equal in the result differ in a column that was added for a condition."""
    query: Any = frame._jdf
    original = query.queryExecution().analyzed()
    while checked.children().size() == 1 and original.children().size() == 1:
        if str(checked.nodeName()) in _DISTINCT and checked.output().size() > original.output().size():
            return True
        checked, original = checked.child(), original.child()
    return False


def _nodes(root: Node) -> list[tuple[str, int]]:
    return [(node.kind, len(node.fields.get("aggregateExpressions") or ())) for node in root.walk()]


def _invalid(
    expectation: Expectation, dataset: Dataset, problem: str, remedy: str
) -> ExpectationInvalidError:
    return ExpectationInvalidError(
        f"the expectation `{expectation.name}` of `{dataset.name.short}` {problem}",
        location=argument_location(expectation.location, "", expectation.text),
        facts=[f"condition: {expectation.text}"],
        remedies=[remedy],
        params={"dataset": str(dataset.name), "expectation": expectation.name},
    )
