"""How the query of a view lets a refresh follow changes of its tables, as `plan` shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headrace.increments.increment import Code, NotIncrementalError, Strategy
from headrace.increments.merged import check_mergeable
from headrace.increments.query import ViewQuery, delta_folder, read_query
from headrace.increments.shape import check_query, find_keys, is_linear, no_keys
from headrace.model.declarations import MaterializedView
from headrace.model.names import TableName
from headrace.plan.logical import LogicalPlan
from headrace.runtime.lazy_pyspark import SparkSession


@dataclass(frozen=True, kw_only=True)
class Refreshing:
    """The strategies that a view can be refreshed by. `reason` and `code`: why it is computed as a whole."""

    strategies: tuple[Strategy, ...] = ()
    code: Code | None = None
    reason: str | None = None

    def for_streams(self) -> Refreshing:
        """The strategies of a view that a stream reads: the stream can follow only added rows."""
        if self.reason is not None or "append" in self.strategies:
            return replace(self, strategies=self.strategies[:1])
        return Refreshing(code="STREAM_READS_VIEW", reason="a stream reads the view, and rows of it change")

    def text(self, view: MaterializedView) -> str:
        if view.refresh_policy == "full":
            return "refreshed as a whole, by its policy"
        if not self.strategies:
            return f"refreshed as a whole: {self.reason} ({self.code})"
        *others, last = self.strategies
        ways = f"{', '.join(others)} or {last}" if others else last
        return f"refreshed by {ways}" + (", where that costs less" if view.refresh_policy == "auto" else "")


@dataclass(eq=False, kw_only=True)
class ViewStrategies:
    """Finds the strategies of a view when they are first asked for, while Spark runs: a run decides anew."""

    session: SparkSession
    plan: LogicalPlan
    has_expectations: bool
    varies: tuple[str, ...]
    name_of: Callable[[str], TableName | None]

    @cached_property
    def found(self) -> Refreshing:
        try:
            return Refreshing(strategies=tuple(self._find()))
        except NotIncrementalError as error:
            return Refreshing(code=error.code, reason=str(error))

    def _find(self) -> list[Strategy]:
        if self.has_expectations:
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", "it has expectations")
        query = read_query(self.session, self.plan.java_plan, self._folder)
        check_query(query)
        if self.varies:
            raise NotIncrementalError(
                "EXPRESSION_NOT_DETERMINISTIC", f"its query {' and '.join(self.varies)}"
            )
        found: list[Strategy] = []
        if all(is_linear(query.root, one) for one in query.tables):
            found.append("append")
        if _is_mergeable(query):
            found.append("merge")
        if find_keys(query, tuple(query.tables)):
            found.append("keys")
        if not found:
            raise no_keys()
        return found

    def _folder(self, relation: Any) -> str | None:
        folder = delta_folder(self.session, relation)
        if folder is None:
            paths = relation.relation().location().rootPaths()
            folder = None if paths.isEmpty() else str(paths.head().toString())
            return folder if folder is not None and self.name_of(folder) is not None else None
        return folder


def _is_mergeable(query: ViewQuery) -> bool:
    try:
        check_mergeable(query)
    except NotIncrementalError:
        return False
    return True
