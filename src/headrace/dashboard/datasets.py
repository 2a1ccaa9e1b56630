"""One dataset: its columns, code, quality, batches, files and versions; and rows, if somebody asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from headrace.dashboard import sample
from headrace.dashboard.code import Excerpt, find_declaration
from headrace.dashboard.graph import build_drawing, dataset_state
from headrace.dashboard.index import moment
from headrace.dashboard.lineage import find_origins
from headrace.dashboard.site import PipelineView, required
from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.observe.quality import DatasetQuality, sum_quality
from headrace.project.last_results import load_result
from headrace.storage.table_log import LoggedCommit, is_table, load_commit, newest_commits

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.observe.quarantine import QuarantineSummary
    from headrace.observe.status import DatasetStatus
    from headrace.project.orphans import TableDescription

_BATCHES = 400  # the newest batches that the curves show
_CHECKED = 1000  # the newest batches whose expectations are summed up
_VERSIONS = 15
STEPS = ("offsets", "planning", "turn", "checks", "write", "commit", "report", "marks")


def find_name(view: PipelineView, request: Request) -> TableName:
    """The dataset that a request names. Only a known name becomes a part of a path."""
    name = required(request, "name")
    known = {one["name"] for one in view.definitions if one["type"] == "dataset_definition"}
    if name not in known and name not in view.datasets():
        raise HTTPException(404, "The pipeline has no dataset of this name.")
    return TableName.parse(name, view.settings.database)


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    name = find_name(view, request)
    key, status = str(name), view.datasets().get(str(name))
    definition = _definition(view, key)
    drawing = build_drawing(view)
    health = view.site.watcher.health.get(key)
    return {
        "name": name,
        "title": view.short(key),
        "status": status,
        "state": None if status is None else dataset_state(status),
        "node": next((one for one in drawing.nodes if one.id == key), None),
        "reads": drawing.before(key),
        "readers": [one for one in drawing.nodes if (key, one.id) in drawing.edges],
        "described": _describe(view, name),
        "definition": definition,
        "origins": find_origins(view, key),
        "errors": list(_errors(status)),
        "code": _code(view, definition),
        "quality": load_quality(view, key),
        "batches": _count_batches(view, key),
        "checked": _CHECKED,
        "health": health,
        "versions": _versions(view, name),
        "proof": _proof(view, key),
        "quarantine": _quarantine(view, name),
        "shows_rows": view.settings.shows_rows,
    }


def _errors(status: DatasetStatus | None) -> Iterator[Mapping[str, Any]]:
    """The errors of its flows, or of the view itself."""
    if status is not None:
        found = [*(one.error for one in status.flows), None if status.view is None else status.view.error]
        yield from (one for one in found if one is not None)


def _definition(view: PipelineView, key: str) -> Mapping[str, Any]:
    for one in view.definitions:
        if one["type"] == "dataset_definition" and one["name"] == key:
            found: Mapping[str, Any] = one["details"]
            return found
    return {}


def _code(view: PipelineView, definition: Mapping[str, Any]) -> Excerpt | None:
    return find_declaration(view, definition.get("location"))


def _describe(view: PipelineView, name: TableName) -> TableDescription | None:
    from headrace.project.orphans import describe_table

    table = view.settings.storage.table(name)
    if not is_table(table):
        return None
    with suppress(HeadraceError):
        return view.site.read([table], ("columns",), lambda: describe_table(view.settings, str(name)))
    return None


def load_quality(view: PipelineView, key: str) -> DatasetQuality | None:
    """The counts of expectations, of the newest batches; as `headrace quality` sums them up."""
    rows = view.query(
        "SELECT at, dataset, rows, quarantined, dropped, quality FROM batches WHERE dataset = ? "
        "AND pipeline = ? ORDER BY at DESC LIMIT ?",
        key,
        view.name,
        _CHECKED,
    )
    logged = [{"at": moment(row["at"]), "dataset": key, "details": _details(row)} for row in reversed(rows)]
    found = sum_quality(view.name, logged).datasets
    return found[0] if found else None


def _details(row: Mapping[str, Any]) -> str:
    """The details of a batch in the event log; the index keeps only those with something to tell."""
    quality = {"quarantined_records": row["quarantined"], "dropped_records": row["dropped"]}
    plain = {"metrics": {"num_output_rows": row["rows"]}, "data_quality": quality}
    return row["quality"] or json.dumps({"flow_progress": plain})


def _count_batches(view: PipelineView, key: str) -> int:
    sql = "SELECT sum(batches) AS n FROM hours WHERE pipeline = ? AND dataset = ?"
    return view.query(sql, view.name, key)[0]["n"] or 0


def _versions(view: PipelineView, name: TableName) -> list[LoggedCommit]:
    table = view.settings.storage.table(name)
    with suppress(HeadraceError, OSError, ValueError):
        return view.site.read([table], ("versions",), lambda: [*newest_commits(table, _VERSIONS)])
    return []


def _proof(view: PipelineView, key: str) -> Mapping[str, Any] | None:
    kept = load_result(view.settings, view.name, "proof") or {}
    found = next((one for one in kept.get("datasets", ()) if one["dataset"] == key), None)
    return None if found is None else {**found, "at": kept["at"]}


def _quarantine(view: PipelineView, name: TableName) -> QuarantineSummary | None:
    from headrace.observe.quarantine import find_quarantine

    with suppress(HeadraceError):
        found = find_quarantine(name, view.settings.storage)
        if found is not None:
            return view.site.read([found.path, found.target], ("reasons",), found.summary)
    return None


def rows(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """Some rows of the table, because somebody has asked."""
    sample.allow(view)
    name = find_name(view, request)
    found = view.stored.read(str(name), limit=sample.LIMIT)
    command = f"headrace read {view.short(str(name))} --limit {sample.LIMIT}"
    return sample.table(view, f"{view.short(str(name))}, version {found.version}", found, command)


def rejected(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """Some rejected rows, of one reason or of all."""
    from headrace.observe.quarantine import RowFilter, find_quarantine

    sample.allow(view)
    name, reason = find_name(view, request), request.query_params.get("reason")
    found = find_quarantine(name, view.settings.storage)
    # A reason is an expectation, or a kind with a name.
    expectations = {one["name"] for one in _definition(view, str(name)).get("expectations", ())}
    kind = reason and reason.partition(": ")[0]
    chosen = RowFilter(reason=reason if reason in expectations else kind)
    rows = None if found is None else found.read(chosen, sample.LIMIT)
    command = f"headrace quarantine show {view.short(str(name))} --limit {sample.LIMIT}"
    return sample.table(view, f"Rejected rows of {view.short(str(name))}", rows, command)


def commit(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """One version of a table: what its commit says."""
    name, text = find_name(view, request), required(request, "version")
    table = view.settings.storage.table(name)
    try:
        found = load_commit(table, int(text)) if text.isdecimal() else None
    except (OSError, ValueError):
        found = None
    if found is None:
        raise HTTPException(404, "The log of the table does not have this version, or not any more.")
    metadata = sample.without_values(found.metadata)
    return {"name": name, "title": view.short(str(name)), "commit": found, "metadata": metadata}


def series(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """The newest batches of a dataset, as columns for curves."""
    key = str(find_name(view, request))
    batches = view.query(
        "SELECT at, flow, batch, upd, version, rows, quarantined + dropped AS rejected, duration_ms, lag, "
        "latency_s FROM batches WHERE dataset = ? AND pipeline = ? ORDER BY at DESC LIMIT ?",
        key,
        view.name,
        _BATCHES,
    )[::-1]
    steps = {(one["upd"], one["flow"], one["batch"]): one["steps"] for one in _steps(view, batches)}
    columns = ("rows", "rejected", "duration_ms", "lag", "latency_s", "version")
    return {
        "at": [row["at"] / 1_000_000 for row in batches],
        **{name: [row[name] for row in batches] for name in columns},
        "steps": {
            name: [steps.get((row["upd"], row["flow"], row["batch"]), {}).get(name) for row in batches]
            for name in STEPS
        },
    }


def _steps(view: PipelineView, batches: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The steps of these batches, as the event log has them."""
    if not batches:
        return
    for flow in {row["flow"] for row in batches}:
        found = view.query(
            "SELECT upd, flow, batch, details FROM events WHERE flow = ? AND type = 'batch_steps' "
            "AND pipeline = ? ORDER BY seq DESC LIMIT ?",
            flow,
            view.name,
            _BATCHES,
        )
        for row in found:
            details = json.loads(row["details"])["batch_steps"]
            yield {**row, "batch": details.get("batch"), "steps": details.get("steps_ms") or {}}
