"""Resolves a pipeline's queries, each once, over empty stand-ins for the tables that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headrace.contracts.changes import change_schema, table_schema, with_sequence, without_own_columns
from headrace.contracts.expectations import guarded, with_declared_columns
from headrace.errors import CycleError, HeadraceError, SchemaInvalidError, SourceLocation
from headrace.model.declarations import (
    AppendFlow,
    AutoCdcFlow,
    Dataset,
    Declarations,
    MaterializedView,
    StreamingFlow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.names import TableName
from headrace.model.notes import Note
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery, Query
from headrace.model.snapshots import Snapshots, StoredSnapshots
from headrace.plan import columns, validate
from headrace.plan.catalog import StandIns
from headrace.plan.coordinates import CoordinateColumns, common_columns, find_coordinates
from headrace.plan.evaluate import Unresolved, call_query, no_metadata, session_settings, without_final_sort
from headrace.plan.expectations import check_conditions
from headrace.plan.intercept import Interception, suspended
from headrace.plan.logical import Leaf, LogicalPlan, read_plan
from headrace.plan.modes import Planning, SourceHook, TableAccess
from headrace.plan.names import find_dataset, table_not_found
from headrace.plan.properties import coordinates_of
from headrace.plan.snapshots import SnapshotReader, marker_stream, without_versions
from headrace.plan.sources import planned_sources, resolve_once, share_reads
from headrace.plan.spark_checks import check_output, keeps_groups
from headrace.plan.stages import TableRead
from headrace.plan.stored import StoredTable, load_stored, load_stored_at
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.delta.reader import reads_feed, skips_changes
from headrace.sources.registry import kind_for
from headrace.sources.schemas import load_schema
from headrace.state.checkpoint import QueryRecord
from headrace.storage.layout import locate_supported
from headrace.storage.table_log import is_table

FindTable = Callable[[TableAccess], None]


@dataclass(kw_only=True)
class _Visit:
    """A dataset whose query is being resolved, and its reads so far."""

    dataset: Dataset
    reads: list[TableRead] = field(default_factory=list)
    views: list[TableName] = field(default_factory=list)
    reads_target: bool = False
    reading_at: SourceLocation | None = None


class _ReadsNoStreamError(Exception):
    """The query of a table that can be a materialized view reads no stream."""


@dataclass
class Resolver:
    """Resolves datasets in the order in which they read each other.

    Afterwards `declarations` has a materialized view in place of each table that its query has made one.
    """

    _session: SparkSession
    stand_ins: StandIns
    _parent: SparkSession  # the pipeline's session, for tables that the user's code has registered
    settings: ProjectSettings
    declarations: Declarations
    _sources: SourceHook | None = None
    _find_table: FindTable | None = None
    flows: dict[str, Resolved] = field(default_factory=dict)
    views: dict[TableName, Resolved] = field(default_factory=dict)
    schemas: dict[TableName, columns.Schema] = field(default_factory=dict)
    errors: list[HeadraceError] = field(default_factory=list)
    # Datasets that could not be checked, with a dataset that each reads.
    downstream: dict[TableName, TableName] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)
    _stored: dict[TableName, StoredTable | None] = field(default_factory=dict)
    _coordinates: dict[TableName, CoordinateColumns] = field(default_factory=dict)
    _visits: list[_Visit] = field(default_factory=list)
    _failed: set[TableName] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._datasets = {str(one.name).casefold(): one for one in self.declarations.datasets}

    @property
    def is_test(self) -> bool:
        """Whether a test gives the records of the sources."""
        return self._sources is not None

    def resolve(self) -> None:
        for dataset in self.declarations.datasets:
            try:
                self._dataset(dataset)
            except Unresolved:
                continue

    def _dataset(self, dataset: Dataset) -> None:
        if dataset.name in self.schemas:
            return
        if dataset.name in self._failed:
            raise Unresolved
        try:
            match dataset:
                case StreamingTable():
                    try:
                        self._streaming_table(dataset)
                    except _ReadsNoStreamError:
                        self.declarations = self.declarations.with_view(dataset)
                        view = next(one for one in self.declarations.datasets if one.name == dataset.name)
                        assert isinstance(view, MaterializedView)
                        self._datasets[str(view.name).casefold()] = view
                        self._materialized_view(view)
                case MaterializedView():
                    self._materialized_view(dataset)
                case TemporaryView():
                    resolved = self._query(dataset, dataset.query, dataset.spark_conf)
                    self._check_expectations(dataset, resolved.frame)
                    self.views[dataset.name] = self._guarded(dataset, resolved)
                    self.schemas[dataset.name] = resolved.plan.schema
        except HeadraceError as error:
            self.errors.append(error)
            self._failed.add(dataset.name)
            raise Unresolved from None
        except Unresolved:
            self._failed.add(dataset.name)
            raise

    def _streaming_table(self, table: StreamingTable) -> None:
        declared = self._declared_schema(table)
        fed: list[tuple[StreamingFlow, columns.Schema]] = []
        failed = False
        for flow in self.declarations.streaming_flows:
            if flow.target != table.name:
                continue
            try:
                fed.append((flow, self._flow(table, flow, declared)))
            except HeadraceError as error:
                self.errors.append(error)
                failed = True
            except Unresolved:
                failed = True
        if failed:
            raise Unresolved
        if (conflict := validate.check_flows_agree(fed, table)) is not None:
            raise conflict
        merged = columns.merged(schema for _, schema in fed)
        schema = with_sequence(declared, merged) if declared else merged
        if table.sink is not None:
            names = {field["name"] for field in schema["fields"]}
            kind_for(table.sink.format).check_sink(table, table.sink, names)
        # A row of a sink's table, or of a table with changes by key, is not one record.
        kept = [] if table.sink is not None else [flow for flow, _ in fed if isinstance(flow, AppendFlow)]
        self._accept(table, schema, [self.flows[flow.name].coordinates for flow in kept])

    def _flow(
        self, table: StreamingTable, flow: StreamingFlow, declared: columns.Schema | None
    ) -> columns.Schema:
        query = flow.query
        if isinstance(flow, AutoCdcFlow) and flow.snapshots is not None:
            query = self._snapshot_query(flow, flow.snapshots, declared)

        def resolve(query: Query) -> Resolved:
            return self._query(table, query, flow.spark_conf, label=flow.name)

        storage = self.settings.storage
        resolved = resolve_once(flow, resolve, self._session, storage) if flow.once else resolve(query)
        plan = resolved.plan
        if table.can_be_view and not plan.streaming:
            raise _ReadsNoStreamError
        validate.check_query_kind(resolved, table, flow.location)
        resolved = self._unsorted(resolved, flow)
        plan = resolved.plan
        sources = planned_sources(plan, self.stand_ins.name_of, self.settings, flow.location)
        for leaf, source in zip(plan.leaves, sources, strict=True):
            if leaf.reads_metadata and not source.has_metadata:
                raise no_metadata(flow.name, f"the stream of {source.describe()}", source.location)
        self.declarations = check_output(self._session, plan, table, flow, self.declarations)
        schema = plan.schema
        if isinstance(flow, AutoCdcFlow):
            schema = table_schema(plan.schema)
            declared = declared and with_sequence(declared, schema)
        validate.check_columns(schema, table, flow.location, self.settings.root)
        if declared is not None:
            validate.check_declared(declared, schema, table, flow.location)
        self._check_expectations(table, resolved.frame)
        self.flows[flow.name] = resolved
        return schema

    def _unsorted(self, resolved: Resolved, flow: StreamingFlow) -> Resolved:
        """The query of a flow without the final sort of its groups."""
        with suspended():
            frame = without_final_sort(resolved.frame)
            if frame is None:
                return resolved
            plan = self._read_plan(frame)
            if not keeps_groups(self._session, plan):
                # Spark refuses the sort.
                return resolved
        text = f"the sort of the result of `{flow.name}` is left out: the rows of a table have no order"
        self._note(Note(level="note", text=text, location=flow.location))
        return replace(resolved, frame=frame, plan=replace(plan, schema=resolved.plan.schema))

    def _snapshot_query(self, flow: AutoCdcFlow, source: Snapshots, declared: columns.Schema | None) -> Query:
        reader = SnapshotReader(flow, source, self.settings, self._parent, declared)

        def markers() -> DataFrame:
            if isinstance(source, StoredSnapshots) and not source.is_path:
                rows, kind = self._session.read.table(source.name), "bigint"
                visit, location = self._visits[-1], reader.location
                is_ours = any(read.declared for read in visit.reads)
                if visit.views or not (is_ours or (location is not None and is_table(location))):
                    raise without_versions(source.name, is_view=bool(visit.views))
            else:
                rows, kind = reader.example()
            with suspended():
                changes = change_schema(without_own_columns(rows), flow.keys, flow.history, kind)
            return marker_stream(self._session, reader.log.pattern, changes)

        return PythonQuery(markers, flow.location)

    def _materialized_view(self, view: MaterializedView) -> None:
        declared = self._declared_schema(view)
        flow = next(one for one in self.declarations.flows if one.target == view.name)
        resolved = self._query(view, flow.query, flow.spark_conf)
        validate.check_query_kind(resolved, view, view.location)
        validate.check_columns(resolved.plan.schema, view, view.location, self.settings.root)
        if declared is not None:
            validate.check_declared(declared, resolved.plan.schema, view, view.location)
            with suspended():
                frame = with_declared_columns(resolved.frame, declared)
                resolved = replace(resolved, frame=frame, plan=self._read_plan(frame))
        self._check_expectations(view, resolved.frame)
        self.flows[flow.name] = resolved
        self._accept(view, resolved.plan.schema, [])

    def _check_expectations(self, dataset: Dataset, frame: DataFrame) -> None:
        self._refuse(list(check_conditions(self._session, frame, dataset, self.settings)))

    def _refuse(self, errors: list[HeadraceError]) -> None:
        if errors:
            self.errors.extend(errors)
            raise Unresolved

    def _guarded(self, view: TemporaryView, resolved: Resolved) -> Resolved:
        """A temporary view with the conditions that leave rows out."""
        if not any(one.rejects for one in view.expectations):
            return resolved
        with suspended():
            frame = guarded(resolved.frame, view.expectations)
            plan = self._read_plan(frame)
        return replace(
            resolved, frame=frame, plan=plan, coordinates=find_coordinates(plan, self._known_coordinates)
        )

    def _accept(
        self,
        dataset: StreamingTable | MaterializedView,
        schema: columns.Schema,
        coordinates: list[CoordinateColumns],
    ) -> None:
        errors = list(validate.check_layout_columns(dataset, schema))
        if isinstance(dataset, StreamingTable):
            errors += validate.check_changed_columns(dataset, schema)
        self._refuse(errors)
        self._coordinates[dataset.name] = common_columns(coordinates).with_named(
            coordinates_of(dataset.table_properties)
        )
        self.schemas[dataset.name] = schema

    def coordinates(self, name: TableName) -> CoordinateColumns:
        """The columns of a resolved table that keep each record's coordinates."""
        return self._coordinates.get(name, CoordinateColumns())

    def _declared_schema(self, dataset: StreamingTable | MaterializedView) -> columns.Schema | None:
        if dataset.schema is None:
            return None
        try:
            struct = load_schema(dataset.schema, self.settings.root, dataset.location)
        except SchemaInvalidError as error:
            raise error.with_(
                summary=f"the declared schema of `{dataset.name.short}`: {error.summary}",
                params={**error.params, "dataset": str(dataset.name)},
            ) from error.__cause__
        schema: columns.Schema = columns.redact_comments(struct.jsonValue(), self.settings.redactor)
        return schema

    def _query(
        self, dataset: Dataset, query: Query, conf: Mapping[str, str], label: str | None = None
    ) -> Resolved:
        visit = _Visit(dataset=dataset)
        interception = Interception(
            settings=self.settings,
            mode=Planning(sources=self._sources),
            session=self._session,
            tables=self._read,
            declared=lambda name, parts: find_dataset(self._datasets, name, parts) is not None,
        )
        self._visits.append(visit)
        try:
            name = label or dataset.name.short
            with session_settings(self._session, conf, name=name, location=query.location):
                frame = call_query(query, interception, name=name)
                with suspended():
                    plan = self._read_plan(frame)
                    schema = columns.redact_comments(plan.schema, self.settings.redactor)
        finally:
            self._visits.pop()
            # In a run, each query has a session of its own.
            with suspended():
                for view in interception.views:
                    self._session.catalog.dropTempView(view)
            self.notes |= interception.notes
        return Resolved(
            plan=replace(plan, schema=schema),
            frame=frame,
            reads=tuple(dict.fromkeys(visit.reads)),
            views=tuple(dict.fromkeys(visit.views)),
            reads_target=visit.reads_target,
            coordinates=find_coordinates(plan, self._known_coordinates),
        )

    def _read_plan(self, frame: DataFrame) -> LogicalPlan:
        plan = read_plan(self._session, frame)
        leaves = share_reads(plan.leaves, lambda path: self.stand_ins.name_of(path) is not None)
        return replace(plan, leaves=leaves)

    def _known_coordinates(self, leaf: Leaf) -> CoordinateColumns | None:
        if reads_feed(leaf.options):
            # A record can have several changes, and a change of a row that it replaced.
            return None
        path = leaf.options.get("path", "")
        name = self.stand_ins.name_of(path)
        if name is None:
            folder = locate_supported(path) if path and kind_for(leaf.provider).reader.reads_tables else None
            elsewhere = None if folder is None else load_stored_at(folder)
            return None if elsewhere is None else coordinates_of(elsewhere.properties)
        stored = self._stored.get(name)
        return coordinates_of(stored.properties) if stored is not None else self._coordinates.get(name)

    def _read(self, access: TableAccess) -> DataFrame | None:
        visit = self._visits[-1]
        visit.reading_at = access.location
        dataset = find_dataset(self._datasets, access.name, access.parts)
        if dataset is None:
            return self._read_undeclared(access, visit)
        if any(one.dataset is dataset for one in self._visits):
            schema = self._read_itself(access, dataset, visit)
        else:
            try:
                self._dataset(dataset)
            except Unresolved:
                self.downstream.setdefault(visit.dataset.name, dataset.name)
                raise
            schema = self.schemas[dataset.name]
        if isinstance(dataset, TemporaryView):
            return self._read_view(access, dataset, visit)
        if isinstance(dataset, StreamingTable) and dataset.sink is not None:
            raise validate.sink_read(dataset, access, self._fed(dataset.name))
        is_stream = access.streaming and not access.changes
        if is_stream and isinstance(dataset, MaterializedView):
            self._note(validate.stream_over_view(access))
        if is_stream and self.declarations.changes_rows(dataset.name) and not skips_changes(access.options):
            raise validate.stream_over_merged_table(access, self._fed(dataset.name)[0][0])
        visit.reads.append(
            TableRead(table=dataset.name, streaming=access.streaming, location=access.location, declared=True)
        )
        return self._stand_in(dataset.name, schema, access)

    def _fed(self, table: TableName) -> list[tuple[StreamingFlow, list[TableName]]]:
        """The flows of a table that was resolved, with the tables that each reads."""
        flows = (one for one in self.declarations.streaming_flows if one.target == table)
        return [(one, [read.table for read in self.flows[one.name].reads]) for one in flows]

    def _read_view(self, access: TableAccess, view: TemporaryView, visit: _Visit) -> DataFrame:
        resolved = self.views[view.name]
        if resolved.plan.streaming != access.streaming:
            raise validate.view_mismatch(access, view)
        visit.reads.extend(resolved.reads)
        visit.views.extend([view.name, *resolved.views])
        return resolved.frame

    def _read_itself(self, access: TableAccess, dataset: Dataset, visit: _Visit) -> columns.Schema:
        """A batch read of the query's own table, whose columns must be known."""
        if dataset is visit.dataset and isinstance(dataset, StreamingTable) and not access.streaming:
            stored = self._load_stored(dataset.name)
            schema = self._declared_schema(dataset) or (stored.schema if stored else None)
            if schema is not None:
                visit.reads_target = True
                return schema
        raise self._cycle(dataset)

    def _cycle(self, dataset: Dataset) -> CycleError:
        first = next(n for n, visit in enumerate(self._visits) if visit.dataset is dataset)
        cycle = self._visits[first:]
        names = [str(visit.dataset.name) for visit in cycle]
        labels = [visit.dataset.name.short for visit in cycle]
        facts = [
            f"`{visit.dataset.name.short}` reads `{reads}` at {visit.reading_at}"
            for visit, reads in zip(cycle, [*labels[1:], labels[0]], strict=True)
        ]
        itself = len(cycle) == 1 and isinstance(dataset, StreamingTable)
        return CycleError(
            f"the datasets read each other in a cycle: {' → '.join([*labels, labels[0]])}",
            location=cycle[0].reading_at,
            facts=facts,
            remedies=[
                "declare its schema and read it with spark.read, to look up rows of the table itself"
                if itself
                else "break the cycle: remove a read of one of these tables from the query of "
                + " or ".join(f"`{one}`" for one in labels)
            ],
            params={"cycle": names},
        )

    def _read_undeclared(self, access: TableAccess, visit: _Visit) -> DataFrame | None:
        read = TableRead(
            table=access.name, streaming=access.streaming, location=access.location, declared=False
        )
        if self._find_table is not None:
            self._find_table(access)
        stored = self._load_stored(access.name)
        if stored is not None:
            if stored.kind == "materialized_view" and access.streaming and not access.changes:
                self._note(validate.stream_over_view(access, is_ours=False))
            visit.reads.append(read)
            return self._stand_in(access.name, stored.schema, access)
        if self.stand_ins.copy_from(self._parent, access.name):
            visit.reads.append(read)
            return None
        raise table_not_found(access, visit.dataset.name, self.declarations, self.settings)

    def _note(self, note: Note) -> None:
        self.notes.setdefault(note.text, note)

    def _stand_in(self, name: TableName, schema: columns.Schema, access: TableAccess) -> DataFrame | None:
        self.stand_ins.add(name, schema)
        return self.stand_ins.changes(name, schema, access) if access.changes else None

    def _load_stored(self, name: TableName) -> StoredTable | None:
        if name not in self._stored:
            self._stored[name] = load_stored(self.settings.storage, name)
        return self._stored[name]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A query over empty stand-ins for the tables that it reads."""

    plan: LogicalPlan
    frame: DataFrame = field(repr=False)
    reads: tuple[TableRead, ...] = ()  # the tables that it reads, also through temporary views
    views: tuple[TableName, ...] = ()
    reads_target: bool = False  # whether it reads the table that it feeds
    # The columns that keep each record's coordinates.
    coordinates: CoordinateColumns = field(default_factory=CoordinateColumns)
    # The batch query of a flow that is applied once; ``plan`` is then the stream of its marker.
    batch: LogicalPlan | None = None
    # The query that such a flow was applied with, if its source can no longer be read.
    applied: QueryRecord | None = None
    gone: HeadraceError | None = None
