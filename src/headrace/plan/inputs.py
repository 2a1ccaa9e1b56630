"""The inputs of a query, by the leaves of its plan: datasets of the storage, and sources of records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headrace.errors import first_line
from headrace.increments.query import file_index
from headrace.model.declarations import AutoCdcFlow, Flow, TemporaryView, snapshots_of
from headrace.model.lineage import ColumnLineage, Indirect, Input, InputColumn
from headrace.model.names import COLUMN_SEQUENCES, END, OPERATION, SEQUENCE, START, TableName
from headrace.model.snapshots import Snapshots, StoredSnapshots
from headrace.plan.lineage import read_lineage
from headrace.plan.logical import LogicalPlan, Node, streaming_nodes
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.source import Source
from headrace.storage.layout import shown_path
from headrace.syntax.sql import items

_logger = logging.getLogger(__name__)

_WITHOUT_INPUT = frozenset({"LocalRelation", "OneRowRelation", "Range", "LogicalRDD", "ExternalRDD"})
"""Leaves whose rows are those of the query itself."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Finds the input of each leaf of a query's plan."""

    session: SparkSession
    plan: LogicalPlan
    sources: Sequence[Source]
    tables: Sequence[TableName]  # the tables that the query reads
    name_of: Callable[[str], TableName | None]  # gives the dataset of a folder with an empty table
    root: Path

    def find(self, leaf: Node) -> Input | None:
        if leaf.kind in _WITHOUT_INPUT:
            return None
        if (source := self._streams.get(id(leaf))) is not None:
            return input_of(source, self.root)
        table = leaf.fields.get("catalogTable")
        if isinstance(table, Mapping) and isinstance(name := table.get("identifier"), Mapping):
            key = f"{name.get('database') or 'default'}.{name['table']}"
            return Input(dataset=self._names.get(key.casefold(), key))
        return self._outside(leaf)

    def of_snapshots(self, snapshots: Snapshots) -> Input:
        """The input of a flow that compares snapshots."""
        table = next(iter(self.tables), None)
        if isinstance(snapshots, StoredSnapshots) and snapshots.is_path:
            label = f"snapshots {shown_path(snapshots.name, self.root)}"
            return Input(kind="files", label=label, names=(snapshots.name,))
        if isinstance(snapshots, StoredSnapshots) and table is not None:
            return Input(dataset=str(table))
        return Input(kind="function", label=f"snapshots of {snapshots.name}")

    @cached_property
    def _streams(self) -> Mapping[int, Source]:
        return dict(zip(map(id, streaming_nodes(self.plan.root)), self.sources, strict=True))

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return {str(one).casefold(): str(one) for one in self.tables}

    @cached_property
    def _relations(self) -> Mapping[int, Any]:
        """Spark's own leaves by the id of their first column, also those of subqueries."""
        plan = self.plan.java_plan
        leaves = [*items(plan.collectLeaves())]
        for one in items(plan.subqueriesAll()):
            leaves += items(one.collectLeaves())
        outputs = ((one, one.output()) for one in leaves)
        return {int(out.head().exprId().id()): one for one, out in outputs if out.nonEmpty()}

    def _outside(self, leaf: Node) -> Input:
        """A batch read of files, of a table by its path, or of another system."""
        first = next((one.expression_id for one in leaf.expressions("output")), None)
        relation = self._relations.get(-1 if first is None else first)
        if relation is not None and leaf.kind == "LogicalRelation":
            index = file_index(self.session, relation)
            if index is None:
                text = str(relation.relation().getClass().getSimpleName())
                return Input(kind="other", label=f"batch {text.removesuffix('Relation').lower()}")
            paths = [unquote(str(one.toString())).removeprefix("file:") for one in items(index.rootPaths())]
            if paths and (name := self.name_of(paths[0])) is not None:
                return Input(dataset=str(name))
            shown = ", ".join(shown_path(one, self.root) for one in paths)
            return Input(kind="files", label=f"files {shown}", names=tuple(paths), wraps_records=False)
        if relation is not None and leaf.kind == "DataSourceV2Relation":
            return Input(kind="other", label=f"batch {relation.table().name()}")
        return Input(kind="other", label=f"batch {leaf.kind}")


def input_of(source: Source, root: Path) -> Input:
    """The input that a streaming source is."""
    if source.table is not None:
        return Input(dataset=str(source.table))
    plain = source.to_json()
    names = plain.get("topics") or [plain[key] for key in ("pattern", "path", "stream") if plain.get(key)]
    return Input(
        kind=source.kind,
        label=source.label(root),
        names=tuple(map(str, names)),
        wraps_records=source.wraps_records,
    )


def find_lineage(inputs: Inputs, declared: Flow | TemporaryView) -> ColumnLineage | None:
    """The lineage of the columns of a query; ``None`` if the plan has a form that is not known."""
    snapshots = snapshots_of(declared)
    given = None if snapshots is None else inputs.of_snapshots(snapshots)
    try:
        found = read_lineage(inputs.plan, inputs.find if given is None else lambda _: given)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # A plan that Spark writes in another way, or that is very deep, must not stop a run.
        _logger.warning(
            "the lineage of the query at %s is not known: %s", declared.location, first_line(error)
        )
        return None
    if given is not None:
        found = replace(found, columns={**found.columns, **dict.fromkeys(_ADDED & found.columns.keys(), ())})
    return _of_changes(found, declared) if isinstance(declared, AutoCdcFlow) else found


_ADDED = frozenset({SEQUENCE, START, END, OPERATION, COLUMN_SEQUENCES})
"""The columns that Headrace adds to records of changes."""


def _of_changes(found: ColumnLineage, flow: AutoCdcFlow) -> ColumnLineage:
    """The lineage of a table from that of its change records: the key, the order and the operation of a
    record decide about its row."""
    columns = {name: one for name, one in found.columns.items() if name not in (OPERATION, "_source")}
    keys = {key.casefold() for key in flow.keys}
    deciding: list[tuple[Indirect, Sequence[InputColumn]]] = [
        *(("group_by", one) for name, one in columns.items() if name.casefold() in keys),
        ("sort", found.columns.get(SEQUENCE, ())),
        ("filter", found.columns.get(OPERATION, ())),
    ]
    rows = {
        one._replace(way=way if one.is_direct or one.way == "conditional" else one.way, masked=False)
        for way, many in deciding
        for one in many
    }
    if END in columns:
        # A row ends where the next one of its key starts.
        columns[END] = columns[START]
    return replace(found, columns=columns, rows=tuple(sorted({*found.rows, *rows})))
