"""From declarations to a plan, and from a plan to the DataFrames of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from headrace.errors import HeadraceError, PlanFailedError
from headrace.model.declarations import (
    AppendFlow,
    Declarations,
    MaterializedView,
    RefreshFlow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.catalog import planning_session
from headrace.plan.changes import find_changes
from headrace.plan.fingerprint import CodeDigest, fingerprint
from headrace.plan.graph import build_levels
from headrace.plan.intercept import AS_WRITTEN, Interception, Replacements, SourceHook, TableAccess
from headrace.plan.lineage import CoordinateColumns
from headrace.plan.names import NameRules, label_of, shown
from headrace.plan.notes import find_notes
from headrace.plan.properties import check_delta_properties, places_of, table_properties
from headrace.plan.query import active_session, call_query
from headrace.plan.resolver import FindTable, Resolver
from headrace.plan.sources import planned_sources
from headrace.plan.spark_settings import find_misspelt
from headrace.plan.stages import (
    Declared,
    OpenTableStage,
    Plan,
    PlannedFlow,
    PlannedRefresh,
    PlannedView,
    RefreshViewStage,
)
from headrace.plan.validate import check_declarations
from headrace.sources.limits import KAFKA_MAX_OFFSETS_PER_TRIGGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.plan.catalog import StandIns


def build_plan(
    spark: SparkSession,
    settings: ProjectSettings,
    declarations: Declarations,
    *,
    offline: bool = False,
    sources: SourceHook | None = None,
    find_table: FindTable | None = None,
) -> Plan:
    """Resolve a pipeline; writes nothing to the storage.

    Args:
        spark: The pipeline's session; it is left as it is.
        settings: The pipeline's settings.
        declarations: What its files declare.
        offline: Whether to leave the pipeline's own tables unread, so that the plan says nothing of
            changes. Tables that no file declares are looked up all the same.
        sources: Asked before each read of a source; what it returns is read instead.
        find_table: Told of each table that a query reads and no file declares, before it is looked up.

    Raises:
        UsageError: Something is wrong with the pipeline. Where several things are, the error is a
            `PlanFailedError` that holds them all.
    """
    _raise_all(check_declarations(declarations))
    declarations = _with_exact_targets(declarations)
    with planning_session(spark, settings.database) as (session, stand_ins), active_session(session):
        resolver = Resolver(
            session, stand_ins, spark, settings, declarations, sources=sources, find_table=find_table
        )
        resolver.resolve()
        misspelt = find_misspelt(spark, settings, declarations)
        _raise_all([*resolver.errors, *_property_errors(session, declarations), *misspelt])
        plan = _assemble(resolver, stand_ins, settings, declarations)
    return plan if offline else find_changes(plan)


def _property_errors(session: SparkSession, declarations: Declarations) -> Iterator[HeadraceError]:
    for dataset in declarations.datasets:
        if isinstance(dataset, StreamingTable | MaterializedView):
            try:
                check_delta_properties(session, dataset)
            except HeadraceError as error:
                yield error


def evaluate(
    session: SparkSession,
    declared: Declared,
    plan: Plan,
    kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER,
    replacements: Replacements = AS_WRITTEN,
) -> DataFrame:
    """Build a query's DataFrame for a run, or for a look at it.

    Args:
        session: The session to build it in; the tables that the query reads are registered in its
            catalog. Whatever session the user's code asks for, it gets this one.
        declared: What the query belongs to.
        plan: The plan that is being run.
        kafka_limit: The records that a first batch from Kafka may take, where the user does not say.
        replacements: What it reads in place of what it asks for.
    """
    rules = NameRules.of(plan.project)
    views = {str(one.name).casefold(): one for one in plan.datasets if isinstance(one, TemporaryView)}
    known = {str(one.name).casefold() for one in plan.datasets}
    frames: dict[TableName, DataFrame] = {}

    def interception() -> Interception:
        return Interception(
            names=rules,
            root=plan.project.root,
            hook=read,
            declared=lambda name: str(name).casefold() in known,
            session=session,
            forbids_actions=True,
            kafka_limit=kafka_limit,
            redactor=plan.project.redactor,
            kafka=plan.project.kafka,
            sources=replacements.sources,
            batchwise=replacements.batchwise,
        )

    def read(access: TableAccess) -> DataFrame | None:
        view = views.get(str(access.name).casefold())
        if view is None:
            return replacements.tables(access) if replacements.tables else None
        if view.name not in frames:
            frames[view.name] = call_query(view.query, interception(), name=shown(view.name))
        return frames[view.name]

    name = shown(declared.name) if isinstance(declared, TemporaryView) else label_of(declared)
    with active_session(session):
        return call_query(declared.query, interception(), name=name)


def _with_exact_targets(declarations: Declarations) -> Declarations:
    """Flows whose targets are written as the tables are; Spark ignores the case of names."""
    names = {str(dataset.name).casefold(): dataset.name for dataset in declarations.datasets}
    flows = (replace(flow, target=names[str(flow.target).casefold()]) for flow in declarations.flows)
    return replace(declarations, flows=tuple(flows))


def _raise_all(errors: list[HeadraceError]) -> None:
    unique = {(error.headline, error.location): error for error in errors}
    if len(unique) == 1:
        raise next(iter(unique.values()))
    if unique:
        raise PlanFailedError(
            sorted(
                unique.values(),
                key=lambda e: (
                    e.location is None,
                    str(e.location and e.location.path),
                    e.location.line if e.location else 0,
                ),
            )
        )


def _assemble(
    resolver: Resolver, stand_ins: StandIns, settings: ProjectSettings, declarations: Declarations
) -> Plan:
    code = CodeDigest(settings.root, settings.storage.root)
    flows, refreshes = [], []
    for flow in declarations.flows:
        match flow:
            case AppendFlow():
                flows.append(_planned_flow(flow, resolver, stand_ins, settings, code, declarations))
            case RefreshFlow():
                refreshes.append(_planned_refresh(flow, resolver, code))
            case _:
                assert_never(flow)
    opens = [
        OpenTableStage(
            table=table,
            schema=resolver.schemas[table.name],
            properties=table_properties(table, settings, resolver.places(table.name)),
            flows=tuple(planned.flow.name for planned in flows if planned.flow.target == table.name),
        )
        for table in declarations.datasets
        if isinstance(table, StreamingTable)
    ]
    views = {one.name: one for one in declarations.datasets if isinstance(one, MaterializedView)}
    refresh_stages = [
        RefreshViewStage(
            view=(view := views[planned.flow.target]),
            planned=planned,
            properties=table_properties(view, settings, resolver.places(view.name)),
        )
        for planned in refreshes
    ]
    return Plan(
        project=settings,
        datasets=declarations.datasets,
        all_levels=build_levels(opens, flows, refresh_stages),
        views=tuple(
            _planned_view(view, resolver, code)
            for view in declarations.datasets
            if isinstance(view, TemporaryView)
        ),
        reads_kafka=resolver.reads_kafka,
        notes=tuple(find_notes(declarations, settings.root)),
    )


def _planned_flow(
    flow: AppendFlow,
    resolver: Resolver,
    stand_ins: StandIns,
    settings: ProjectSettings,
    code: CodeDigest,
    declarations: Declarations,
) -> PlannedFlow:
    resolved = resolver.flows[flow.name]
    target = next(one for one in declarations.datasets if one.name == flow.target)
    given = places_of(target.table_properties) if isinstance(target, StreamingTable) else CoordinateColumns()
    sources = planned_sources(resolved.plan, stand_ins, settings, flow.location)
    return PlannedFlow(
        flow=flow,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        sources=sources,
        stateful=resolved.plan.stateful,
        coordinates=given.coordinates or resolved.places.coordinates,
        timestamp=given.timestamp or resolved.places.timestamp,
        reads_target=resolved.reads_target,
        fingerprint=fingerprint(resolved.plan, [source.describe() for source in sources], code),
        through=resolved.views,
    )


def _planned_refresh(flow: RefreshFlow, resolver: Resolver, code: CodeDigest) -> PlannedRefresh:
    resolved = resolver.flows[flow.name]
    return PlannedRefresh(
        flow=flow,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        fingerprint=fingerprint(resolved.plan, (), code),
        through=resolved.views,
    )


def _planned_view(view: TemporaryView, resolver: Resolver, code: CodeDigest) -> PlannedView:
    resolved = resolver.views[view.name]
    return PlannedView(
        view=view,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        fingerprint=fingerprint(resolved.plan, (), code),
        through=resolved.views,
    )
