"""A plan as text, as JSON, and as a graph; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, assert_never

from headrace.errors import SourceLocation
from headrace.model.declarations import (
    AppendFlow,
    AutoCdcFlow,
    Dataset,
    DatasetCheck,
    Expectation,
    Groups,
    MaterializedView,
    Sink,
    StreamingTable,
    TemporaryView,
    snapshots_of,
)
from headrace.model.names import ChosenColumns, TableName
from headrace.model.texts import GLUE, counted, wrap
from headrace.plan.drawing import Graph, GraphForm, Node, draw_dot, draw_mermaid, draw_text
from headrace.plan.picture import draw_svg
from headrace.plan.stages import Plan, PlannedFlow, PlannedRefresh, PlannedView, target_of
from headrace.sinks.target import describe_sink
from headrace.sources.bad_records import VALUE_LIMIT
from headrace.sources.source import Source
from headrace.storage.layout import locate

if TYPE_CHECKING:
    from headrace.plan.strategies import Refreshing

WIDTH = 100
_SIGNS = {"create": "+", "alter": "~", "recompute": "~", "remove": "-", "keep": "="}


@dataclass(frozen=True)
class Explanation:
    plan: Plan

    def to_text(self, width: int = WIDTH) -> str:
        lines = [self._headline(), ""]
        lines += [f"  {line}" for line in draw_text(self.graph())]
        lines.append("")
        datasets = self.datasets()
        longest = max([len(self.name_of(dataset.name)) for dataset in datasets], default=0)
        for dataset in datasets:
            lines += self._dataset_lines(dataset, longest, width)
        declared = {dataset.name for dataset in self.plan.datasets}
        for change in self.plan.changes or ():
            if change.dataset not in declared:
                head = f"  - {self.name_of(change.dataset):<{longest}}  "
                lines += wrap(change.text, width, head, " " * (longest + 6))
        warnings = list(self.plan.unchecked)
        lines += [line for text in warnings for line in wrap(f"warning: {text}", width, rest="  ")]
        for note in self.plan.notes:
            lines.append(f"{note.level}: {note.text} ({note.location})")
            lines += [] if note.remedy is None else [f"  help: {note.remedy}"]
        lines.append(f"Nothing was written. {self._what_next()}")
        return "\n".join(lines)

    def _headline(self) -> str:
        project = self.plan.project
        datasets = self.datasets()
        stored = [one for one in datasets if not isinstance(one, TemporaryView)]
        changes = self.plan.changes or ()
        created = {change.dataset for change in changes if change.kind == "create"}
        is_new = bool(stored) and all(one.name in created for one in stored)
        flows = len([flow for one in datasets for flow in self.plan.feeding(one.name)])
        root = project.storage.root
        inside = root.below(locate(project.root))
        storage = "/".join((".", *inside)) if inside else root
        profile = "" if project.profile == "dev" else f" · profile {project.profile}"
        return (
            f"{project.name}{profile} · {counted(len(datasets), 'dataset')}, "
            f"{counted(flows, 'flow')} · storage {storage}{' (new)' if is_new else ''}"
        )

    def _dataset_lines(self, dataset: Dataset, longest: int, width: int) -> list[str]:
        name = self.name_of(dataset.name)
        signs = [_SIGNS[change.kind] for change in self._changes_of(dataset.name)]
        sign = min(signs, key=lambda sign: sign == _SIGNS["keep"], default=" ")
        head = f"  {sign} {name:<{longest}}  {_kind_of(dataset):<17}  {dataset.location}"
        indent = " " * (longest + 6)
        facts = [
            (dataset.comment or "").partition("\n")[0],
            self._schema_text(dataset),
            _layout_text(dataset),
        ]
        facts += [self._flow_text(dataset, flow) for flow in self.plan.feeding(dataset.name)]
        if (view := self.view_of(dataset.name)) is not None:
            limit = dataset.max_rejected if isinstance(dataset, MaterializedView) else None
            shown = "" if limit is None else f" · max_rejected: {limit}"
            facts.append(self._view_text(view) + shown)
            facts.append(self._refresh_text(dataset))
        facts += [_expectation_text(one) for one in dataset.expectations]
        facts += [
            f"checks `{one.name}`: {'stop' if one.fails else 'warn'} if it fails"
            for one in _checks_of(dataset)
        ]
        for change in self._changes_of(dataset.name):
            if change.kind != "create":
                # The line of the view says why each run recomputes it.
                facts.append(change.text.partition("; ")[2] if change.part == "always" else change.text)
        wrapped = [line for fact in facts if fact for line in wrap(fact, width, indent, indent)]
        return [head, *wrapped]

    def _what_next(self) -> str:
        if self.plan.changes is None:
            return "The storage was not read (--offline)."
        if self.plan.refusals:
            count = counted(len(self.plan.refusals), "error")
            return f"`headrace run` would stop with {count}:"
        if not self.plan.would_change:
            return "No table would change; `headrace run` processes new records."
        return "`headrace run` does this."

    def _schema_text(self, dataset: Dataset) -> str:
        schema = self.plan.schemas.get(dataset.name)
        if schema is None:
            return ""
        for read in self._reads_of(dataset.name):
            if self.plan.schemas.get(read) == schema:
                return f"same columns as {self.name_of(read)}"
        # The name and the type of a column stay on one line.
        return ", ".join(f"{field['name']}{GLUE}{type_text(field['type'])}" for field in schema["fields"])

    def _flow_text(self, dataset: Dataset, planned: PlannedFlow) -> str:
        snapshots = snapshots_of(planned.flow)
        sources = ", ".join(self._source_text(planned.flow.name, source) for source in planned.sources)
        if snapshots is not None:
            sources = f"snapshots of {snapshots.name}"
        if planned.flow.once:
            return f"once from {self._names([read.table for read in planned.reads]) or 'its batch query'}"
        parts = [f"from {sources}" if sources else "from nothing"]
        static = [read.table for read in planned.reads if not (read.streaming or snapshots)]
        if static:
            parts.append(f"joined with {self._names(static)}")
        match planned.flow:
            case AppendFlow(groups=Groups(keys=keys)):
                parts.append(f"one row for each {', '.join(keys)}" if keys else "one row for all records")
            case AppendFlow():
                parts.append("append")
            case AutoCdcFlow(keys=keys, sequence_by=sequence, history=ChosenColumns() as tracked):
                parts.append(f"history of {', '.join(keys)} by {sequence}{tracked.text('tracks')}")
            case AutoCdcFlow(keys=keys, sequence_by=sequence, kept_if_null=kept):
                parts.append(f"merged by {', '.join(keys)}, the greatest {sequence} wins")
                if kept is not None:
                    parts.append(f"a NULL changes nothing{kept.text('in')}")
            case _:
                assert_never(planned.flow)
        if planned.stateful:
            parts.append("stateful")
        if planned.coordinates is not None:
            *others, number = planned.coordinates.record.names
            parts.append(f"keeps {', '.join(others)} and {number}")
        if planned.max_rejected is not None:
            parts.append(f"max_rejected: {planned.max_rejected}")
        if planned.flow.trigger is not None:
            parts.append(f"trigger: {planned.flow.trigger}")
        text = " · ".join(parts)
        name = planned.flow.name
        own = name in (dataset.name.name, str(dataset.name))
        return text if own else f"flow {name} ({planned.flow.location}): {text}"

    def _view_text(self, planned: PlannedRefresh | PlannedView) -> str:
        reads = list(dict.fromkeys(read.table for read in planned.reads))
        if isinstance(planned, PlannedView):
            return f"reads {self._names(reads)}" if reads else ""
        if not reads:
            return "recomputed by every run"
        if planned.varies:
            return f"recomputed by every run: its query {' and '.join(planned.varies)}"
        often = "" if planned.flow.trigger is None else f", trigger: {planned.flow.trigger}"
        return f"recomputed when {self._names(reads, 'or')} has a new version{often}"

    def _refresh_text(self, dataset: Dataset) -> str:
        found = self._refreshing(dataset)
        view = self.view_of(dataset.name)
        if not isinstance(dataset, MaterializedView) or not isinstance(view, PlannedRefresh) or found is None:
            return ""
        # The line before says that each run recomputes it, and why. The default policy has only JSON.
        is_told = view.varies or not view.reads or dataset.refresh_policy == "auto"
        return "" if is_told else found.text()

    def _refreshing(self, dataset: Dataset) -> Refreshing | None:
        view = self.view_of(dataset.name)
        if not isinstance(view, PlannedRefresh) or view.strategies is None:
            return None
        found = view.strategies.found
        return found.for_streams() if self.plan.streams_rows(dataset.name) else found

    def _source_text(self, flow: str, source: Source) -> str:
        root = self.plan.project.root
        text = source.title(root) if source.table is None else self.name_of(source.table)
        found = self.plan.found.get((flow, source.index))
        if found is not None and found.names is not None:
            text += f" ({', '.join(found.names) or 'none yet'})"
        if found is not None and found.text:
            text += f", {found.text}"
        limit = source.option(VALUE_LIMIT)
        return text + source.details() + ("" if limit is None else f", values up to {int(limit):,} bytes")

    def to_json(self) -> dict[str, Any]:
        project = self.plan.project
        changes = self.plan.changes
        return {
            "pipeline": project.name,
            "profile": project.profile,
            "storage": str(project.storage.root),
            "datasets": [self._dataset_json(dataset) for dataset in self.datasets()],
            "edges": [list(edge) for edge in self.graph().edges],
            "changes": None
            if changes is None
            else [{**asdict(one), "dataset": str(one.dataset)} for one in changes],
            "would_change": self.plan.would_change,
            "refusals": [error.to_dict() for error in self.plan.refusals],
            "warnings": list(self.plan.unchecked),
            "notes": [
                {**asdict(note), "location": _location_json(note.location)} for note in self.plan.notes
            ],
        }

    def _dataset_json(self, dataset: Dataset) -> dict[str, Any]:
        view = self.view_of(dataset.name)
        return {
            "dataset": str(dataset.name),
            "kind": _kind_of(dataset).replace(" ", "_"),
            "comment": dataset.comment,
            "expectations": [
                {"name": one.name, "condition": one.text, "action": one.action, "nulls": one.nulls}
                for one in dataset.expectations
            ],
            "checks": [{"name": one.name, "fail": one.fails} for one in _checks_of(dataset)],
            **_layout_json(dataset),
            "location": _location_json(dataset.location),
            "schema": self.plan.schemas.get(dataset.name),
            "reads": [str(name) for name in self._reads_of(dataset.name)],
            "flows": [_flow_json(flow) for flow in self.plan.feeding(dataset.name)],
            "fingerprint": None if view is None else view.fingerprint,
            "refresh": self._refresh_json(dataset),
        }

    def _refresh_json(self, dataset: Dataset) -> dict[str, Any] | None:
        found = self._refreshing(dataset)
        if not isinstance(dataset, MaterializedView) or found is None:
            return None
        return {"policy": dataset.refresh_policy, **asdict(found)}

    def draw(self, form: GraphForm) -> str:
        """The graph of sources, datasets and sinks, as the text of a picture."""
        match form:
            case "mermaid":
                return draw_mermaid(self.graph())
            case "dot":
                return draw_dot(self.graph())
            case "svg":
                return draw_svg(self.graph())

    def graph(self) -> Graph:
        """The graph of sources, tables and views, with an edge for each read."""
        nodes: dict[str, Node] = {}
        edges: dict[tuple[str, str], None] = {}
        declared = {dataset.name: dataset for dataset in self.plan.datasets}

        def add(name: TableName) -> str:
            key = str(name)
            nodes.setdefault(key, self._node(name, declared.get(name)))
            return key

        for dataset in self.datasets():
            behind = {label for view in self._through(dataset.name) for label in self._streams_of(view)}
            for label in self._streams_of(dataset.name):
                if label not in behind:
                    nodes.setdefault(label, Node(label, label, "source"))
                    edges[label, add(dataset.name)] = None
            for read in self._reads_of(dataset.name):
                edges[add(read), add(dataset.name)] = None
            add(dataset.name)
        return Graph(tuple(nodes.values()), tuple(edges))

    def _streams_of(self, name: TableName) -> list[str]:
        """The streams that a dataset reads, directly or through temporary views, except tables."""
        found: dict[str, None] = {}
        for flow in self.plan.feeding(name):
            snapshots = snapshots_of(flow.flow)
            if snapshots is None:
                found |= self._labels(() if flow.flow.once else flow.sources)
            elif all(read.streaming for read in flow.reads):
                # Another table with snapshots has an edge as one that the query reads.
                found[f"snapshots of {snapshots.name}"] = None
        if isinstance(view := self.view_of(name), PlannedView):
            found |= self._labels(view.sources)
        return list(found)

    def _labels(self, sources: Iterable[Source]) -> dict[str, None]:
        root = self.plan.project.root
        return {source.label(root): None for source in sources if source.table is None}

    def _node(self, name: TableName, dataset: Dataset | None) -> Node:
        label = self.name_of(name)
        match dataset:
            case StreamingTable(sink=Sink()):
                return Node(str(name), f"{label} (sink)", "sink")
            case StreamingTable():
                return Node(str(name), label, "table")
            case MaterializedView():
                return Node(str(name), f"{label} (view)", "view")
            case TemporaryView():
                return Node(str(name), f"{label} (temporary)", "temporary")
            case None:
                return Node(str(name), f"table {label}", "source")

    def datasets(self) -> list[Dataset]:
        """The datasets of this plan: those with a stage, and the temporary views that they read."""
        wanted = {target_of(stage) for stage in self.plan.stages}
        for name in tuple(wanted):
            wanted.update(self._through(name))
        return self._ordered([dataset for dataset in self.plan.datasets if dataset.name in wanted])

    def _ordered(self, datasets: list[Dataset]) -> list[Dataset]:
        """The datasets in dependency order, otherwise in the order of the files."""
        found: list[Dataset] = []
        reads = {dataset.name: set(self._reads_of(dataset.name)) for dataset in datasets}
        while datasets:
            left = {dataset.name for dataset in datasets}
            ready = (index for index, one in enumerate(datasets) if left.isdisjoint(reads[one.name]))
            found.append(datasets.pop(next(ready, 0)))
        return found

    def view_of(self, name: TableName) -> PlannedRefresh | PlannedView | None:
        """The resolved query of a materialized or temporary view."""
        refreshes = (one for one in self.plan.refreshes if one.flow.target == name)
        views = (one for one in self.plan.views if one.view.name == name)
        return next(refreshes, None) or next(views, None)

    def name_of(self, name: TableName) -> str:
        """The name as users write it: the default schema is left out."""
        return name.within(self.plan.project.database)

    def _through(self, name: TableName) -> list[TableName]:
        """The temporary views between a dataset's queries and their tables."""
        view = self.view_of(name)
        own = (view.through if view is not None else (), *(flow.through for flow in self.plan.feeding(name)))
        return list(dict.fromkeys(one for through in own for one in through))

    def _reads_of(self, name: TableName) -> list[TableName]:
        """The tables and temporary views that a dataset's queries read, each once."""
        through = self._through(name)
        behind = {read for view in through for read in self._tables_behind(view)}
        return [*through, *(read for read in self._tables_behind(name) if read not in behind)]

    def _tables_behind(self, name: TableName) -> list[TableName]:
        """The tables behind a dataset's queries, also through temporary views."""
        found: dict[TableName, None] = {}
        for flow in self.plan.feeding(name):
            found.update((source.table, None) for source in flow.sources if source.table is not None)
            found.update((read.table, None) for read in flow.reads)
        view = self.view_of(name)
        found.update((read.table, None) for read in (view.reads if view else ()))
        found.pop(name, None)
        return list(found)

    def _changes_of(self, name: TableName) -> list[Any]:
        return [change for change in self.plan.changes or () if change.dataset == name]

    def _names(self, names: Iterable[TableName], last: str = "and") -> str:
        texts = [self.name_of(name) for name in dict.fromkeys(names)]
        return "".join(texts) if len(texts) < 2 else f"{', '.join(texts[:-1])} {last} {texts[-1]}"


