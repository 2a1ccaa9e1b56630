"""The recorded lineage of a pipeline: the columns before and after each column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from headrace.errors import TableUnknownError, did_you_mean
from headrace.model.lineage import ColumnLineage, InputColumn, Way
from headrace.model.project import ProjectSettings
from headrace.observe.read import unknown_column


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A column of an input that contributes to a column of a dataset, or decides about its rows."""

    source: str  # the id of the input: a dataset with its schema, or ``source LABEL``
    source_column: str
    dataset: str
    column: str | None  # ``None`` if it decides which rows the dataset has
    way: Way
    masked: bool
    flow: str

    def to_json(self) -> dict[str, Any]:
        is_source = self.source.startswith(_SOURCE)
        return {
            "from": {
                "dataset": None if is_source else self.source,
                "source": self.source.removeprefix(_SOURCE) if is_source else None,
                "column": self.source_column,
            },
            "to": {"dataset": self.dataset, "column": self.column},
            "flow": self.flow,
            "type": "direct" if self.is_direct else "indirect",
            "way": self.way,
            "masked": self.masked,
        }

    @property
    def is_direct(self) -> bool:
        return InputColumn(0, "", self.way).is_direct


_SOURCE = "source "
Recorded = Literal["plan", "run"]


@dataclass(frozen=True, kw_only=True)
class RecordedDataset:
    """A dataset, or a source of records, with the columns that are known of it."""

    id: str
    kind: str  # ``streaming_table``, ``materialized_view``, ``temporary_view``, ``sink`` or ``source``
    columns: tuple[str, ...]
    reads: tuple[str, ...] = ()  # the ids of its inputs
    through: tuple[str, ...] = ()  # the temporary views that its queries read


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The lineage of a pipeline's newest plan or run."""

    pipeline: str
    schema: str  # the schema of names with one part
    recorded: Recorded
    at: str  # when it was recorded
    datasets: Mapping[str, RecordedDataset]
    edges: tuple[Edge, ...]
    unknown: tuple[str, ...] = ()  # the datasets whose lineage is not known

    def find(self, text: str, settings: ProjectSettings) -> tuple[str, str | None]:
        """The id of a dataset and a column for ``DATASET``, ``DATASET.COLUMN``, or a source or topic."""
        parts = text.split(".")
        folded = {id.removeprefix(_SOURCE).casefold(): id for id in self.datasets}
        # A topic is also found without the kind of its source, unless a dataset has its name.
        bare = {id.rpartition(" ")[2].casefold(): id for id in self.datasets if id.startswith(_SOURCE)}
        for count in range(len(parts), 0, -1):
            name = ".".join(parts[:count])
            full = str(settings.table_name(name)).casefold() if count <= 3 else name
            id = folded.get(full) or folded.get(name.casefold()) or bare.get(name.casefold())
            if id is not None:
                column = ".".join(parts[count:])
                return id, self._column(id, column) if column else None
        known = sorted(map(self.short, self.datasets))
        raise TableUnknownError(
            f"the lineage of pipeline {self.pipeline} has no dataset `{text}`",
            facts=(f"its datasets and sources: {', '.join(known)}",),
            remedies=did_you_mean(parts[0], known, "name one of them, or a column as DATASET.COLUMN"),
            params={"dataset": text, "known": known},
        )

    def _column(self, id: str, text: str) -> str:
        known = self.datasets[id].columns
        exact = {one.casefold(): one for one in known}
        if (found := exact.get(text.casefold())) is not None:
            return found
        head, _, rest = text.partition(".")
        # A field of a struct.
        if rest and head.casefold() in exact:
            return f"{exact[head.casefold()]}.{rest}"
        raise unknown_column(text, [*known], self.short(id))

    def short(self, id: str) -> str:
        """The name of a dataset or a source as users write it."""
        return id.removeprefix(_SOURCE).removeprefix(f"{self.schema}.")

    def into(self, id: str, column: str | None = None) -> tuple[Edge, ...]:
        """The edges to a column of a dataset; without a column, all that lead to it and to its rows."""
        found = self._into.get(id, ())
        if column is None:
            return found
        own = [one for one in found if one.column == column]
        # The field of a struct is the same field of a column that is taken as it is.
        head, _, rest = column.partition(".")
        if own or not rest:
            return tuple(own)
        return tuple(
            _at_field(one, rest) if one.way == "identity" else one for one in found if one.column == head
        )

    def out_of(self, id: str, column: str | None = None) -> tuple[Edge, ...]:
        """The edges from a column of a dataset or a source, or from all of its columns."""
        found = self._out_of.get(id, ())
        if column is None:
            return found
        return tuple(
            one
            for one in found
            if one.source_column == column
            or one.source_column.startswith(f"{column}.")
            or column.startswith(f"{one.source_column}.")
        )

    @cached_property
    def _into(self) -> Mapping[str, tuple[Edge, ...]]:
        return _grouped(self.edges, "dataset")

    @cached_property
    def _out_of(self) -> Mapping[str, tuple[Edge, ...]]:
        return _grouped(self.edges, "source")

    def upstream(self, id: str, column: str | None, *, rows: bool = True) -> tuple[Edge, ...]:
        """All edges that lead to a column or a dataset, nearest first, down to the sources. `rows`: whether
        also those that decide about the rows of the dataset."""
        found: dict[Edge, None] = {}
        waiting = [*self.into(id, column)]
        if column is not None and rows:
            waiting += [one for one in self.into(id) if one.column is None]
        while waiting:
            edge = waiting.pop(0)
            if edge not in found:
                found[edge] = None
                waiting += self.into(edge.source, edge.source_column)
        return tuple(found)

    def downstream(self, id: str, column: str | None) -> tuple[Edge, ...]:
        """All edges that begin at a column or a dataset, nearest first. An edge that decides about rows is
        the last one of its path."""
        found: dict[Edge, None] = {}
        waiting = [*self.out_of(id, column)]
        while waiting:
            edge = waiting.pop(0)
            if edge not in found:
                found[edge] = None
                waiting += () if edge.column is None else self.out_of(edge.dataset, edge.column)
        return tuple(found)

    def to_json(self, id: str | None = None, column: str | None = None) -> dict[str, Any]:
        """The lineage as JSON values: of the pipeline, or of one dataset or column."""
        head = {"pipeline": self.pipeline, "recorded": self.recorded, "at": self.at}
        if id is None:
            datasets = [self._dataset_json(one) for one in self.datasets.values()]
            return {**head, "datasets": datasets, "edges": [one.to_json() for one in self.edges]}
        return {
            **head,
            **self._dataset_json(self.datasets[id]),
            "column": column,
            "upstream": [one.to_json() for one in self.upstream(id, column)],
            "downstream": [one.to_json() for one in self.downstream(id, column)],
        }

    def _dataset_json(self, one: RecordedDataset) -> dict[str, Any]:
        is_source = one.id.startswith(_SOURCE)
        return {
            "dataset": None if is_source else one.id,
            "source": one.id.removeprefix(_SOURCE) if is_source else None,
            "kind": one.kind,
            "columns": [*one.columns],
            "reads": [{"name": self.short(id)} for id in one.reads],
            "through": [*one.through],
            "known": one.id not in self.unknown,
        }


