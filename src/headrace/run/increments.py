"""Decides how a view is refreshed: computed as a whole, or only where its tables have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from headrace.errors import RefreshNotIncrementalError
from headrace.increments.by_keys import compute_again
from headrace.increments.changes import TableChange, UnknownChangeError, find_change
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
from headrace.state.ledger import load_refresh_s, record_refresh
from headrace.storage.layout import Storage
from headrace.storage.locate import locate
from headrace.storage.location import Location
from headrace.storage.table_log import commit_mark

_SHORT_S = 2.0
"""A refresh of the whole view that takes less is never replaced: an increment has seven to eight jobs."""
_SHORT_FOR_KEYS_S = 5.0
_MOST_MERGED = 0.2
"""Up to this part of the view's rows, changed rows are merged."""
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
    _full_s: float | None = field(default=None, init=False)

    @cached_property
    def _ledger(self) -> Location:
        return self.storage.ledger(self.view.name, "view")

    @property
    def full_s(self) -> float | None:
        """How many seconds the last refresh of the whole view took; ``None`` if that is not known."""
        if self._full_s is None:
            self._full_s = load_refresh_s(self._ledger)
        return self._full_s

    def attempt(self, session: SparkSession, frame: DataFrame, stamp: RefreshStamp) -> Attempt:
        """Commit an increment, if that costs less than the whole view.

        Raises:
            RefreshNotIncrementalError: The view may only be refreshed by increments, and there is none.
        """
        full = Attempt(strategy="full", frame=frame, stamp=stamp)
        begun: ViewIncrement | None = None
        try:
            self._check_policy()
            query = read_query(session, frame)
            check_query(query)
            now = self._tables(query, stamp)
            # From here on the whole view, too, is computed from exactly these versions.
            full = replace(full, frame=Leaves(query, now).whole(), stamp=replace(stamp, exact=True))
            begun = ViewIncrement(session, self.storage.table(self.view.name))
            leaves = Leaves(query, _with_changes(now, stamp, begun.last))
            increment = self._find(leaves, begun)
            try:
                facts = {"strategy": increment.strategy, "changed": leaves.changed_row_count}
                facts |= {} if increment.keys is None else {"keys": increment.keys}
                committed = begun.commit(full.stamp, increment.added, increment.removed, facts)
            finally:
                increment.release()
        except (UnknownChangeError, NoPositionsError) as error:
            return self._full(full, NotIncrementalError("CHANGES_NOT_AVAILABLE", str(error)), begun)
        except NotIncrementalError as error:
            return self._full(full, error, begun)
        return replace(full, strategy=increment.strategy, stamp=full.stamp, committed=committed)

    def measured(self, seconds: float) -> None:
        """Record how long the whole view took."""
        self._full_s = seconds
        record_refresh(self._ledger, seconds)

    def _full(self, full: Attempt, error: NotIncrementalError, begun: ViewIncrement | None) -> Attempt:
        is_first = begun is not None and begun.version < 0
        if (
            self.view.refresh_policy == "incremental strict"
            and not is_first
            and error.code != "FIRST_REFRESH"
        ):
            raise RefreshNotIncrementalError(
                f"{self.view.name.short} cannot be refreshed by an increment: {error}",
                location=self.view.location,
                facts=("the view keeps its rows",),
                remedies=(
                    "let it be computed as a whole where that is needed: REFRESH POLICY INCREMENTAL, or "
                    'refresh_policy="incremental"',
                    f"or compute it as a whole once:   headrace full-refresh {self.view.name.short}",
                ),
                params={"view": str(self.view.name), "reason": error.code},
            )
        return replace(full, code=error.code, reason=str(error))

    def _check_policy(self) -> None:
        view = self.view
        if view.refresh_policy == "full":
            raise NotIncrementalError("REFRESH_POLICY", "its refresh policy is FULL")
        if view.expectations:
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", "it has expectations")
        if view.refresh_policy == "auto" and self.full_s is not None and self.full_s < _SHORT_S:
            text = f"the last refresh of the whole view took {self.full_s:.1f} s"
            raise NotIncrementalError("CHEAPER_IN_FULL", text)

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
        """The increment that costs least."""
        view, version, is_auto = (
            self.storage.table(self.view.name),
            begun.version,
            self.view.refresh_policy == "auto",
        )
        if is_auto and self.full_s is None:
            text = "no refresh of the whole view has been measured yet"
            raise NotIncrementalError("NOT_MEASURED", text)
        if leaves.only_gains:
            try:
                return Increment(
                    strategy="append", added=leaves.query.frame(leaves.delta(leaves.query.root, "gained"))
                )
            except NotIncrementalError:
                pass
        if self.is_streamed:
            text = "a stream reads the view, and rows of it change"
            raise NotIncrementalError("STREAMED", text)
        rows = begun.row_count
        try:
            if is_auto and leaves.changed_row_count > _MOST_MERGED * rows:
                text = f"{leaves.changed_row_count:,} rows have changed, and the view has {rows:,}"
                raise NotIncrementalError("CHANGE_TOO_LARGE", text)
            return merge(leaves, view, version)
        except NotIncrementalError as error:
            not_merged = error
        if is_auto and (self.full_s or 0) < _SHORT_FOR_KEYS_S:
            raise not_merged
        most = _MOST_KEYS if not is_auto else min(_MOST_KEYS, max(1_000, rows // 50))
        try:
            return compute_again(leaves, view, version, most)
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
