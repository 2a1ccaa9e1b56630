"""Decides how a view is refreshed: computed as a whole, or only where its tables have changed."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace.contracts.expectations import count_failed_rows, with_checks
from headrace.errors import RefreshNotIncrementalError
from headrace.increments.by_keys import compute_again
from headrace.increments.changes import TableChange, bytes_of, columns_differ, find_change
from headrace.increments.costs import Costs, faded, is_small, rejected, with_attempt
from headrace.increments.increment import Code, Increment, NotIncrementalError, Strategy
from headrace.increments.leaves import InputTable, Leaves
from headrace.increments.merged import find_groups, merge
from headrace.increments.query import ViewQuery, read_query
from headrace.increments.shape import check_query, find_keys, is_expensive
from headrace.model.declarations import MaterializedView, RefreshPolicy
from headrace.model.names import TableName
from headrace.plan.logical import read_plan
from headrace.run.failpoints import reach
from headrace.run.split import RefreshSplit
from headrace.runtime.gateway import quiet
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, T
from headrace.sinks.delta.compaction import Maintenance
from headrace.sinks.delta.data_files import NoPositionsError
from headrace.sinks.delta.increment import ViewIncrement
from headrace.sinks.target import Committed, RefreshStamp, SplitRows
from headrace.storage.layout import Storage, locate
from headrace.storage.location import Location
from headrace.storage.row_counts import newest_refresh, refresh_seconds
from headrace.storage.table_log import commit_mark, readable_versions
from headrace.syntax.sql import items

_LOG = logging.getLogger(__name__)
_MOST_KEYS = 500_000
_WHOLE_ANYWAY: frozenset[Code] = frozenset({"FIRST_REFRESH", "QUERY_FINGERPRINT_CHANGED", "ROWS_ERASED"})
_SETTINGS = (
    *("session.timeZone", "ansi.enabled", "caseSensitive", "timestampType"),
    *("decimalOperations.allowPrecisionLoss", "mapKeyDedupPolicy", "legacy.timeParserPolicy"),
)
"""Settings of `spark.sql` with which a query gives other rows."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of an attempt at an increment. `committed`: the increment; ``None`` if the whole view must
    be computed. `frame` returns the query for that, and `stamp` says what it reads. `reason`: why there is no
    increment. `code`: the reason as the events of Databricks name it. `change`: as `ViewRefreshed` has it."""

    strategy: Strategy
    frame: Callable[[], DataFrame]
    stamp: RefreshStamp
    committed: Committed | None = None
    code: Code | None = None
    reason: str | None = None
    change: Mapping[str, int] | None = None


@dataclass(kw_only=True)
class ViewIncrements:
    """The increments of one view. `is_streamed`: whether a stream reads its rows. `kept_plain_for`: the
    readers for which no row may be removed by a deletion vector."""

    view: MaterializedView
    storage: Storage
    maintenance: Maintenance
    is_streamed: bool
    split: RefreshSplit
    kept_plain_for: Sequence[str] = ()

    def attempt(self, session: SparkSession, frame: DataFrame, stamp: RefreshStamp) -> Attempt:
        """Commit an increment, if that costs less than the whole view.

        Raises:
            RefreshNotIncrementalError: The view may only be refreshed by increments, and there is none.
        """
        policy = self.view.refresh_policy
        if policy == "full":
            return Attempt(strategy="full", frame=lambda: frame, stamp=stamp)
        seconds = refresh_seconds(newest_refresh(self._path))
        stamp = replace(stamp, seconds=faded(seconds, "full"))
        plain = full = Attempt(strategy="full", frame=lambda: frame, stamp=stamp)
        started = None
        if policy == "auto" and is_small(seconds, lambda: self._input_bytes(session, stamp)):
            return full
        try:
            conditions = self._conditions(session, frame)
            query = read_query(session, frame)
            check_query(query)
            if stamp.varies:
                raise NotIncrementalError("EXPRESSION_NOT_DETERMINISTIC", "its rows depend on the time")
            now = self._tables(query, stamp)
            digest = query.digest
            if conditions:
                digest = hashlib.sha256("\n".join((digest, *conditions)).encode()).hexdigest()[:32]
            # From here on the whole view, too, is computed from exactly these versions.
            exact = replace(stamp, exact=True, settings=_settings(session), query=digest)
            full = replace(full, frame=Leaves(query, now).whole, stamp=exact)
            if self.maintenance.awaits_rewrite(self._path):
                raise NotIncrementalError("ROWS_ERASED", "rows were erased, so no file of it may keep them")
            begun = ViewIncrement(session, self._path)
            leaves = Leaves(query, _with_changes(query, now, exact, begun.last))
            if not begun.has_columns(frame):
                raise NotIncrementalError("DATA_SCHEMA_CHANGED", "its table has other columns than its query")
            started = time.monotonic()
            with quiet():
                return self._commit(full, leaves, begun, seconds)
        except Exception as error:
            if (reason := reason_of(error, policy)) is None:
                raise
            if started is not None:
                now_ms, spent_s = time.time_ns() // 1_000_000, time.monotonic() - started
                exact = replace(full.stamp, seconds=with_attempt(seconds, spent_s), began_ms=now_ms)
                full = replace(full, stamp=exact)
            try:
                whole = full.frame()
            except NotIncrementalError as newer:
                return self._full(plain, newer)
            return self._full(replace(full, frame=lambda: whole), reason)

    @property
    def _path(self) -> Location:
        return self.storage.table(self.view.name)

    def _conditions(self, session: SparkSession, frame: DataFrame) -> Sequence[str]:
        """The expectations as texts; `NotIncrementalError` if an increment cannot add up their counts."""
        from pyspark.errors import AnalysisException

        expected = self.view.expectations
        if not expected:
            return ()
        actions = {one.action for one in expected}
        if "quarantine" in actions or ("drop" in actions and self.split.max_rejected is not None):
            text = "it has a quarantine, or a limit of rejected rows"
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", text)
        output = items(frame._jdf.queryExecution().analyzed().output())
        tables = {str(part).lower() for one in output for part in items(one.qualifier())}
        if any(isinstance(one.dataType, T.StructType) and one.name.lower() in tables for one in frame.schema):
            # `orders.id` is a column of the table to its query, and a field of the column to the view's rows.
            text = "a column with fields has the name of a table, so that an expectation can mean either"
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", text)
        try:
            with quiet():
                plan = read_plan(session, with_checks(session.createDataFrame([], frame.schema), expected))
        except AnalysisException as error:
            text = "an expectation uses a column that the view does not have"
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", text) from error
        if plan.varies or plan.python_functions:
            text = "an expectation depends on the time, or calls a function of Python"
            raise NotIncrementalError("EXPRESSION_NOT_DETERMINISTIC", text)
        return [f"{one.action} {one.name}: {one.text}, NULL {one.nulls}" for one in expected]

    def _input_bytes(self, session: SparkSession, stamp: RefreshStamp) -> int:
        tables = ((TableName.parse(name, "default"), one) for name, one in stamp.inputs.items())
        return sum(bytes_of(session, self.storage.table(name), int(one["version"])) for name, one in tables)

    def _commit(
        self, full: Attempt, leaves: Leaves, begun: ViewIncrement, seconds: Mapping[str, float]
    ) -> Attempt:
        session = leaves.query.session
        costs = None
        if self.view.refresh_policy == "auto":
            costs = Costs(
                seconds={"full": math.inf, **seconds},
                changed_rows=leaves.changed_row_count,
                changed_bytes=leaves.changed_bytes,
                input_bytes=leaves.input_bytes,
                view_rows=begun.row_count,
                view_bytes=bytes_of(session, self._path, begun.version),
            )
        increment, expected = self._find(leaves, begun, costs), self.view.expectations
        strategy, change = increment.strategy, {"changed": leaves.changed_row_count}
        change |= {} if increment.keys is None else {"keys": increment.keys}

        def check_removed(count: int) -> None:
            if increment.most_removed is not None and count > increment.most_removed:
                rejected(f"{count:,} of its {begun.row_count:,} rows are affected")

        stamp = replace(full.stamp, seconds=faded(seconds, strategy))
        reach("before-commit", self.view.name.name, 0)
        try:
            facts: dict[str, Any] = {"strategy": strategy, **change, "from": leaves.start}
            facts |= {} if increment.groups is None else {"groups": increment.groups}
            facts |= {} if strategy in seconds else {"first": True}
            added = increment.added
            with self.split.begin(added, stamp) if expected else SplitRows(accepted=added) as split:
                committed, rows = begun.commit(
                    stamp,
                    split,
                    increment.removed,
                    facts,
                    check_removed,
                    partial(count_failed_rows, count=len(expected)),
                )
        finally:
            increment.release()
        return replace(
            full,
            strategy=strategy,
            committed=committed,
            change={**change, **rows, "bytes": leaves.changed_bytes},
        )

    def _full(self, full: Attempt, error: NotIncrementalError) -> Attempt:
        name = self.view.name.short
        if self.view.refresh_policy == "incremental strict" and error.code not in _WHOLE_ANYWAY:
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
                raise NotIncrementalError("INPUT_NOT_IN_DELTA", text)
            version = int(stamp.inputs[names[path]]["version"])
            found[folder] = InputTable.unchanged(names[path], path, version)
        return found

    def _find(self, leaves: Leaves, begun: ViewIncrement, costs: Costs | None) -> Increment:
        """The increment that costs least: rows to add, aggregates to combine, or keys to compute again."""
        if leaves.only_gains:
            try:
                added = leaves.query.frame(leaves.delta(leaves.query.root, "gained"))
            except NotIncrementalError:
                pass
            else:
                _check(costs, "append")
                return Increment(strategy="append", added=added)
        if self.is_streamed:
            raise NotIncrementalError("STREAM_READS_VIEW", "a stream reads the view, and rows of it change")
        if any(one.action == "drop" for one in self.view.expectations):
            text = "it drops rows, and rows of it change"
            raise NotIncrementalError("EXPECTATIONS_NOT_SUPPORTED", text)
        if self.kept_plain_for:
            text = f"{self.kept_plain_for[0]}, of `readers`, cannot read the deletion vectors of removed rows"
            raise NotIncrementalError("CONFIGURATION_CHANGED", text)
        query, changed = leaves.query, leaves.changed
        checked = partial(with_checks, expectations=self.view.expectations)
        try:
            groups = find_groups(query, changed, only_gains=leaves.only_gains)
        except NotIncrementalError as not_mergeable:
            try:
                keys = find_keys(query, changed)
            except NotIncrementalError as error:
                raise (error if not_mergeable.code == "AGGREGATE_NOT_TOP_NODE" else not_mergeable) from None
            _check(costs, "keys", is_expensive=is_expensive(query))
            return compute_again(leaves, keys, begun.open_rows, _MOST_KEYS, costs, checked)
        _check(costs, "merge")
        return merge(leaves, groups, begun.open_rows(), checked)


def _check(costs: Costs | None, strategy: Strategy, *, is_expensive: bool = False) -> None:
    if costs is not None:
        costs.check(strategy, is_expensive=is_expensive)


def reason_of(error: Exception, policy: RefreshPolicy) -> NotIncrementalError | None:
    """Why the whole view is computed after an error; ``None`` if the refresh fails."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    match error:
        case NotIncrementalError():
            return error
        case NoPositionsError():
            return NotIncrementalError("CONFIGURATION_CHANGED", str(error))
        case Py4JError() | PySparkException() if policy == "auto" or "ARITHMETIC_OVERFLOW" in str(error):
            # With AUTO, the user has not asked for an increment. And a sum that is too large for its type
            # over the changed rows can fit over all rows.
            _LOG.info("an increment failed", exc_info=error)
            text = f"an increment failed: {' '.join(str(error).split())[:200]}"
            return NotIncrementalError("OPERATOR_NOT_INCREMENTALIZABLE", text)
    return None


