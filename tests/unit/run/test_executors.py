"""The number of executors follows the backlog: decisions, what flows have to do, and what is requested."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, BatchStarted, ExecutorsRequested, FlowRetrying
from headrace.model.names import TableName
from headrace.model.project import ExecutorLimits
from headrace.model.ranges import SourceRange
from headrace.run.executors import Demand, ExecutorScaling, FlowLoads, Load, SparkExecutors, decide
from headrace.sources.kafka.position import KafkaOffsets
from waiting import until

LIMITS = ExecutorLimits(least=1, most=8, backlog_s=30, idle_s=60)
ORDERS = TableName("default", "orders")


@dataclass
class Simulation:
    """A run whose cluster starts executors after some seconds; looks once a second."""

    starts_in: int = 5
    room: int = 8
    demand: Demand = field(default_factory=lambda: Demand(1))
    now: float = 0.0
    steps: list[int] = field(default_factory=list)
    _wanted: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 1)])

    @property
    def executors(self) -> int:
        return min(self.room, [wanted for at, wanted in self._wanted if at <= self.now][-1])

    def run(self, seconds: int, work: float) -> None:
        """`work`: the seconds that one executor would need for the backlog."""
        for _ in range(seconds):
            self.now += 1
            load = Load(work / self.executors, "work")
            self.demand, reason = decide(LIMITS, self.demand, [load], self.executors, self.now)
            if reason is not None:
                self.steps.append(self.demand.wanted)
                self._wanted.append((self.now + self.starts_in, self.demand.wanted))


def test_a_backlog_gets_executors_until_it_fits_the_limit_and_idleness_gives_them_back() -> None:
    run = Simulation()
    run.run(600, work=100.0)
    assert run.steps == [2, 3, 4] and 100 / run.executors < LIMITS.backlog_s
    run.run(600, work=0.0)
    assert run.steps == [2, 3, 4, 2, 1]


def test_any_constant_load_comes_to_rest() -> None:
    for work in range(0, 400, 7):
        run = Simulation()
        run.run(1200, work=float(work))
        settled = len(run.steps)
        run.run(3600, work=float(work))
        assert len(run.steps) == settled, work


def test_a_short_peak_and_a_short_pause_change_nothing() -> None:
    run = Simulation()
    for _ in range(20):
        run.run(14, work=1000.0)
        run.run(59, work=0.0)
    assert run.steps == []


def test_a_cluster_without_room_is_asked_once() -> None:
    run = Simulation(room=1)
    run.run(600, work=1000.0)
    assert run.steps == [2]
    run.room = 8
    run.run(10, work=1000.0)
    assert run.steps == [2, 4]


@pytest.mark.parametrize(("now", "wanted"), [(14.0, 2), (15.0, 4)])
def test_the_reason_says_what_takes_so_long(now: float, wanted: int) -> None:
    demand = Demand(2, high_since=0.0)
    load = Load(90.0, "flow orders: 9,000 records at 100 records/s take 90 s")
    new, reason = decide(LIMITS, demand, [Load(1.0, "other"), load], 2, now)
    assert new.wanted == wanted
    if wanted > 2:
        assert reason == "flow orders: 9,000 records at 100 records/s take 90 s; the limit is 30 s"


def committed(
    records: int, *, lag: int | None, duration_s: float = 2.0, lag_bytes: int | None = None
) -> Event:
    offsets = [KafkaOffsets.from_json({"orders": {"0": end}}) for end in (0, records)]
    read = SourceRange(index=0, kind="kafka", identity={}, start=offsets[0], until=offsets[1])
    return BatchCommitted(
        update="u",
        flow="orders",
        dataset=ORDERS,
        batch=0,
        version=1,
        rows=1,
        duration_s=duration_s,
        ranges=(read,),
        lag=lag,
        lag_bytes=lag_bytes,
    )


def test_a_load_is_the_time_for_the_backlog_or_for_a_batch() -> None:
    loads = FlowLoads()
    started = BatchStarted(update="u", flow="orders", dataset=ORDERS, batch=0)
    assert loads.loads(0.0) == []
    loads.observe(started, 0.0)
    assert [one.seconds for one in loads.loads(7.0)] == [7.0]
    # A query that keeps one row of 1,000 records has still read 1,000.
    loads.observe(committed(1000, lag=25_000), 8.0)
    (load,) = loads.loads(9.0)
    assert load.seconds == 50.0
    assert load.reason == "flow orders: 25,000 records at 500 records/s take 50 s, a batch takes 2.0 s"
    loads.observe(committed(1000, lag=None), 10.0)
    assert loads.loads(10.0)[0].seconds == 50.0, "a lag that was not measured is no lag of 0"
    loads.observe(committed(1000, lag=0), 12.0)
    assert loads.loads(13.0)[0].seconds == 2.0
    assert loads.loads(18.0) == [Load(0.0, "flow orders has nothing to do")]
    loads.observe(started, 19.0)
    assert loads.loads(20.0)[0].seconds == 2.0


def test_a_source_without_a_count_of_records_is_behind_while_bytes_are_left() -> None:
    loads = FlowLoads()
    loads.observe(committed(10, lag=None, lag_bytes=4096), 10.0)
    loads.observe(committed(10, lag=None, lag_bytes=9), 30.0)
    assert loads.loads(50.0)[0].seconds == 40.0
    loads.observe(committed(10, lag=None, lag_bytes=0), 51.0)
    assert loads.loads(52.0)[0].seconds == 2.0


def test_a_flow_that_is_retried_needs_no_executors() -> None:
    loads = FlowLoads()
    loads.observe(committed(10, lag=1000), 10.0)
    error = {"code": "X", "summary": "x"}
    loads.observe(
        FlowRetrying(update="u", flow="orders", dataset=ORDERS, error=error, attempt=1, wait_s=1.0), 11.0
    )
    assert loads.loads(12.0) == []


class FakeExecutors:
    def __init__(self) -> None:
        self.running, self.wanted, self.failures = 5, [0], 0

    def look(self) -> int:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the gateway does not answer")
        return self.running

    def request(self, total: int) -> None:
        self.wanted.append(total)
        self.running = max(self.running, total)

    def give_back(self, most: int) -> None:
        # One of them has work.
        self.running -= min(most, 1)


def test_a_run_requests_executors_reports_each_decision_and_gives_back_what_it_can() -> None:
    executors, loads, events = FakeExecutors(), FlowLoads(), list[Event]()
    limits = replace(LIMITS, backlog_s=0.2, idle_s=0.1)
    loads.observe(committed(1000, lag=25_000))
    with ExecutorScaling(limits, executors, loads, events.append, "u", look_s=0.01):
        until(lambda: executors.running == 1, "those above `min` are given back one by one")
        executors.failures = 3
        until(lambda: executors.wanted[-1] == 8, "a backlog asks for all")
        loads.observe(committed(1000, lag=0, duration_s=0.01))
        until(lambda: executors.running == 1, "without a backlog, they are given back")
    numbers = [(one.before, one.after) for one in events if isinstance(one, ExecutorsRequested)]
    assert numbers[0] == (5, 1)
    assert numbers[1:] == [(1, 2), (2, 4), (4, 8), (8, 4), (4, 2), (2, 1)]
    message = events[1].fill(events[1].message)
    assert message.startswith("The run wants 2 executors instead of 1: flow orders: 25,000 records at")


def test_an_executor_is_given_back_if_it_was_idle_at_two_looks() -> None:
    tasks, ended = {"driver": 0, "1": 1, "2": 0, "10": 0}, list[str]()

    class Store:
        def executorList(self, active: bool) -> Any:
            one = [
                SimpleNamespace(id=lambda name=name: name, activeTasks=lambda n=n: n, rddBlocks=lambda: 0)
                for name, n in tasks.items()
            ]
            return SimpleNamespace(size=lambda: len(one), apply=one.__getitem__)

    kill = SimpleNamespace(killExecutors=lambda names, *_: ended.extend(names))
    context = SimpleNamespace(statusStore=Store, schedulerBackend=lambda: kill)
    jvm = SimpleNamespace(PythonUtils=SimpleNamespace(toSeq=list))
    spark: Any = SimpleNamespace(
        sparkContext=SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(sc=lambda: context))
    )
    executors = SparkExecutors(spark)
    assert executors.look() == 3
    executors.give_back(3)
    assert ended == [], "one look does not tell whether a batch is over"
    tasks["2"] = 1
    executors.look()
    executors.give_back(3)
    assert ended == ["10"]
    tasks["1"] = tasks["2"] = 0
    del tasks["10"]
    assert [executors.look() for _ in range(2)] == [2, 2]
    executors.give_back(1)
    assert ended == ["10", "2"], "the newest first"
