"""How a run records the snapshots of a source: each once, in order, with the columns of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import SourceLocation
from headrace.model.declarations import AutoCdcFlow
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.model.snapshots import SnapshotMarker, StoredSnapshots
from headrace.plan.snapshots import FoundSnapshots, Snapshot
from headrace.run.batch import QueryState
from headrace.run.flow import FlowRunner
from headrace.run.snapshots import SnapshotFeed, SnapshotPoller
from headrace.run.stop import PlanAgain, StopSignal
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.location import Location

COLUMNS = ("id", "value")


def schema(columns: Sequence[str]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": "long"} for name in columns]}


@dataclass
class Source:
    """A source of snapshots, and the reader of a flow that applies them.

    Args:
        versions: The versions that it has, with their columns.
        skipped: Versions that it reports as out of order.
    """

    log: SnapshotLog
    versions: dict[int, Sequence[str]] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    asked: list[int | None] = field(default_factory=list)

    def find(self, markers: Sequence[SnapshotMarker]) -> FoundSnapshots:
        last = cast(int, markers[-1].version) if markers else None
        self.asked.append(last)
        version = min((one for one in self.versions if last is None or one > last), default=None)
        if version is None:
            return FoundSnapshots(skipped=self.skipped)
        frame = SimpleNamespace(schema=SimpleNamespace(jsonValue=lambda: schema(self.versions[version])))
        found = Snapshot(version=version, location={}, rows=cast(Any, frame))
        return FoundSnapshots(next=found, skipped=self.skipped)


Make = Callable[..., tuple[SnapshotFeed, Source, list[tuple[str, str]]]]


@pytest.fixture
def make(location: Location) -> Make:
    def build() -> tuple[SnapshotFeed, Source, list[tuple[str, str]]]:
        source, reported = Source(SnapshotLog(location / "snapshots")), []
        flow = AutoCdcFlow(
            name="t",
            target=TableName("default", "t"),
            query=PythonQuery(lambda: None, SourceLocation("t.py", 1)),
            keys=("id",),
            sequence_by="version",
            snapshots=StoredSnapshots("./given"),
        )

        @contextmanager
        def reading(_: Any) -> Iterator[Any]:
            yield source

        feed = SnapshotFeed(
            planned=cast(Any, SimpleNamespace(flow=flow, schema=schema(COLUMNS))),
            table=location / "t",
            reading=reading,
            report=lambda version, reason: reported.append((version, reason)),
        )
        return feed, source, reported

    return build


def recorded(source: Source) -> list[object]:
    return [one.version for one in source.log.load()]


def test_a_version_is_recorded_when_the_one_before_is_applied(make: Make) -> None:
    feed, source, _ = make()
    assert not feed.look(applied=True) and not feed.look(applied=False)
    source.versions = dict.fromkeys((1, 2, 5), COLUMNS)
    assert feed.look(applied=False) and recorded(source) == [1]
    assert feed.look(applied=False) and list(feed._rows) == ["1"], (
        "a second attempt has the rows of the first"
    )
    # The process has ended before the version was applied.
    again, others, _ = make()
    others.versions = source.versions
    for _ in range(2):
        assert again.look(applied=False) and recorded(source) == [1]
    assert others.asked == []
    assert again.look(applied=True) and feed.look(applied=True) and not feed.look(applied=True)
    assert recorded(source) == [1, 2, 5]
    assert [one.after for one in source.log.load()] == [None, 1, 2]


def test_a_continuous_run_records_a_version_when_the_one_before_is_applied(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.run.snapshots._LOOK_S", 0.0)
    feed, source, _ = make()
    source.versions = dict.fromkeys((1, 2, 3), COLUMNS)
    state, begun = QueryState(StopSignal()), []
    poller = SnapshotPoller(feed, state, lambda: bool(begun))
    assert not poller.is_outdated() and recorded(source) == [], "a marker from before may not be applied"
    begun.append(True)
    for last in (-1, 0, 1):
        state.last_batch, state.busy = last, True
        assert not poller.is_outdated() and len(recorded(source)) == last + 1
        state.busy = False
        for _ in range(2):
            assert not poller.is_outdated() and recorded(source) == list(range(1, last + 3))


def test_a_version_out_of_order_is_reported_once(make: Make) -> None:
    feed, source, reported = make()
    source.versions = {5: COLUMNS}
    for _ in range(3):
        feed.look(applied=True)
        source.skipped = (3,)
    assert reported == [("3", "it is not greater than the last version, 5")]


def test_a_snapshot_with_a_new_column_waits_for_a_new_plan(make: Make) -> None:
    feed, source, _ = make()
    source.versions = {1: ("ID",), 2: (*COLUMNS, "more"), 3: COLUMNS}
    assert feed.look(applied=True), "the versions before it are applied first"
    assert recorded(source) == [1]
    with pytest.raises(PlanAgain):
        feed.look(applied=True)
    assert recorded(source) == [1]


def test_a_flow_asks_its_source_again_until_it_has_no_more_snapshots() -> None:
    found, outcomes = [True, True, False], ["up to date", "up to date", "up to date"]
    runner = SimpleNamespace(_reruns_when_drained=False, progress=SimpleNamespace(batches=0))

    def run_query(*_: object) -> str:
        runner._reruns_when_drained = found.pop(0)
        runner.progress.batches += runner._reruns_when_drained
        return outcomes.pop(0)

    runner._run_query = run_query
    assert FlowRunner.run(cast(Any, runner), cast(Any, None), StopSignal()) == "up to date"
    found, outcomes = [False], ["plan again"]
    assert FlowRunner.run(cast(Any, runner), cast(Any, None), StopSignal()) == "plan again"
