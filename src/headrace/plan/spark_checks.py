"""Checks that Spark itself makes: whether a query can be a stream, and settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import HeadraceError, SourceLocation, nearest
from headrace.model.declarations import (
    AppendFlow,
    Declarations,
    Groups,
    MaterializedView,
    StreamingFlow,
    StreamingTable,
)
from headrace.model.project import ProjectSettings
from headrace.plan.logical import LogicalPlan
from headrace.plan.properties import FORBIDDEN, PROPERTY_DEFAULTS
from headrace.plan.validate import check_appends
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.syntax.locations import argument_location
from headrace.syntax.sql import items

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException

_NO_WATERMARK = "aggregations without watermark"
_PASSED = frozenset({"SubqueryAlias", "View"})


def check_output(
    session: SparkSession,
    plan: LogicalPlan,
    table: StreamingTable,
    flow: StreamingFlow,
    declarations: Declarations,
) -> Declarations:
    """Check that Spark can stream a query; a flow that aggregates without a watermark gets its groups."""
    problem = _stream_problem(session, plan, "Append")
    has_groups = problem is not None and _NO_WATERMARK in str(problem)
    if has_groups:
        problem = _stream_problem(session, plan, "Update")
    if problem is not None:
        raise check_appends(problem, flow.name, flow.location)
    return (
        declarations.with_flow(_with_groups(plan, flow, table, declarations)) if has_groups else declarations
    )


def keeps_groups(session: SparkSession, plan: LogicalPlan) -> bool:
    """Whether a streaming query aggregates without a watermark: its table has one row for each group."""
    return _NO_WATERMARK in str(_stream_problem(session, plan, "Append"))


def _stream_problem(session: SparkSession, plan: LogicalPlan, mode: str) -> AnalysisException | None:
    """Why Spark cannot stream a query in an output mode."""
    from pyspark.errors import AnalysisException

    jvm: Any = session._jvm
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(
            plan.java_plan, getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode)()
        )
    except AnalysisException as error:
        return error
    return None


def _with_groups(
    plan: LogicalPlan, flow: StreamingFlow, table: StreamingTable, declarations: Declarations
) -> AppendFlow:
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
        raise errors.FlowKindsDifferError(
            f"the flow `{flow.name}` keeps one row for each group in `{table.name.short}`; "
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
    return errors.StreamingUnsupportedError(
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


_FAMILIES = ("spark.sql.", "spark.databricks.delta.")  # prefixes of which Spark and Delta list all names
_OPEN = ("spark.sql.catalog.", PROPERTY_DEFAULTS)
"""Prefixes within them under which users choose the names."""
_ALIKE = 0.95
"""How similar to a known name an unknown one must be, by `difflib`, to count as misspelt: some settings are
on no list, such as those of RocksDB."""
_STATISTICS = "spark.databricks.delta.stats.collect"


def find_wrong_settings(
    spark: SparkSession, settings: ProjectSettings, declarations: Declarations
) -> Iterator[HeadraceError]:
    places = settings.configuration_locations
    given = [(key, value, settings.name, places.get(key)) for key, value in settings.configuration.items()]
    for declared in (*declarations.datasets, *declarations.flows):
        if not isinstance(declared, StreamingTable | MaterializedView):
            held = declared.spark_conf.items()
            given += [(key, value, str(declared.name), declared.location) for key, value in held]
    for key, _, name, location in given:
        if reason := FORBIDDEN.get(key.replace(PROPERTY_DEFAULTS, "delta.", 1)):
            yield errors.PropertyForbiddenError(
                f"`{key}` gives tables a property which is not allowed",
                location=_setting_location(location, key),
                facts=(reason,),
                remedies=("remove the setting",),
                params={"name": name, "property": key},
            )
    listed = [one for one in given if one[0].startswith(_FAMILIES) and not one[0].startswith(_OPEN)]
    if not listed:
        return
    jvm: Any = spark._jvm
    # Delta's settings are on the list once its class has been loaded.
    getattr(getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSQLConf$"), "MODULE$")
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    for key, value, name, location in listed:
        if key == _STATISTICS and str(value).strip().lower() == "false":
            yield errors.OptionUnsupportedError(
                f"`{name}` sets `{key}` = false, which is not allowed",
                location=_setting_location(location, key),
                facts=("`headrace verify` proves the rows of a batch by the statistics of its files",),
                remedies=("remove the setting",),
                params={"name": name, "option": key, "value": str(value)},
            )
        if entries.findEntry(key) is not None:
            continue
        known = [entry.key() for entry in jvm.java.util.ArrayList(entries.listAllEntries())]
        if near := nearest(key, known, _ALIKE):
            yield errors.OptionUnknownError(
                f"Unknown Spark setting `{key}`",
                location=_setting_location(location, key),
                remedies=(f"did you mean `{near}`?",),
                params={"name": name, "setting": key, "suggestion": near},
            )


def _setting_location(location: SourceLocation | None, key: str) -> SourceLocation | None:
    return None if location is None else argument_location(location, "spark_conf", key)
