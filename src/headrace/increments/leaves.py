"""Reads the tables of a query: at this refresh, at the last refresh, or only the changed rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from headrace.increments.changes import TableChange, bytes_of, rows_at
from headrace.increments.increment import NotIncrementalError
from headrace.increments.query import Operator, ViewQuery
from headrace.increments.shape import is_linear
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.storage.location import Location

Side = Literal["gained", "lost"]


@dataclass(frozen=True, kw_only=True)
class InputTable:
    """A table that a view reads: the version of the last refresh, that of this one, and what lies between."""

    name: str
    path: Location
    before: int
    now: int
    change: TableChange

    @classmethod
    def unchanged(cls, name: str, path: Location, version: int) -> InputTable:
        change = TableChange(table=path, version=version)
        return cls(name=name, path=path, before=version, now=version, change=change)


class Leaves:
    """Rows for the leaves of a query. `inputs`: the tables by their folder, as `ViewQuery.tables` has it."""

    def __init__(self, query: ViewQuery, inputs: Mapping[str, InputTable]) -> None:
        self.query = query
        self._inputs = {leaf: inputs[folder] for leaf, folder in query.tables.items()}
        self.changed = tuple(leaf for leaf, one in self._inputs.items() if not one.change.is_empty)
        self._read: dict[tuple[Operator, int], Any] = {}

    @cached_property
    def only_gains(self) -> bool:
        return all(self._inputs[leaf].change.only_adds for leaf in self.changed)

    @property
    def start(self) -> dict[str, int]:
        """The version of each table that the last refresh saw."""
        return {one.name: one.before for one in self._inputs.values()}

    @property
    def changed_row_count(self) -> int:
        """How many rows of the tables were gained and lost; a table that is read twice counts once."""
        return sum({one.path: one.change.rows for one in self._inputs.values()}.values())

    @property
    def changed_bytes(self) -> int:
        return sum({one.path: one.change.size_bytes for one in self._inputs.values()}.values())

    @property
    def input_bytes(self) -> int:
        """The size of the tables; one that is read twice counts twice."""
        return sum(bytes_of(self.query.session, one.path, one.now) for one in self._inputs.values())

    def whole(self) -> DataFrame:
        """All rows of the query as it is now."""
        return self.query.frame(self.query.over({leaf: self.now(leaf) for leaf in self.query.tables}))

    def now(self, leaf: Operator) -> Any:
        """The rows of a leaf that this refresh sees, as a plan."""
        return self._at(leaf, self._inputs[leaf].now)

    def before(self, leaf: Operator) -> Any:
        """The rows of a leaf that the last refresh saw, as a plan."""
        one = self._inputs[leaf]
        return self._at(leaf, one.now if one.change.is_empty else one.before)

    def changed_rows(self, leaf: Operator, side: Side) -> Any | None:
        """The rows that a leaf has gained or lost, as a plan; ``None`` if there are none."""
        change, session = self._inputs[leaf].change, self.query.session
        rows = change.gained(session) if side == "gained" else change.lost(session)
        return None if rows is None else self.query.as_leaf(leaf, rows)

    def delta(self, node: Operator, side: Side) -> Any:
        """The rows that a part of the query gains or loses, as a plan with the part's columns.

        The part is linear in each changed leaf. So its change is the sum of its results over the changed
        rows of one leaf after the other, with the leaves before it as they are now, and those after it as
        they were. `NotIncrementalError`: it is not linear.
        """
        jvm: Any = self.query.session._jvm
        parts = []
        for number, leaf in enumerate(self.changed):
            if not is_linear(node, leaf):
                text = "its rows depend on several rows of a table that has changed"
                raise NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", text)
            rows = self.changed_rows(leaf, side)
            if rows is not None:
                later = self.changed[number + 1 :]
                others = {
                    one: self.before(one) if one in later else self.now(one) for one in self.query.tables
                }
                parts.append(self.query.over({**others, **self._emptied(node, leaf), leaf: rows}, node))
        if not parts:
            return self._empty(node)
        union = jvm.org.apache.spark.sql.catalyst.plans.logical.Union
        return parts[0] if len(parts) == 1 else union(jvm.PythonUtils.toSeq(parts), False, False)

    def _at(self, leaf: Operator, version: int) -> Any:
        if (leaf, version) not in self._read:
            rows = rows_at(self.query.session, self._inputs[leaf].path, version)
            self._read[leaf, version] = self.query.as_leaf(leaf, rows)
        return self._read[leaf, version]

    def _emptied(self, node: Operator, leaf: Operator) -> dict[Operator, Any]:
        """The other branches of each UNION ALL above a leaf, without rows."""
        path = node.path_to(leaf) or ()
        return {
            other: self._empty(other)
            for one, child in itertools.pairwise(path)
            if one.kind == "Union"
            for other in one.children
            if other is not child
        }

    def _empty(self, node: Operator) -> Any:
        jvm: Any = self.query.session._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        return catalyst.plans.logical.Filter(catalyst.expressions.Literal.FalseLiteral(), node.java)
