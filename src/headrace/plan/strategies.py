"""How the query of a view lets a refresh follow changes of its tables, as `plan` shows it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headrace.increments.increment import Code, NotIncrementalError, Strategy
from headrace.increments.merged import find_groups
from headrace.increments.query import delta_folder, file_index, read_plan
from headrace.increments.shape import check_query, find_keys, is_linear
from headrace.model.declarations import Action
from headrace.model.names import TableName
from headrace.plan.logical import LogicalPlan
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.syntax.sql import items


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

    def text(self) -> str:
        if not self.strategies:
            return f"refreshed as a whole: {self.reason} ({self.code})"
        *others, last = self.strategies
        ways = f"{', '.join(others)} or {last}" if others else last
        return f"refreshed by {ways}"


@dataclass(eq=False, kw_only=True)
class ViewStrategies:
    """Finds the strategies of a view when they are first asked for, while Spark runs: a run decides anew."""

    session: SparkSession
    plan: LogicalPlan
    actions: frozenset[Action]  # of the view's expectations
    varies: tuple[str, ...]
    name_of: Callable[[str], TableName | None]

    @cached_property
    def found(self) -> Refreshing:
        try:
            return Refreshing(strategies=tuple(self._find()))
        except NotIncrementalError as error:
            return Refreshing(code=error.code, reason=str(error))

    def _find(self) -> list[Strategy]:
        if "quarantine" in self.actions:
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", "it has a quarantine")
        query = read_plan(self.session, self.plan.java_plan, self._folder)
        check_query(query)
        if self.varies:
            text = f"its query {' and '.join(self.varies)}"
            raise NotIncrementalError("EXPRESSION_NOT_DETERMINISTIC", text)
        tables, found = tuple(query.tables), list[Strategy]()
        if all(is_linear(query.root, one) for one in tables):
            found.append("append")
        if "drop" in self.actions:
            if not found:
                raise NotIncrementalError(
                    "EXPECTATIONS_NOT_SUPPORTED", "it drops rows, and rows of it change"
                )
            return found
        with suppress(NotIncrementalError):
            find_groups(query, tables, only_gains=True)
            found.append("merge")
        try:
            find_keys(query, tables)
            found.append("keys")
        except NotIncrementalError:
            if not found:
                raise
        return found

    def _folder(self, relation: Any) -> str | None:
        if (folder := delta_folder(self.session, relation)) is not None:
            return folder
        # An empty table that stands for one of the pipeline.
        index = file_index(self.session, relation)
        paths = () if index is None else (str(one.toString()) for one in items(index.rootPaths()))
        return next((one for one in paths if self.name_of(one) is not None), None)
