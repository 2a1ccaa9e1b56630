"""The groups of a stream that is aggregated without a watermark: the flow keeps one row for each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import FlowKindsDifferError, HeadraceError, StreamingUnsupportedError
from headrace.model.declarations import AppendFlow, Declarations, Groups, StreamingFlow, StreamingTable
from headrace.plan.logical import LogicalPlan
from headrace.plan.names import shown
from headrace.plan.validate import check_appends
from headrace.syntax.sql import items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSED = frozenset({"SubqueryAlias", "View"})


def check_output(
    session: SparkSession,
    plan: LogicalPlan,
    table: StreamingTable,
    flow: StreamingFlow,
    declarations: Declarations,
) -> Declarations:
    """Check that Spark can run a query as a stream.

    Returns:
        The declarations, with the groups of the flow if it aggregates without a watermark.

    Raises:
        StreamingUnsupportedError: Spark cannot run it, or its rows are not the groups of one aggregation.
        FlowKindsDifferError: It aggregates, and another flow writes the table, too.
    """
    from pyspark.errors import AnalysisException

    jvm: Any = session._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    try:
        try:
            checker.checkForStreaming(plan.java_plan, modes.Append())
        except AnalysisException as error:
            if "aggregations without watermark" not in str(error):
                raise
            checker.checkForStreaming(plan.java_plan, modes.Update())
            return declarations.with_flow(_with_groups(plan, flow, table, declarations))
    except AnalysisException as error:
        raise check_appends(error, flow.name, flow.location) from None
    return declarations


def _with_groups(
    plan: LogicalPlan, flow: StreamingFlow, table: StreamingTable, declarations: Declarations
) -> AppendFlow:
    """The flow with the groups of its query."""
    if not isinstance(flow, AppendFlow):
        raise _unsupported(flow, "change records are aggregated", "aggregate them in a table of their own")
    if table.sink is not None:
        raise _unsupported(
            flow,
            "a sink gets rows that do not change",
            "declare a table that aggregates, and send its changes: hr.read_changes",
        )
    others = [one for one in declarations.streaming_flows if one.target == table.name and one is not flow]
    if others:
        raise FlowKindsDifferError(
            f"the flow `{flow.name}` keeps one row for each group in `{shown(table.name)}`; "
            "other flows write it too",
            location=flow.location,
            facts=[f"`{one.name}` is declared at {one.location}" for one in others],
            remedies=["give each flow a table of its own"],
            params={"dataset": str(table.name), "flows": [flow.name, *(one.name for one in others)]},
        )
    keys = _keys(plan, flow)
    columns = [field["name"] for field in plan.schema["fields"]]
    return replace(flow, groups=Groups(keys=keys, only_new=len(keys) == len(columns)))


def _keys(plan: LogicalPlan, flow: AppendFlow) -> tuple[str, ...]:
    """The columns of the query that identify a group, in their order."""
    node, projections = plan.java_plan, []
    while (kind := str(node.nodeName())) not in ("Aggregate", "Distinct"):
        if kind == "Project":
            projections.append(node)
        elif kind not in _PASSED:
            what = "HAVING, or another filter," if kind == "Filter" else kind
            raise _unsupported(flow, f"{what} follows the aggregation")
        node = node.child()
    if kind == "Distinct":
        ids = [one.exprId() for one in items(node.output())]
    else:
        ids = [_returned(one, node, flow) for one in items(node.groupingExpressions())]
    for projection in reversed(projections):
        ids = [_renamed(one, projection, flow) for one in ids]
    output = list(items(plan.java_plan.output()))
    return tuple(dict.fromkeys(str(one.name()) for one in output if any(one.exprId().equals(i) for i in ids)))


def _returned(wanted: Any, aggregate: Any, flow: AppendFlow) -> Any:
    """The id of the column in which an aggregate returns a grouping expression."""
    for one in items(aggregate.aggregateExpressions()):
        value = one.child() if str(one.nodeName()) == "Alias" else one
        if value.semanticEquals(wanted):
            return one.exprId()
    is_column = str(wanted.nodeName()) == "AttributeReference"
    raise _not_returned(flow, f"`{wanted.name()}`" if is_column else str(wanted.sql()))


def _renamed(wanted: Any, projection: Any, flow: AppendFlow) -> Any:
    """The id that a column has after a projection."""
    for one in items(projection.projectList()):
        value = one.child() if str(one.nodeName()) == "Alias" else one
        if str(value.nodeName()) == "AttributeReference" and value.exprId().equals(wanted):
            return one.exprId()
    raise _not_returned(flow, "one of them")


def _not_returned(flow: AppendFlow, column: str) -> HeadraceError:
    return _unsupported(
        flow,
        f"the query does not return all columns that it groups by: {column} is missing",
        "return every grouping column",
    )


def _unsupported(flow: StreamingFlow, reason: str, *remedies: str) -> HeadraceError:
    return StreamingUnsupportedError(
        f"`{flow.name}` aggregates a stream without a watermark, and its table cannot have one row for each "
        f"group: {reason}",
        location=flow.location,
        remedies=[
            *remedies,
            "or declare a materialized view, which computes the aggregate again"
            if remedies
            else "declare a materialized view, which computes the aggregate again",
            "or group by a window of time: .withWatermark(..).groupBy(F.window(..), ..)",
        ],
        params={"name": flow.name, "reason": reason},
    )
