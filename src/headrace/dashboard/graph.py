"""The graph of a pipeline: sources, datasets and sinks with their figures, as a drawing and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.dashboard.index import moment
from headrace.dashboard.lineage import find_trace
from headrace.dashboard.pipelines import load_updates, rejected_today, state_of
from headrace.dashboard.site import PipelineView
from headrace.dashboard.texts import address, tone, worst
from headrace.project.last_results import load_result

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.observe.status import DatasetStatus

_TEMPORARY = "temporary view"
_KINDS = {"STREAMING_TABLE": "table", "MATERIALIZED_VIEW": "view", "TEMPORARY_VIEW": _TEMPORARY}
_FLOWING_S = 15  # an edge pulses so long after the last rows of its target
_SIGNS = {"create": "+", "alter": "~", "recompute": "~", "remove": "-"}


@dataclass(frozen=True, kw_only=True)
class Node:
    id: str
    label: str
    kind: str  # ``source``, ``table``, ``view``, ``sink``, or the name of another kind of table
    link: str | None = None
    state: str | None = None
    rows: int | None = None
    rate: float | None = None
    lag: int | None = None
    latency_s: float | None = None
    rejected: int = 0  # in the last 24 hours
    changed: datetime | None = None
    flows: bool = False  # whether rows have just come in
    changes: tuple[Mapping[str, Any], ...] = ()  # what the next run would change

    @property
    def sign(self) -> str:
        return next((_SIGNS[one["kind"]] for one in self.changes if one["kind"] in _SIGNS), "")

    def to_json(self) -> dict[str, Any]:
        at = None if self.changed is None else self.changed.isoformat()
        own = {**vars(self), "changed": at, "changes": [one["text"] for one in self.changes]}
        return {**own, "tone": tone(self.state), "sign": self.sign}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    planned: datetime | None = None  # when the changes were planned

    def before(self, node: str) -> list[Node]:
        known = {one.id: one for one in self.nodes}
        return [known[one] for one, other in self.edges if other == node and one in known]


@dataclass
class _Builder:
    view: PipelineView
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: dict[tuple[str, str], None] = field(default_factory=dict)

    def build(self) -> Drawing:
        definitions = self.view.definitions
        statuses, recent, rejected = self.view.datasets(), _recent(self.view), rejected_today(self.view)
        planned = load_changes(self.view)
        changes = {} if planned is None else planned.changes
        declared = {one["name"]: one["details"] for one in definitions if one["type"] == "dataset_definition"}
        flows = [one["details"] for one in definitions if one["type"] == "flow_definition"]
        through = {name for flow in flows for name in flow.get("through", ())}
        temporary = {name: one for name, one in declared.items() if name in through}
        known = {name: one for name, one in declared.items() if one["dataset_type"] != "TEMPORARY_VIEW"}
        for name in dict.fromkeys((*known, *temporary, *statuses, *changes)):
            is_sink = declared.get(name, {}).get("sink")
            kind = "sink" if is_sink else _kind(declared.get(name), statuses.get(name))
            self.nodes[name] = self._dataset(
                name, kind, statuses.get(name), recent.get(name), rejected.get(name, 0), changes.get(name, ())
            )
        for target, reads in (*temporary.items(), *((one["output_dataset"], one) for one in flows)):
            if target in self.nodes:
                self._connect(target, reads, temporary)
        for before, name in planned.edges if planned is not None else ():
            if name in changes:
                self._connect_planned(before, name)
        return Drawing(
            nodes=tuple(self.nodes.values()),
            edges=tuple(self.edges),
            planned=None if planned is None else planned.at,
        )

    def _dataset(
        self,
        name: str,
        kind: str,
        status: DatasetStatus | None,
        recent: Mapping[str, Any] | None,
        rejected: int,
        changes: Iterable[Mapping[str, Any]],
    ) -> Node:
        flows = () if status is None else status.flows
        lags = [one.lag for one in flows if one.lag is not None]
        rates = [one.rate for one in flows if one.rate is not None]
        last = None if recent is None else moment(recent["at"])
        is_planned = status is None and any(one["kind"] == "create" for one in changes)
        return Node(
            id=name,
            label=self.view.short(name),
            kind=kind,
            # A planned dataset has no page yet, and a temporary view has no rows.
            link=None if is_planned or kind == _TEMPORARY else address("dataset", self.view.name, name=name),
            state="new" if is_planned else None if status is None else dataset_state(status),
            rows=None if status is None else status.rows,
            rate=sum(rates) if rates else None,
            lag=sum(lags) if lags else None,
            latency_s=None if recent is None else recent["latency_s"],
            rejected=rejected,
            changed=None if status is None else status.changed,
            flows=last is not None and (datetime.now(UTC) - last).total_seconds() < _FLOWING_S,
            changes=tuple(changes),
        )

    def _connect_planned(self, before: str, name: str) -> None:
        """An edge of the plan: its sources have their labels as ids."""
        if before not in self.nodes:
            before, label = f"source {before}", before
            self.nodes.setdefault(before, Node(id=before, label=label, kind="source"))
        if before != name:
            self.edges[before, name] = None

    def _connect(
        self, target: str, reads: Mapping[str, Any], temporary: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """The edges to a dataset: from its temporary views, and from inputs that are not behind these."""
        views = [temporary[name] for name in reads.get("through", ()) if name in temporary]
        behind = {name for one in views for name in (*one.get("input_datasets", ()), *one.get("through", ()))}
        streams = {source["label"] for one in views for source in one.get("sources", ())}
        for name in (*reads.get("through", ()), *reads.get("input_datasets", ())):
            if name in behind:
                continue
            if name not in self.nodes:
                self.nodes[name] = Node(id=name, label=self.view.short(name), kind="table of others")
            if name != target:
                self.edges[name, target] = None
        for source in reads.get("sources", ()):
            if source["label"] in streams:
                continue
            id, topics = f"source {source['label']}", source["topics"]
            link = address("topic", self.view.name, name=topics[0]) if len(topics) == 1 else None
            link = address("topics", self.view.name) if len(topics) > 1 else link
            self.nodes.setdefault(id, Node(id=id, label=source["label"], kind="source", link=link))
            self.edges[id, target] = None


def build_drawing(view: PipelineView) -> Drawing:
    return _Builder(view).build()


def dataset_state(status: DatasetStatus) -> str:
    """The worst state of a dataset's flows, or its own."""
    if status.problem is not None:
        return "unreadable"
    return "orphaned" if status.orphaned else worst(status.states) or "new"