def _at_field(one: Edge, rest: str) -> Edge:
    return Edge(**{**vars(one), "source_column": f"{one.source_column}.{rest}"})


def _grouped(edges: Iterable[Edge], name: str) -> Mapping[str, tuple[Edge, ...]]:
    found: dict[str, list[Edge]] = {}
    for one in edges:
        found.setdefault(getattr(one, name), []).append(one)
    return {key: tuple(many) for key, many in found.items()}


Definition = Mapping[str, Any]
"""A definition of a dataset or a flow: its ``type``, ``name`` and ``details``, as the event log has them."""


def build_lineage(
    definitions: Sequence[Definition],
    *,
    pipeline: str,
    schema: str,
    recorded: Literal["plan", "run"],
    at: str,
) -> Lineage:
    """The lineage of a pipeline from the definitions of a plan or a run."""
    datasets: dict[str, RecordedDataset] = {}
    edges: list[Edge] = []
    unknown: list[str] = []
    for name, kind, details in _datasets(definitions):
        queries = [*_queries(definitions, name, details)]
        found = [(flow, ColumnLineage.from_json(one)) for flow, one in queries if one is not None]
        if any(one is None for _, one in queries):
            unknown.append(name)
        datasets[name] = RecordedDataset(
            id=name,
            kind=kind,
            columns=tuple(dict.fromkeys(column for _, one in found for column in one.columns)),
            reads=tuple(dict.fromkeys(read.id for _, one in found for read in one.inputs)),
            through=_through(definitions, name, details),
        )
        # A temporary view is a part of the queries that read it.
        edges += [edge for flow, one in found for edge in _edges(name, flow, one)]
    seen: dict[str, dict[str, None]] = {}
    for edge in edges:
        seen.setdefault(edge.source, {})[edge.source_column] = None
    for id, columns in seen.items():
        if id not in datasets:
            kind = "source" if id.startswith(_SOURCE) else "table"
            datasets[id] = RecordedDataset(id=id, kind=kind, columns=tuple(columns))
    return Lineage(
        pipeline=pipeline,
        schema=schema,
        recorded=recorded,
        at=at,
        datasets=datasets,
        edges=tuple(edges),
        unknown=tuple(unknown),
    )


def _datasets(definitions: Sequence[Definition]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for one in definitions:
        if one["type"] == "dataset_definition":
            details = one["details"]
            kind = "sink" if details.get("sink") else str(details["dataset_type"]).lower()
            yield one["name"], kind, details


def _queries(
    definitions: Sequence[Definition], name: str, details: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The lineage of each query of a dataset, by the name of its flow."""
    if "lineage" in details:
        yield name, details["lineage"]
    for one in definitions:
        if one["type"] == "flow_definition" and one["details"]["output_dataset"] == name:
            yield one["name"], one["details"].get("lineage")


def _through(definitions: Sequence[Definition], name: str, details: Mapping[str, Any]) -> tuple[str, ...]:
    own = [one["details"] for one in definitions if one["details"].get("output_dataset") == name]
    return tuple(dict.fromkeys(view for one in (details, *own) for view in one.get("through", ())))


def _edges(name: str, flow: str, lineage: ColumnLineage) -> Iterator[Edge]:
    columns: list[tuple[str | None, Sequence[InputColumn]]] = [*lineage.columns.items(), (None, lineage.rows)]
    for column, found in columns:
        for one in found:
            yield Edge(
                source=lineage.inputs[one.input].id,
                source_column=one.column,
                dataset=name,
                column=column,
                way=one.way,
                masked=one.masked,
                flow=flow,
            )