def type_text(kind: Any) -> str:
    """A column's type in SQL's words; the fields of a struct are left out."""
    if isinstance(kind, str):
        return "INT" if kind == "integer" else kind.upper()
    match kind.get("type"):
        case "array":
            return f"ARRAY<{type_text(kind['elementType'])}>"
        case "map":
            return f"MAP<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
        case "struct":
            return "STRUCT<…>"
        case "udt":
            return type_text(kind.get("sqlType", "udt"))
        case other:
            return str(other).upper()


def _checks_of(dataset: Dataset) -> tuple[DatasetCheck, ...]:
    return () if isinstance(dataset, TemporaryView) else dataset.checks


def _expectation_text(expectation: Expectation) -> str:
    outcome = {
        "warn": "count the rows that fail",
        "drop": "drop the rows that fail",
        "quarantine": "quarantine the rows that fail",
        "fail": "stop if a row fails",
    }[expectation.action]
    nulls = "" if expectation.nulls == "pass" else ", NULL fails"
    return f"expects `{expectation.name}`: {expectation.text}{nulls} · {outcome}"


def _kind_of(dataset: Dataset) -> str:
    match dataset:
        case StreamingTable():
            return "streaming table" if dataset.sink is None else "sink"
        case MaterializedView():
            return "materialized view"
        case TemporaryView():
            return "temporary view"


