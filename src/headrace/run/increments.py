"""Decides how a view is refreshed: computed as a whole, or only where its tables have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import RefreshNotIncrementalError
from headrace.increments.by_keys import compute_again
from headrace.increments.changes import TableChange, UnknownChangeError, find_change, is_gone
from headrace.increments.increment import Increment, Strategy
from headrace.increments.leaves import InputTable, Leaves
from headrace.increments.merged import merge
from headrace.increments.query import ViewQuery, read_query
from headrace.increments.shape import NotIncrementalError, check_query
from headrace.model.declarations import MaterializedView
from headrace.model.names import TableName
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.data_files import NoPositionsError
from headrace.sinks.delta.increment import ViewIncrement
from headrace.sinks.target import Committed, RefreshStamp
from headrace.storage.layout import Storage
from headrace.storage.locate import locate
from headrace.storage.location import Location
from headrace.storage.table_log import commit_mark

_MOST_KEYS = 500_000


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What an attempt at an increment has come to. `committed`: the increment; ``None`` if the whole view is
    to be computed. `frame` and `stamp`: the query for that, and what it then sees. `reason`: why there is no
    increment. `code`: the reason as the events of Databricks name it."""

    strategy: Strategy
    frame: DataFrame
    stamp: RefreshStamp
    committed: Committed | None = None
    code: str | None = None
    reason: str | None = None


@dataclass(kw_only=True)
class ViewIncrements:
    """The increments of one view. `is_streamed`: whether a stream reads the view."""

    view: MaterializedView
    storage: Storage
    is_streamed: bool

    def attempt(self, session: SparkSession, frame: DataFrame, stamp: RefreshStamp) -> Attempt:
        """Commit an increment, if that costs less than the whole view.

        Raises:
            RefreshNotIncrementalError: The view may only be refreshed by increments, and there is none.
        """
        full = Attempt(strategy="full", frame=frame, stamp=stamp)
        if self.view.refresh_policy in ("auto", "full"):
            return full
        try:
            if stamp.varies:
                text = "its query reads the clock, or something else than tables"
                raise NotIncrementalError("EXPRESSION_NOT_DETERMINISTIC", text)
            if self.view.expectations:
                raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", "it has expectations")
            query = read_query(session, frame)
            check_query(query)
            now = self._tables(query, stamp)
            # From here on the whole view, too, is computed from exactly these versions.
            full = replace(full, frame=Leaves(query, now).whole(), stamp=replace(stamp, exact=True))
            begun = ViewIncrement(session, self.storage.table(self.view.name))
            leaves = Leaves(query, _with_changes(now, stamp, begun.last))
            increment = self._find(leaves, begun)
            try:
                facts: dict[str, Any] = {
                    "strategy": increment.strategy,
                    "changed": leaves.changed_row_count,
                    "from": leaves.start,
                    "keys": increment.keys,
                    "groups": increment.groups,
                }
                facts = {name: value for name, value in facts.items() if value is not None}
                committed = begun.commit(full.stamp, increment.added, increment.removed, facts)
            finally:
                increment.release()
        except (UnknownChangeError, NoPositionsError) as error:
            return self._full(full, NotIncrementalError("CHANGES_NOT_AVAILABLE", str(error)))
        except NotIncrementalError as error:
            return self._full(full, error)
        except Exception as error:
            if not is_gone(error):
                raise
            text = "files of the rows that its tables have lost are gone"
            return self._full(full, NotIncrementalError("CHANGES_NOT_AVAILABLE", text))
        return replace(full, strategy=increment.strategy, committed=committed)

    def _full(self, full: Attempt, error: NotIncrementalError) -> Attempt:
        name = self.view.name.short
        is_new = error.code in ("FIRST_REFRESH", "QUERY_CHANGED")
        if self.view.refresh_policy == "incremental strict" and not is_new:
            raise RefreshNotIncrementalError(
                f"{name} cannot be refreshed by what has changed: {error}",
                location=self.view.location,
                facts=("the view keeps its rows",),
                remedies=(
                    "compute the whole view where that is needed: REFRESH POLICY INCREMENTAL, or in Python "
                    'refresh_policy="incremental"',
                ),
                params={"view": str(self.view.name), "reason": error.code},
            )
        return replace(full, code=error.code, reason=str(error))

    def _tables(self, query: ViewQuery, stamp: RefreshStamp) -> dict[str, InputTable]:
        """The tables of the query at the versions of the stamp."""
        names = {self.storage.table(TableName.parse(name, "default")): name for name in stamp.inputs}
        found = {}
        for folder in query.tables.values():
            path = locate(folder)
            if path not in names:
                text = f"it reads the table {path}, which no flow of the pipeline writes"
                raise NotIncrementalError("DATA_SOURCE_NOT_SUPPORTED", text)
            version = int(stamp.inputs[names[path]]["version"])
            found[folder] = InputTable.unchanged(names[path], path, version)
        return found

    def _find(self, leaves: Leaves, begun: ViewIncrement) -> Increment:
        """The increment that costs least: rows to add, aggregates to combine, or keys to compute again."""
        if leaves.only_gains:
            try:
                added = leaves.query.frame(leaves.delta(leaves.query.root, "gained"))
                return Increment(strategy="append", added=added)
            except NotIncrementalError:
                pass
        if self.is_streamed:
            raise NotIncrementalError("STREAMED", "a stream reads the view, and rows of it change")
        begun.check_positions()
        view, version = self.storage.table(self.view.name), begun.version
        try:
            return merge(leaves, view, version)
        except NotIncrementalError as error:
            not_merged = error
        try:
            return compute_again(leaves, view, version, _MOST_KEYS)
        except NotIncrementalError as error:
            raise (error if error.code == "CHANGE_TOO_LARGE" else not_merged) from None


def _with_changes(
    now: Mapping[str, InputTable], stamp: RefreshStamp, last: Mapping[str, Any] | None
) -> dict[str, InputTable]:
    """The tables with what has changed in them since the last refresh."""
    if last is None:
        raise NotIncrementalError("FIRST_REFRESH", "its rows are not those of a refresh")
    if last.get("definition") != stamp.definition:
        raise NotIncrementalError("QUERY_CHANGED", "its query has changed")
    if not last.get("exact"):
        raise NotIncrementalError("NOT_EXACT", "the last refresh did not record exactly what it has read")
    found, changes = {}, dict[Location, TableChange]()
    for folder, one in now.items():
        seen = last["inputs"].get(one.name)
        if seen is None or seen["table_id"] != stamp.inputs[one.name]["table_id"]:
            raise NotIncrementalError("TABLE_REPLACED", f"{one.name} was created again")
        before = int(seen["version"])
        if commit_mark(one.path, before) not in (None, seen["commit"]):
            raise NotIncrementalError("TABLE_REPLACED", f"the log of {one.name} was replaced")
        if one.path not in changes:
            changes[one.path] = find_change(one.path, before, one.now)
        found[folder] = replace(one, before=before, change=changes[one.path])
    return found
