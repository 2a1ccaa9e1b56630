"""The rows of flows whose stream has only markers: snapshots, and a batch query that is applied once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.contracts.changes import (
    COPIES,
    as_records,
    conform,
    find_differences,
    snapshot_columns,
    table_schema,
)
from headrace.contracts.expectations import with_checks
from headrace.errors import SnapshotKeysInvalidError
from headrace.model.declarations import AutoCdcFlow
from headrace.model.names import END, quoted_column
from headrace.model.snapshots import SnapshotMarker, Version, version_text, version_type
from headrace.plan.evaluate import bound
from headrace.plan.stages import PlannedFlow
from headrace.run.batch import QueryState, RecordFeed
from headrace.run.context import ReadSnapshots
from headrace.run.stop import PlanAgain
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sinks.target import BatchStamp
from headrace.sources.parts import FilePart
from headrace.sources.registry import kind_of
from headrace.state.snapshot_log import SnapshotLog, load_marker
from headrace.storage.layout import locate
from headrace.storage.location import Location
from headrace.storage.table_log import newest_version

_SHOWN_KEYS = 5
_LOOK_S = 5.0
"""Seconds between two looks for new snapshots in a continuous run."""


@dataclass(kw_only=True)
class SnapshotFeed:
    planned: PlannedFlow
    table: Location
    reading: ReadSnapshots
    report: Callable[[str, str], None]  # takes each version that is not applied, as text, and the reason
    _rows: dict[str, DataFrame] = field(default_factory=dict, init=False)
    """The rows of the snapshots that were found, by version: a function is called once for each."""
    _reported: set[Version] = field(default_factory=set, init=False)
    _log: SnapshotLog | None = field(default=None, init=False)

    def look(self, *, applied: bool) -> bool:
        with self.reading(self.planned) as reader:
            log = self._log = self._log or reader.log
            markers = log.load()
            if markers and not applied:
                return True
            self._rows.clear()
            last = markers[-1].version if markers else None
            found = reader.find(markers)
            for version in set(found.skipped) - self._reported:
                self._reported.add(version)
                assert last is not None
                reason = f"it is not greater than the last version, {version_text(last)}"
                self.report(version_text(version), reason)
            if found.next is None:
                return False
            marker = found.next.marker(last)
            if self._differs(marker):
                raise PlanAgain
            self._rows[version_text(marker.version)] = found.next.rows
            log.add(marker)
            return True

    @contextmanager
    def records(self, batch: DataFrame, stamp: BatchStamp, checkpoint: Location) -> Iterator[DataFrame]:
        session = batch.sparkSession
        (source,), (read,) = self.planned.sources, stamp.ranges
        (part,) = kind_of(read.kind).parts(read, source, session, checkpoint) or ()
        assert isinstance(part, FilePart)
        marker = load_marker(locate(part.path))
        rows = self._rows.get(version_text(marker.version))
        if rows is None:
            with self.reading(self.planned) as reader:
                rows = reader.read(marker)
        if rows is None:
            self.report(version_text(marker.version), "the source no longer has it")
            yield with_checks(batch.where("false"), self.planned.expectations)
            return
        flow = self._flow
        columns = snapshot_columns(table_schema(self.planned.schema), flow.history)
        held = session.read.format("delta").load(str(self.table))
        if flow.history is not None:
            held = held.where(F.col(END).isNull())
        snapshot = conform(bound(rows, session), columns)
        differences = find_differences(snapshot, conform(held, columns), flow.keys).persist()
        try:
            try:
                self._check_keys(differences, marker)
            except SnapshotKeysInvalidError:
                if not _is_replaced(marker):
                    raise
                reason = "its keys do not identify rows, and the table has a newer version"
                self.report(version_text(marker.version), reason)
                yield with_checks(batch.where("false"), self.planned.expectations)
                return
            version = F.lit(_literal(marker.version)).cast(version_type(marker.version))
            changes = as_records(differences.drop(COPIES), flow.keys, flow.history, version)
            yield with_checks(changes, self.planned.expectations)
        finally:
            differences.unpersist()

    @property
    def _flow(self) -> AutoCdcFlow:
        assert isinstance(self.planned.flow, AutoCdcFlow)
        return self.planned.flow

    def _differs(self, marker: SnapshotMarker) -> bool:
        """Whether a snapshot of files or of a function has columns or types that the plan does not have."""
        if "table" in marker.location:
            return False
        planned = {one["name"].casefold(): one["type"] for one in self.planned.schema["fields"]}
        return any(planned.get(one["name"].casefold()) != one["type"] for one in marker.schema["fields"])

    def _check_keys(self, differences: DataFrame, marker: SnapshotMarker) -> None:
        """Compute the differences, and refuse keys that do not identify a row."""
        flow = self._flow
        is_null = F.lit(False)
        for key in flow.keys:
            is_null = is_null | F.col(quoted_column(key)).isNull()
        counted = differences.agg(F.count_if(is_null), F.count_if(~is_null & (F.col(COPIES) > 1))).head()
        assert counted is not None
        nulls, twice = counted
        if not (nulls or twice):
            return
        wrong = differences.where(is_null | (F.col(COPIES) > 1))
        shown = wrong.select(COPIES, *map(quoted_column, flow.keys)).limit(_SHOWN_KEYS).collect()
        facts = [
            ", ".join(
                f"{key} = {'NULL' if one is None else one}"
                for key, one in zip(flow.keys, values, strict=True)
            )
            + f": {copies:,} rows"
            for copies, *values in shown
        ]
        version = version_text(marker.version)
        problems = []
        if twice:
            problems.append("1 key has several rows" if twice == 1 else f"{twice:,} keys have several rows")
        if nulls:
            problems.append("1 key has a NULL" if nulls == 1 else f"{nulls:,} keys have a NULL")
        raise SnapshotKeysInvalidError(
            f"flow {flow.name}: the snapshot {version} of {flow.snapshots.name if flow.snapshots else '?'} "
            f"cannot be applied by {', '.join(flow.keys)}: " + " and ".join(problems),
            location=flow.location,
            facts=[*facts, "the snapshot was not applied"],
            remedies=[
                "keep one row of each key in the snapshot, then run again:   headrace run"
                if twice
                else "correct the snapshot, then run again:   headrace run",
                "or declare keys that identify a row",
            ],
            params={"flow": flow.name, "snapshot": version, "twice": twice, "nulls": nulls},
        )


class SnapshotPoller:
    """Looks for new snapshots while a query runs. `feed`: the flow's snapshots; ``None`` if it reads no
    markers. `state`: the batches of the query. A source is asked again when its last version is in the table.
    `has_begun`: whether Spark has looked for a marker that was there before the query."""

    def __init__(self, feed: RecordFeed | None, state: QueryState, has_begun: Callable[[], bool]) -> None:
        self._feed = feed
        self._has_begun = has_begun
        self._state = state
        self._at = time.monotonic() + _LOOK_S
        self._waits_for: int | None = None

    def is_outdated(self) -> bool:
        """Look for new snapshots if it is time, and return whether the flow needs a new plan for them."""
        if self._feed is None or time.monotonic() < self._at or self._state.busy:
            return False
        if self._waits_for == self._state.last_batch or not self._has_begun():
            return False
        self._at = time.monotonic() + _LOOK_S
        try:
            self._waits_for = self._state.last_batch if self._feed.look(applied=True) else None
        except PlanAgain:
            return True
        return False


def _is_replaced(marker: SnapshotMarker) -> bool:
    """Whether the snapshot is a version of a table that has a newer one: a version cannot be corrected."""
    table = marker.location.get("table")
    return table is not None and newest_version(locate(table)) > marker.location["version"]


def _literal(version: Version) -> Version | str:
    """A version for Spark; a timestamp as text, since PySpark converts it with the zone of the machine."""
    if version_type(version) != "timestamp":
        return version
    text = version_text(version)
    return text if text[-6:-5] in ("+", "-") else f"{text}Z"


@dataclass(frozen=True, kw_only=True)
class OnceFeed:
    """The rows of a flow's batch query."""

    planned: PlannedFlow
    marker: Location
    build: Callable[[SparkSession], DataFrame]

    def look(self, *, applied: bool) -> bool:
        return self.marker.create_json({"headrace": 1})

    @contextmanager
    def records(self, batch: DataFrame, stamp: BatchStamp, checkpoint: Location) -> Iterator[DataFrame]:
        """The rows of the query, in place of the marker."""
        yield with_checks(self.build(batch.sparkSession), self.planned.expectations)
