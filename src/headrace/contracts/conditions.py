"""Conditions on the rows of a query, resolved as those of a filter on its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.runtime.gateway import frame_of_plan
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.runtime.quiet import quiet

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


def with_conditions(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The rows with columns, each of which has an alias.

    Like the condition of a filter, a column can use what the query's result does not have: a column that the
    query has left out, and one that a join hides, such as ``customers.id`` after ``join(.., "id")``.
    """
    from pyspark.errors import AnalysisException

    try:
        with quiet():
            return rows.select("*", *columns)
    except AnalysisException as error:
        if not is_unresolved(error):
            raise
        # Spark resolves few names in this way, and only in filters and sorts.
        return _reaching(rows, columns)


def is_unresolved(error: PySparkException) -> bool:
    """Whether Spark has not found a column."""
    return (error.getCondition() or "").startswith("UNRESOLVED_COLUMN")


def _reaching(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    session = rows.sparkSession
    jvm: Any = session._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    filtered: Any = rows.where(F.struct(*columns).isNotNull())._jdf.queryExecution().analyzed()
    while str(filtered.nodeName()) == "Project":
        # Spark has removed the columns that it has added for the condition.
        filtered = filtered.child()
    struct = filtered.condition().child()
    named = getattr(getattr(expressions, "NamedExpression$"), "MODULE$")
    none = jvm.PythonUtils.toSeq([])
    output: Any = rows._jdf.queryExecution().analyzed().output()
    for index in range(struct.valExprs().size()):
        name = str(struct.names().apply(index))
        alias = expressions.Alias(
            struct.valExprs().apply(index), name, named.newExprId(), none, jvm.scala.Option.empty(), none
        )
        output = output.appended(alias)
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
    return frame_of_plan(session, project(output, filtered.child()))
