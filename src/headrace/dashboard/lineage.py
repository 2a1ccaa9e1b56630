"""Where the columns of a dataset come from, with links, and the path of a column through the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.dashboard.site import PipelineView
from headrace.dashboard.texts import address

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.lineage.graph import Edge


@dataclass(frozen=True)
class Origin:
    """A column of an input, as a page shows it."""

    text: str
    how: str
    link: str | None
    is_direct: bool


@dataclass(frozen=True)
class ColumnOrigins:
    """The columns of a dataset with their origin; `rows`: the columns that decide about its rows."""

    columns: Mapping[str, list[Origin]] = field(default_factory=dict)
    rows: tuple[Origin, ...] = ()


def find_origins(view: PipelineView, dataset: str) -> ColumnOrigins:
    known = view.lineage.datasets.get(dataset)
    edges = view.lineage.into(dataset)
    return ColumnOrigins(
        columns={
            name: [_origin(view, one) for one in edges if one.column == name]
            for name in (() if known is None else known.columns)
        },
        rows=tuple(_origin(view, one) for one in edges if one.column is None),
    )


def _origin(view: PipelineView, edge: Edge) -> Origin:
    how = edge.way.replace("_", " ") + (", masked" if edge.masked else "")
    is_dataset = edge.source in view.lineage.datasets and view.lineage.datasets[edge.source].kind != "source"
    link = address("", view.name, name=edge.source, column=edge.source_column) if is_dataset else None
    return Origin(f"{view.lineage.short(edge.source)}.{edge.source_column}", how, link, edge.is_direct)


@dataclass(frozen=True)
class Trace:
    """The path of a column: down to its sources, and up to the columns that are computed from it."""

    title: str
    columns: Mapping[str, list[str]]  # the columns of each node on the path, by the id of the node
    edges: frozenset[tuple[str, str]]


def find_trace(view: PipelineView, request: Request) -> Trace | None:
    """The path of the column that a request names; ``None`` for none, or one that is not known."""
    name, column = (request.query_params.get(one) for one in ("name", "column"))
    if name is None or column is None or name not in view.lineage.datasets:
        return None
    columns: dict[str, list[str]] = {name: [column]}
    edges = [*view.lineage.upstream(name, column, rows=False), *view.lineage.downstream(name, column)]
    for edge in edges:
        for id, one in ((edge.source, edge.source_column), (edge.dataset, edge.column or "rows")):
            if one not in columns.setdefault(id, []):
                columns[id].append(one)
    pairs = frozenset((one.source, one.dataset) for one in edges)
    return Trace(f"{view.lineage.short(name)}.{column}", columns, pairs)