def _layout_text(dataset: Dataset) -> str:
    """How a table is laid out, and what its owner has set; where the rows of a sink go."""
    if isinstance(dataset, TemporaryView):
        return ""
    if isinstance(dataset, StreamingTable) and dataset.sink is not None:
        return describe_sink(dataset.sink)
    parts = []
    if dataset.is_private:
        parts.append("private")
    if dataset.partition_cols:
        parts.append(f"partitioned by {', '.join(dataset.partition_cols)}")
    if dataset.cluster_by:
        parts.append(f"clustered by {', '.join(dataset.cluster_by)}")
    parts += [f"{key}{GLUE}={GLUE}{value}" for key, value in sorted(dataset.table_properties.items())]
    return " · ".join(parts)


def _layout_json(dataset: Dataset) -> dict[str, Any]:
    if isinstance(dataset, TemporaryView):
        return {}
    return {
        "partition_cols": list(dataset.partition_cols),
        "cluster_by": list(dataset.cluster_by),
        "table_properties": dict(dataset.table_properties),
    }


def _flow_json(planned: PlannedFlow) -> dict[str, Any]:
    coordinates = planned.coordinates
    return {
        "flow": planned.flow.name,
        "location": _location_json(planned.flow.location),
        "sources": [source.to_json() for source in planned.sources],
        "spark_conf": dict(planned.flow.spark_conf),
        "stateful": planned.stateful,
        "coordinates": None if coordinates is None else coordinates.to_json(),
        "timestamp": planned.timestamp,
        "max_rejected": None if planned.max_rejected is None else str(planned.max_rejected),
        "fingerprint": planned.fingerprint,
    }


def _location_json(location: SourceLocation) -> dict[str, Any]:
    return {"path": location.path, "line": location.line}
