"""Builds a plan: resolves the declarations, and adds the changes of a run and notes for the author."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from headrace.contracts.expectations import with_checks
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import (
    AppendFlow,
    Dataset,
    Declarations,
    Expectation,
    Flow,
    MaterializedView,
    RefreshFlow,
    StreamingFlow,
    StreamingTable,
    TemporaryView,
    snapshots_of,
)
from headrace.model.lineage import ColumnLineage
from headrace.model.names import OPERATION, SEQUENCE, TRUNCATE, TableName, quoted_column
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.model.queries import Query
from headrace.plan import stages
from headrace.plan.catalog import isolated_session
from headrace.plan.changes import find_changes
from headrace.plan.coordinates import find_followed
from headrace.plan.expectations import check_declared_expectations
from headrace.plan.inputs import Inputs, find_lineage
from headrace.plan.intercept import suspended
from headrace.plan.logical import LogicalPlan, digest_code, fingerprint, read_plan
from headrace.plan.modes import SourceHook
from headrace.plan.names import label_of
from headrace.plan.properties import check_delta_properties, coordinates_of, find_unreadable, table_properties
from headrace.plan.resolver import FindTable, Resolved, Resolver
from headrace.plan.sources import planned_sources
from headrace.plan.spark_checks import find_wrong_settings
from headrace.plan.spark_errors import is_off
from headrace.plan.strategies import ViewStrategies
from headrace.plan.validate import check_declarations, raise_all
from headrace.runtime.gateway import active_session
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.registry import kind_for
from headrace.sources.source import Source
from headrace.syntax.bindings import ReboundGlobal, find_rebound


def build_plan(
    spark: SparkSession,
    settings: ProjectSettings,
    declarations: Declarations,
    *,
    offline: bool = False,
    sources: SourceHook | None = None,
    find_table: FindTable | None = None,
) -> stages.Plan:
    """Resolve a pipeline; writes nothing to the storage.

    ``offline`` leaves the pipeline's own tables unread, so that the plan has no changes. ``sources`` is asked
    before each read of a source; what it returns is read instead. ``find_table`` is told of each table that
    no file declares, before it is looked up. Several errors are raised as one `PlanFailedError`.
    """
    raise_all([*check_declarations(declarations), *check_declared_expectations(declarations)])
    declarations = _completed(declarations, settings)
    # Isolated: a run of the pipeline can register its tables under the same names at the same time.
    with isolated_session(spark, settings.database) as (session, stand_ins), active_session(session):
        # The text of Spark's plan is hashed, so it must be complete.
        session.conf.set("spark.sql.debug.maxToStringFields", "100000")
        resolver = Resolver(session, stand_ins, spark, settings, declarations, sources, find_table)
        resolver.resolve()
        declarations = resolver.declarations
        settings_errors = find_wrong_settings(spark, settings, declarations)
        errors = [*resolver.errors, *_property_errors(session, declarations), *settings_errors]
        raise_all(errors, resolver.downstream)
        plan = _assemble(resolver)
    return plan if offline else find_changes(plan)


def _property_errors(session: SparkSession, declarations: Declarations) -> Iterator[HeadraceError]:
    for dataset in declarations.datasets:
        if isinstance(dataset, StreamingTable | MaterializedView):
            try:
                check_delta_properties(session, dataset)
            except HeadraceError as error:
                yield error


def _completed(declarations: Declarations, settings: ProjectSettings) -> Declarations:
    """Declarations as the plan uses them: targets in the case of their tables, a rule for NULL in each
    expectation, and no secrets in texts that are kept."""
    redact = settings.redactor

    def names(expectations: tuple[Expectation, ...]) -> Iterator[Expectation]:
        taken = Counter(redact(one.name) for one in expectations)
        for number, one in enumerate(expectations, 1):
            name = redact(one.name)
            # Two names may differ only in what is removed.
            own = name if taken[name] == 1 or name == one.name else f"{name} {number}"
            yield replace(one, name=own, text=redact(one.text), nulls=one.nulls or settings.expectation_nulls)

    def clean(dataset: Dataset) -> Dataset:
        comment = dataset.comment and redact(dataset.comment)
        expectations = tuple(names(dataset.expectations))
        if isinstance(dataset, TemporaryView):
            return replace(dataset, comment=comment, expectations=expectations)
        return replace(
            dataset,
            comment=comment,
            expectations=expectations,
            schema=redact(dataset.schema) if isinstance(dataset.schema, str) else dataset.schema,
            table_properties=redact.data(dataset.table_properties),
        )

    # Flows whose targets are written as the tables are: Spark ignores the case of names.
    exact = {str(dataset.name).casefold(): dataset.name for dataset in declarations.datasets}
    flows = (replace(flow, target=exact[str(flow.target).casefold()]) for flow in declarations.flows)
    return replace(declarations, datasets=tuple(map(clean, declarations.datasets)), flows=tuple(flows))


def _assemble(resolver: Resolver) -> stages.Plan:
    settings, declarations = resolver.settings, resolver.declarations
    code = cache(partial(digest_code, settings.code_folders, settings.storage.root))
    flows = _with_readers([_planned_flow(flow, resolver, code) for flow in declarations.streaming_flows])
    refreshes = [
        _planned_refresh(flow, resolver, code) for flow in declarations.flows if isinstance(flow, RefreshFlow)
    ]
    fed = {source.feed for planned in flows for source in planned.sources}
    opens = [
        stages.OpenTableStage(
            table=table,
            schema=resolver.schemas[table.name],
            properties=table_properties(
                table,
                settings,
                resolver.coordinates(table.name),
                changes=declarations.auto_cdc_of(table.name),
                groups=declarations.groups_of(table.name),
                replayable=all(one.coordinates for one in flows if one.flow.target == table.name),
                needs_feed=table.name in fed,
            ),
            flows=tuple(planned.flow.name for planned in flows if planned.flow.target == table.name),
        )
        for table in declarations.datasets
        if isinstance(table, StreamingTable)
    ]
    views = {one.name: one for one in declarations.datasets if isinstance(one, MaterializedView)}
    refresh_stages = [
        stages.RefreshViewStage(
            view=(view := views[planned.flow.target]),
            planned=planned,
            properties=table_properties(
                view, settings, resolver.coordinates(view.name), needs_feed=view.name in fed
            ),
        )
        for planned in refreshes
    ]
    temporary = [one for one in declarations.datasets if isinstance(one, TemporaryView)]
    queries = {label_of(flow): flow.query for flow in declarations.flows}
    queries |= {one.name.short: one.query for one in temporary}
    return stages.Plan(
        project=settings,
        datasets=declarations.datasets,
        all_levels=stages.build_levels(opens, flows, refresh_stages),
        views=tuple(_planned_view(view, resolver, code) for view in temporary),
        notes=(
            *_ignored_settings(settings),
            *declarations.notes,
            *resolver.notes.values(),
            *(_gone(planned) for planned in flows if planned.gone is not None),
            *_rebound_globals(queries, settings.root),
            *find_unreadable([*opens, *refresh_stages], settings),
        ),
    )


def _with_readers(flows: Sequence[stages.PlannedFlow]) -> list[stages.PlannedFlow]:
    """The flows, each with the tables whose flows read its target."""
    reads = [(source.table, one.flow.target) for one in flows for source in one.sources]

    def readers(table: TableName) -> tuple[TableName, ...]:
        return tuple(dict.fromkeys(target for read, target in reads if read == table != target))

    return [replace(one, readers=readers(one.flow.target)) for one in flows]


def _ignored_settings(settings: ProjectSettings) -> Iterator[Note]:
    if settings.ignored:
        text = f"these settings of the bundle have no effect here: {', '.join(settings.ignored)}"
        yield Note(level="note", text=text, location=SourceLocation(settings.file.name, 1))


def _gone(planned: stages.PlannedFlow) -> Note:
    flow, reason = planned.flow, planned.gone
    assert reason is not None
    return Note(
        level="warning",
        text=f"the flow `{flow.name}` was applied; its source can no longer be read: {reason.summary}",
        location=flow.location,
        remedy=f"a full refresh of `{flow.target.short}` needs the source, or the flow removed",
    )


def _planned_flow(flow: StreamingFlow, resolver: Resolver, code: Callable[[], str]) -> stages.PlannedFlow:
    resolved = resolver.flows[flow.name]
    target = next(one for one in resolver.declarations.datasets if one.name == flow.target)
    assert isinstance(target, StreamingTable)
    given = coordinates_of(target.table_properties)
    sources = planned_sources(resolved.plan, resolver.stand_ins.name_of, resolver.settings, flow.location)
    # A test gets the rows of a sink, which would go to another system.
    sink = None if resolver.is_test else target.sink
    return stages.PlannedFlow(
        flow=flow,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        sources=sources,
        stateful=resolved.plan.stateful,
        # A sink stores no rows whose coordinates could be compared.
        coordinates=None if target.sink else given.coordinates or resolved.coordinates.coordinates,
        timestamp=given.timestamp or resolved.coordinates.timestamp,
        reads_target=resolved.reads_target,
        fingerprint=resolved.applied.fingerprint
        if resolved.applied is not None
        else fingerprint(
            resolved.batch or resolved.plan,
            [source.describe() for source in sources],
            code,
            _modes(flow.spark_conf, resolved.views, resolver),
        ),
        through=resolved.views,
        lineage=_lineage(resolved, flow, sources if resolved.batch is None else (), resolver),
        expectations=(*_key_expectations(flow), *target.expectations),
        # The records of a snapshot or a batch query are not rows of the stream, whose clock Spark fixes.
        repeatable=not (resolved.plan.stateful or flow.once or snapshots_of(flow) is not None)
        and resolved.plan.deterministic,
        python_functions=resolved.plan.python_functions,
        reads_all=resolved.plan.reads_all,
        max_rejected=target.max_rejected or resolver.settings.max_rejected,
        limit_place=None if target.max_rejected else resolver.settings.places.get("max_rejected"),
        checked_views=_checked(resolved.views, resolver.declarations),
        checks=target.checks,
        sink=sink,
        follows=None
        if sink is None or any(one.rejects for one in target.expectations) or len(sources) != 1
        else find_followed(resolved.plan, sources[0]),
        connection=dict
        if sink is None
        else partial(kind_for(sink.format).sink_options, sink, resolver.settings),
        gone=resolved.gone,
    )


def _key_expectations(flow: StreamingFlow) -> tuple[Expectation, ...]:
    """What a flow that applies changes by key expects of each record."""
    if isinstance(flow, AppendFlow) or flow.snapshots is not None:
        # A NULL in a key of a snapshot stops the flow before its rows become records.
        return ()
    keys = " AND ".join(f"{quoted_column(key)} IS NOT NULL" for key in flow.keys)
    conditions = {
        "the key is not NULL": f"{OPERATION} = '{TRUNCATE}' OR ({keys})",
        "the sequence is not NULL": f"{SEQUENCE}.value IS NOT NULL",
    }
    rule: Any = {"action": flow.null_keys, "location": flow.location, "nulls": "fail"}
    return tuple(
        Expectation(name=name, condition=text, text=text, **rule) for name, text in conditions.items()
    )


def _planned_refresh(flow: RefreshFlow, resolver: Resolver, code: Callable[[], str]) -> stages.PlannedRefresh:
    resolved = resolver.flows[flow.name]
    views = [resolver.views[name] for name in resolved.views]
    view = next(one for one in resolver.declarations.datasets if one.name == flow.target)
    expectations, checked = _rejecting(view, resolved, code)
    plans = [resolved.plan, *(one.plan for one in views), *([] if checked is None else [checked])]
    varies = tuple(dict.fromkeys(reason for plan in plans for reason in plan.varies))
    return stages.PlannedRefresh(
        flow=flow,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        fingerprint=fingerprint(
            resolved.plan, (), code, [*expectations, *_modes(flow.spark_conf, resolved.views, resolver)]
        ),
        through=resolved.views,
        lineage=_lineage(resolved, flow, (), resolver),
        varies=varies,
        checked_views=_checked(resolved.views, resolver.declarations),
        strategies=None
        if not isinstance(view, MaterializedView) or view.refresh_policy == "full"
        else ViewStrategies(
            session=resolved.frame.sparkSession,
            plan=resolved.plan,
            actions=frozenset(one.action for one in view.expectations),
            varies=varies,
            name_of=resolver.stand_ins.name_of,
        ),
    )


def _modes(spark_conf: Mapping[str, str], views: Sequence[TableName], resolver: Resolver) -> list[str]:
    """Settings that change the values of a query and of the views that it reads, and not the text of its
    plan."""
    found = ["ANSI mode is off"] if is_off(resolver.settings.configuration, spark_conf) else []
    read = (one for one in resolver.declarations.datasets if isinstance(one, TemporaryView))
    return found + [f"and in {one.name}" for one in read if one.name in views and is_off(one.spark_conf)]


def _checked(names: tuple[TableName, ...], declarations: Declarations) -> tuple[TemporaryView, ...]:
    views = (one for one in declarations.datasets if isinstance(one, TemporaryView) and one.expectations)
    return tuple(view for view in views if view.name in names)


def _rejecting(
    view: Dataset, resolved: Resolved, code: Callable[[], str]
) -> tuple[list[str], LogicalPlan | None]:
    """The expectations that decide which rows a view has; with the code if they call Python functions."""
    rejecting = [one for one in view.expectations if one.rejects]
    texts = [f"{one.action} {one.name}: {one.text}, NULL {one.nulls}" for one in rejecting]
    if not rejecting:
        return texts, None
    with suspended():
        checked = with_checks(resolved.frame, rejecting)
        plan = read_plan(checked.sparkSession, checked)
    return [*texts, code()] if plan.opaque else texts, plan


def _planned_view(view: TemporaryView, resolver: Resolver, code: Callable[[], str]) -> stages.PlannedView:
    resolved = resolver.views[view.name]
    sources = planned_sources(resolved.plan, resolver.stand_ins.name_of, resolver.settings, view.location)
    return stages.PlannedView(
        view=view,
        schema=resolved.plan.schema,
        reads=resolved.reads,
        fingerprint=fingerprint(resolved.plan, (), code, _modes(view.spark_conf, resolved.views, resolver)),
        through=resolved.views,
        lineage=_lineage(resolved, view, sources, resolver),
        sources=sources,
    )


def _lineage(
    resolved: Resolved, declared: Flow | TemporaryView, sources: Sequence[Source], resolver: Resolver
) -> ColumnLineage | None:
    # The stream of a flow that was applied and cannot be read again says nothing about its columns.
    if resolved.gone is not None:
        return None
    inputs = Inputs(
        session=resolved.frame.sparkSession,
        plan=resolved.batch or resolved.plan,
        sources=sources,
        tables=tuple(dict.fromkeys(read.table for read in resolved.reads)),
        name_of=resolver.stand_ins.name_of,
        root=resolver.settings.root,
    )
    return find_lineage(inputs, declared)


def _rebound_globals(queries: Mapping[str, Query], root: Path) -> Iterator[Note]:
    """One warning for each helper and global, however many queries call the helper."""
    found: dict[ReboundGlobal, list[str]] = {}
    for name, query in queries.items():
        for rebound in find_rebound(query, root):
            found.setdefault(rebound, []).append(name)
    for rebound, names in found.items():
        listed = f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        yield Note(
            level="warning",
            text=f"`{rebound.helper}`, which the query of {listed} calls, reads the global "
            f"`{rebound.name}`; it was assigned again after the query was declared, and the helper sees "
            "the last value",
            location=rebound.location or queries[names[0]].location,
            remedy=f"pass `{rebound.name}` to `{rebound.helper}` as an argument",
        )
