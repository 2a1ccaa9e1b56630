"""Checks without Spark whether a triggered run has anything to do.

A run records what its plan depends on. The next run ends at once if the pipeline's code and settings
are the same, its queries depend on nothing else (`query_code`), its sources hold nothing new, and its
checkpoints and tables agree. Spark is started if any of this is not certain.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import (
    AppendFlow,
    Declarations,
    MaterializedView,
    Sink,
    StreamingTable,
    TemporaryView,
    is_once,
    snapshots_of,
)
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery
from headrace.model.remedies import Remedies
from headrace.plan.logical import code_files, digest_code
from headrace.plan.sources import marker_of
from headrace.plan.stages import Plan, PlannedFlow
from headrace.project.query_code import UnknownCode, describe_query
from headrace.run.checks import UNCHECKED
from headrace.run.readiness import inputs_of
from headrace.run.survey import FlowSurveyor, check_tombstones, is_drained
from headrace.run.targets import target_reader
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.replace import lacks_quarantine
from headrace.sinks.delta.table import TableState, read_checksum
from headrace.sources.registry import kind_for, load_source
from headrace.sources.requests import Asking, Systems
from headrace.sources.schemas import SchemaFile, read_schema
from headrace.state.facts import Continue
from headrace.state.lease import is_free
from headrace.state.opening import decide
from headrace.storage.location import Location
from headrace.storage.row_counts import last_refresh
from headrace.storage.table_log import commit_mark

_LOG = logging.getLogger(__name__)
_NOWHERE = SourceLocation("headrace.yml", 1)


class _Uncertain(Exception):
    """It cannot be decided without Spark."""


@dataclass(frozen=True, kw_only=True)
class UpToDate:
    """A pipeline whose run would do nothing."""

    flows: tuple[tuple[str, TableName], ...]
    views: tuple[TableName, ...]


def record_plan(plan: Plan, declarations: Declarations, schema_files: Mapping[str, str]) -> None:
    """Store what the plan depends on, so that the next run can check without Spark for changes."""
    try:
        digest = _digest(plan.project, declarations)
    except UnknownCode as reason:
        _LOG.info("a run with nothing new will start Spark: %s", reason)
        digest = None
    waits = any(planned.flow.once for planned in plan.flows) and not marker_of(plan.project.storage).exists()
    if waits or any(snapshots_of(planned.flow) for planned in plan.flows):
        # Only Spark can ask for new snapshots, and the first run applies the flows that are applied once.
        digest = None
    flows = [
        {
            "flow": planned.flow.name,
            "dataset": [planned.flow.target.schema, planned.flow.target.name],
            "stateful": planned.stateful,
            "sources": [source.to_json() for source in planned.sources],
        }
        for planned in plan.flows
    ]
    # A check that stops a view is repeated in each run.
    stored = [one for one in plan.datasets if not isinstance(one, TemporaryView)]
    failing = {one.name for one in stored if any(check.fails for check in one.checks)}
    views = [
        {
            "view": [planned.flow.target.schema, planned.flow.target.name],
            "definition": planned.fingerprint,
            # Without inputs a view is never up to date.
            "inputs": []
            if planned.varies or planned.flow.target in failing
            else [[name.schema, name.name] for name in inputs_of(planned, plan)],
        }
        for planned in plan.refreshes
    ]
    record = {
        "headrace": 1,
        "pipeline": plan.project.name,
        "at": datetime.now(UTC).isoformat(),
        "digest": digest,
        "schema_files": dict(schema_files),
        "flows": flows,
        "views": views,
        "tables": [[one.name.schema, one.name.name] for one in stored],
        "places": {
            str(one.name): [one.location.path, one.location.line, one.location.column, one.location.length]
            for one in stored
        },
    }
    plan.project.storage.last_plan(plan.project.home).replace_json(record)


def require_spark(settings: ProjectSettings) -> None:
    """Make the next run start Spark, and so write its end to the event log: the last one was stopped."""
    file = settings.storage.last_plan(settings.home)
    with suppress(OSError, ValueError):
        file.replace_json({**file.read_json(), "stopped": True})


def find_up_to_date(settings: ProjectSettings, connect: Callable[[], KafkaConnection]) -> UpToDate | None:
    """The flows and views of a pipeline whose run has nothing to do; ``None`` if Spark is needed to decide.
    `connect`: gives the connection to the broker; called only if a flow reads Kafka."""
    try:
        record = settings.storage.last_plan(settings.home).read_json()
        if record.get("stopped"):
            return None
        declared = _declared(settings)
        if record["digest"] is None or record["digest"] != _digest(settings, declared):
            return None
        for name, digest in record["schema_files"].items():
            found = read_schema(name, settings.root, _NOWHERE)
            if not isinstance(found, SchemaFile) or found.digest != digest:
                raise _Uncertain(f"{name} has changed")
        sinks = {one.name: one.sink for one in declared.datasets if isinstance(one, StreamingTable)}
        asking = Asking(settings=lambda: replace(settings, kafka=connect()))
        flows = [_stub(one, sinks, asking.settings) for one in record["flows"]]
        if any(source.connection is not None for planned in flows for source in planned.sources):
            raise _Uncertain("a query has its own login, which the record does not keep")
        systems = Systems(storage=settings.storage, read_table=_read_table, asking=asking)
        with closing(systems):
            for planned in flows:
                _require_drained(planned, flows, settings, systems)
        views = tuple(_require_fresh(one, settings) for one in record["views"])
    except (_Uncertain, UnknownCode, HeadraceError, OSError, ValueError, KeyError, TypeError):
        # The run finds the same problem, and reports it with its location.
        return None
    return UpToDate(flows=tuple((p.flow.name, p.flow.target) for p in flows), views=views)


def declared_sinks(settings: ProjectSettings) -> dict[TableName, Sink]:
    """The sinks that the files of a pipeline declare; raises their errors."""
    declared = _declared(settings).datasets
    return {one.name: one.sink for one in declared if isinstance(one, StreamingTable) and one.sink}


def _declared(settings: ProjectSettings) -> Declarations:
    from headrace.declare.loader import load_declarations
    from headrace.plan.evaluate import loading

    def refuse() -> SparkSession:
        raise _Uncertain("the pipeline's files use Spark while they are loaded")

    with loading(settings, refuse) as session:
        return load_declarations(settings, session)


def _require_drained(
    planned: PlannedFlow, flows: list[PlannedFlow], settings: ProjectSettings, systems: Systems
) -> None:
    name, storage = planned.flow.name, settings.storage
    if not is_free(storage.lease(planned.flow.target, name)):
        raise _Uncertain(f"flow {name} has a lease")
    if (storage.ledger(planned.flow.target, name) / UNCHECKED).exists():
        raise _Uncertain(f"flow {name} has rows to check")
    surveyor = FlowSurveyor(
        planned=planned,
        settings=settings,
        systems=systems,
        target=target_reader(planned, storage, _read_table),
        declared_flows=frozenset(p.flow.name for p in flows if p.flow.target == planned.flow.target),
    )
    survey = surveyor.survey(Remedies())
    if survey is not None:
        check_tombstones(surveyor, survey)
    if survey is None or not isinstance(decide(survey.flow, survey.facts, survey.checkpoint), Continue):
        raise _Uncertain(f"flow {name} has a checkpoint to open")
    if not is_drained(planned, survey.flow.sources, survey.checkpoint, systems):
        raise _Uncertain(f"flow {name} has something to read")


def _require_fresh(record: Mapping[str, Any], settings: ProjectSettings) -> TableName:
    name = TableName(*record["view"])
    latest = last_refresh(settings.storage.table(name))
    inputs = {}
    for parts in record["inputs"]:
        path = settings.storage.table(TableName(*parts))
        table = _read_table(path)
        mark = commit_mark(path, table.version)
        inputs[str(TableName(*parts))] = {
            "table_id": table.table_id,
            "version": table.version,
            "commit": mark,
        }
    is_current = latest is not None and (latest["inputs"], latest["definition"]) == (
        inputs,
        record["definition"],
    )
    if latest is not None and lacks_quarantine(latest, settings.storage.quarantine(name)):
        raise _Uncertain(f"the quarantine table of {name} is missing")
    if not inputs or not is_current:
        raise _Uncertain(f"{name} is stale")
    return name


def _read_table(path: Location) -> TableState:
    found = read_checksum(path)
    if found is None:
        raise _Uncertain(f"{path} has no checksum")
    return found


def _stub(
    record: Mapping[str, Any], sinks: Mapping[TableName, Sink | None], settings: Callable[[], ProjectSettings]
) -> PlannedFlow:
    """A planned flow with its sources only; it cannot be run."""
    sink = sinks.get(TableName(*record["dataset"]))
    sources = tuple(load_source(one, _NOWHERE) for one in record["sources"])
    return PlannedFlow(
        flow=AppendFlow(
            name=record["flow"],
            target=TableName(*record["dataset"]),
            query=PythonQuery(lambda: None, _NOWHERE),
        ),
        schema={},
        reads=(),
        sources=sources,
        stateful=record["stateful"],
        coordinates=None,
        timestamp=None,
        reads_target=False,
        fingerprint="",
        sink=sink,
        connection=dict if sink is None else lambda: kind_for(sink.format).sink_options(sink, settings()),
    )


def _digest(settings: ProjectSettings, declarations: Declarations) -> str:
    """A hash of everything that a plan depends on: settings, files, and declarations."""
    from importlib.metadata import version

    digest = hashlib.sha256()
    storage = settings.storage.root
    files = frozenset(file for folder in settings.code_folders for file in code_files(folder, storage))
    kafka = {k: v for k, v in settings.kafka.settings.items() if k != "bootstrap.servers"}
    # The addresses in files; that of the profile is a part of the digest already.
    brokers = settings.brokers
    found = sorted(
        (name, sorted(one.settings.items()) if one else []) for name, one in brokers.connections.items()
    )
    parts: list[Any] = [
        [version(package) for package in ("headrace", "pyspark")],
        [settings.name, settings.profile, str(settings.storage.root), settings.database, settings.catalog],
        sorted(settings.configuration.items()),
        [sorted(settings.tables.targets.items()), sorted(settings.paths.targets.items())],
        sorted(kafka.items()),
        [sorted(brokers.targets.items()), found],
        settings.expectation_nulls,
        digest_code(settings.code_folders, settings.storage.root),
    ]
    for dataset in declarations.datasets:
        parts.append([type(dataset).__name__, str(dataset.name), dataset.comment, str(dataset.location)])
        parts.append([(one.name, one.text, one.action, one.nulls) for one in dataset.expectations])
        if isinstance(dataset, StreamingTable | MaterializedView):
            parts.append([sorted(dataset.table_properties.items()), str(dataset.schema), dataset.format])
            parts.append([dataset.partition_cols, dataset.cluster_by])
        if isinstance(dataset, TemporaryView):
            parts.append([sorted(dataset.spark_conf.items()), describe_query(dataset.query, files)])
    for flow in declarations.flows:
        parts.append(
            [
                flow.name,
                str(flow.target),
                sorted(flow.spark_conf.items()),
                # A query that was applied once is not evaluated again.
                "once" if is_once(flow) else describe_query(flow.query, files),
            ]
        )
    for part in parts:
        digest.update(repr(part).encode())
    return digest.hexdigest()