def _settings(session: SparkSession) -> str:
    values = (f"{name}={session.conf.get(f'spark.sql.{name}')}" for name in _SETTINGS)
    return " ".join((f"spark={session.version}", *values))


def _with_changes(
    query: ViewQuery, now: Mapping[str, InputTable], stamp: RefreshStamp, last: Mapping[str, Any] | None
) -> dict[str, InputTable]:
    """The tables with what has changed in them since the last refresh."""
    if last is None:
        raise NotIncrementalError("FIRST_REFRESH", "its rows are not those of a refresh")
    if last.get("definition") != stamp.definition:
        raise NotIncrementalError("QUERY_FINGERPRINT_CHANGED", "its query has changed")
    if not last.get("exact"):
        raise NotIncrementalError(
            "FIRST_REFRESH", "the last refresh did not record the versions that it read"
        )
    if last.get("query") != stamp.query:
        text = "its query or its expectations have other values than before"
        raise NotIncrementalError("QUERY_FINGERPRINT_CHANGED", text)
    if last.get("settings") != stamp.settings:
        raise NotIncrementalError("CONFIGURATION_CHANGED", "settings of Spark have changed")
    found, changes = {}, dict[Location, TableChange]()
    for folder, one in now.items():
        seen = last["inputs"].get(one.name)
        if seen is None or seen["table_id"] != stamp.inputs[one.name]["table_id"]:
            raise NotIncrementalError("CHANGE_SET_MISSING", f"{one.name} was created again")
        before = int(seen["version"])
        if commit_mark(one.path, before) not in (None, seen["commit"]):
            raise NotIncrementalError("CHANGE_SET_MISSING", f"the log of {one.name} was replaced")
        if one.path not in changes:
            change = changes[one.path] = find_change(one.path, before, one.now)
            change.check_files()
            # What one leaf alone has gained and lost is found without the older version of its table.
            if (change.alters or len(query.tables) > 1) and before not in readable_versions(one.path):
                raise NotIncrementalError("CHANGE_SET_MISSING", f"the log of {one.name} was cleaned")
            if change.alters and columns_differ(query.session, one.path, before, one.now):
                raise NotIncrementalError("DATA_SCHEMA_CHANGED", f"{one.name} has other columns")
        found[folder] = replace(one, before=before, change=changes[one.path])
    return found