@dataclass(frozen=True, kw_only=True)
class PlannedChanges:
    """What a run would change, by dataset, with the edges of the whole plan."""

    at: datetime
    changes: Mapping[str, list[Mapping[str, Any]]]
    edges: tuple[tuple[str, str], ...]


def load_changes(view: PipelineView) -> PlannedChanges | None:
    """What the last `headrace plan` would change; ``None`` if an update has begun since."""
    found = load_result(view.settings, view.name, "plan")
    if found is None:
        return None
    at = datetime.fromisoformat(found["kept"])
    last = next((one.began for one in load_updates(view, 1)), None)
    if last is not None and last > at:
        return None
    changes: dict[str, list[Mapping[str, Any]]] = {}
    for one in found.get("changes") or ():
        if one["kind"] != "keep" and one["part"] != "always":
            changes.setdefault(one["dataset"], []).append(one)
    edges = tuple((before, name) for before, name in found["edges"])
    return PlannedChanges(at=at, changes=changes, edges=edges) if changes else None


def _kind(definition: Mapping[str, Any] | None, status: DatasetStatus | None) -> str:
    if definition is not None:
        return _KINDS.get(definition["dataset_type"], "table")
    kind = "streaming_table" if status is None else status.kind
    return {"streaming_table": "table", "materialized_view": "view"}.get(kind, kind.replace("_", " "))


def _recent(view: PipelineView) -> dict[str, dict[str, Any]]:
    """The last batch or refresh of each dataset."""
    names = [*view.datasets()][:400]  # SQLite joins at most 500 queries
    union = " UNION ALL ".join(
        [
            "SELECT * FROM (SELECT dataset, at, latency_s FROM batches WHERE dataset = ? "
            "AND pipeline = ? ORDER BY at DESC LIMIT 1)"
        ]
        * len(names)
    )
    values = [value for name in names for value in (name, view.name)]
    return {row["dataset"]: row for row in view.query(union, *values)} if names else {}


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    drawing = build_drawing(view)
    trace = find_trace(view, request)
    return {"drawing": drawing, "state": state_of(view), "updates": load_updates(view), "trace": trace}


def data(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """The graph for the drawing."""
    drawing = build_drawing(view)
    trace = find_trace(view, request)
    nodes = [one.to_json() for one in drawing.nodes]
    if trace is None:
        return {"nodes": nodes, "edges": drawing.edges}
    traced = [{**one, "columns": trace.columns.get(one["id"], [])} for one in nodes]
    return {"nodes": traced, "edges": drawing.edges, "path": sorted(trace.edges)}


def names(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """What the search of a page finds: datasets, topics, and the other pages."""
    drawing = build_drawing(view)
    found = [
        {"name": one.label, "kind": one.kind, "link": one.link}
        for one in drawing.nodes
        if one.link is not None
    ]
    others = [one for one in view.site.watcher.pipelines if one != view.name]
    found += [{"name": one, "kind": "pipeline", "link": address("", one)} for one in others]
    return {"names": found}
