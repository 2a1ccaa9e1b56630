"""The steps of a batch, in their order: gate, ranges, split, write, commit, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, Self, cast

import pytest

from headrace.errors import CheckpointBehindTableError, FileChangedError, LeaseLostError
from headrace.model.counts import BatchCounts
from headrace.model.declarations import ExpectationCount
from headrace.model.ranges import SourceRange
from headrace.run.batch import BatchFunction, QueryState, check_gate
from headrace.run.limits import Execution
from headrace.run.reporting import BatchSteps
from headrace.run.stop import StopRequested, StopSignal
from headrace.sinks.target import BatchStamp, Committed, SplitRows

FAILED = ExpectationCount(name="id", dataset="sales", action="quarantine", passed=3, failed=2)

Held = Literal["nothing", "the batch", "a later batch"]


@dataclass
class Steps:
    """Stands for everything that a batch function works with, and notes what it is asked for.

    Args:
        held: What the target holds.
        fails: The step that raises `error`.
    """

    held: Held = "nothing"
    fails: str = ""
    error: Exception = field(default_factory=lambda: RuntimeError("no"))
    calls: list[str] = field(default_factory=list)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise self.error

    # The lease.
    def check_lease(self, flow: str) -> None:
        self._call("lease")

    # The ranges.
    def load(self, number: int) -> BatchStamp:
        self._call("load")
        return BatchStamp(pipeline="shop", flow="sales", checkpoint="c1", batch=number, ranges=())

    def finish(self, ranges: tuple[SourceRange, ...]) -> tuple[SourceRange, ...]:
        self._call("finish")
        return ranges

    def check_replay(self, stamp: BatchStamp) -> None:
        self._call("check replay")

    def check_same_rows(self, batch: int) -> None:
        self._call("check same rows")

    def committed(self) -> None:
        self._call("committed")

    @contextmanager
    def explained(self) -> Iterator[None]:
        yield

    # The target, and the writer of a batch.
    def trial(self, stamp: BatchStamp) -> None:
        return None

    def begin(self, session: Any, stamp: BatchStamp) -> Self | None:
        self._call("begin")
        if self.held == "a later batch":
            raise CheckpointBehindTableError("older")
        return None if self.held == "the batch" else self

    def write(self, rows: SplitRows) -> None:
        self._call("write")
        self.rows = rows

    def commit(self, ranges: tuple[SourceRange, ...]) -> Committed:
        self._call("commit")
        return Committed(version=1, counts=self.rows.counts(3))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("close")

    # The reporter.
    def began(self, number: int) -> None:
        self._call("began")

    def ended(self, stamp: BatchStamp, committed: Committed | None, duration_s: float) -> None:
        self._call("replayed" if committed is None else "reported")


class Rows:
    """Stands for a batch's rows; notes whether they were computed outside a commit."""

    sparkSession = "session"
    computed = False

    def coalesce(self, number: int) -> Rows:
        return self

    @property
    def write(self) -> Any:
        writer = SimpleNamespace(save=lambda: setattr(self, "computed", True))
        writer.format = writer.mode = lambda _: writer
        return writer


@dataclass(frozen=True)
class NothingFound:
    """A search that finds no record."""

    try_rows: Any = None

    def narrow(self, failure: Exception, *_: Any) -> Any:
        raise failure


class AcceptAll:
    """A split that gives the target every row."""

    def begin(self, rows: Any, stamp: Any, raising: Any = (), **_: Any) -> SplitRows:
        return SplitRows(accepted=rows)


def run(
    steps: Steps,
    *,
    stateful: bool = False,
    rows: Rows | None = None,
    split: Any = None,
    accepted: Callable[[], object] = lambda: None,
    numbers: tuple[int, ...] = (4,),
) -> QueryState:
    state = QueryState(StopSignal())
    planned = cast(Any, SimpleNamespace(flow=SimpleNamespace(name="sales"), stateful=stateful))
    function = BatchFunction(
        planned=planned,
        lease=cast(Any, SimpleNamespace(check=steps.check_lease)),
        ranges=cast(Any, steps),
        split=split or AcceptAll(),
        search=cast(Any, NothingFound()),
        headers=cast(Any, SimpleNamespace(by_name=lambda rows, stamp: (rows, False))),
        target=cast(Any, steps),
        execution=Execution(planned, 2),
        reporter=cast(Any, steps),
        committed=lambda: None,
        accepted=accepted,
        state=state,
        steps=BatchSteps(dict, dict),
    )
    try:
        for number in numbers:
            function(cast(Any, rows or Rows()), number)
    except Exception as error:
        assert state.failure is error
    return state


WRITTEN = ["lease", "load", "began", "begin", "write", "lease", "finish", "commit", "close"]


def test_the_steps_of_a_batch() -> None:
    steps = Steps()
    state = run(steps)
    assert steps.calls == [*WRITTEN, "committed", "reported"]
    assert (state.busy, state.failure, state.last_batch) == (False, None, 4)
    assert state.reading is not None and state.reading.batch == 4


def test_a_query_is_recorded_once_when_spark_has_planned_its_first_batch() -> None:
    steps = Steps()
    run(steps, accepted=lambda: steps.calls.append("recorded"), numbers=(4, 5))
    first = [*WRITTEN[:2], "recorded", *WRITTEN[2:], "committed", "reported"]
    assert steps.calls == [*first, *WRITTEN, "committed", "reported"]


def test_a_replay_writes_nothing() -> None:
    steps, rows = Steps(held="the batch"), Rows()
    run(steps, rows=rows)
    assert steps.calls == ["lease", "load", "began", "begin", "committed", "check replay", "replayed"]
    assert not rows.computed


def test_a_replay_of_a_query_with_state_is_computed_again_from_the_same_rows() -> None:
    steps, rows = Steps(held="the batch"), Rows()
    run(steps, stateful=True, rows=rows)
    assert steps.calls[-3:] == ["check replay", "check same rows", "replayed"]
    assert rows.computed


@pytest.mark.parametrize(
    ("fails", "error"), [("finish", FileChangedError("changed")), ("write", RuntimeError("bad record"))]
)
def test_nothing_is_committed_after_a_step_that_fails(fails: str, error: Exception) -> None:
    steps = Steps(fails=fails, error=error)
    state = run(steps)
    assert "commit" not in steps.calls and steps.calls[-1] == "close"
    assert (state.busy, state.failure, state.last_batch) == (False, error, -1)


def test_a_later_batch_in_the_target_is_refused_before_anything_is_written() -> None:
    steps = Steps(held="a later batch")
    state = run(steps)
    assert isinstance(state.failure, CheckpointBehindTableError)
    assert "write" not in steps.calls


def test_the_gate_stops_before_anything_is_read() -> None:
    stop = StopSignal()
    stop.request()
    with pytest.raises(StopRequested):
        check_gate("sales", stop, cast(Any, None))
    steps = Steps(fails="lease", error=LeaseLostError("lost"))
    assert isinstance(run(steps).failure, LeaseLostError)
    assert steps.calls == ["lease"]


@dataclass
class Quarantine:
    """A split with a target of its own for rejected rows, which counts them by expectation."""

    steps: Steps

    def begin(self, rows: Any, stamp: BatchStamp, **_: Any) -> SplitRows:
        self.steps.calls.append(f"quarantine {stamp.checkpoint} {stamp.batch}")

        def counts(accepted: int) -> BatchCounts:
            return BatchCounts(input=accepted + 2, accepted=accepted, quarantined=2, expectations=(FAILED,))

        return SplitRows(
            accepted=rows, counts=counts, is_kept=True, release=lambda: self.steps.calls.append("release")
        )


def test_a_split_commits_rejected_rows_before_the_target_commits_and_counts_them() -> None:
    steps = Steps()
    run(steps, split=Quarantine(steps))
    order = ["begin", "quarantine c1 4", "write", "lease", "finish", "commit", "release", "close"]
    assert steps.calls[3:-2] == order
    assert steps.rows.counts(3) == BatchCounts(input=5, accepted=3, quarantined=2, expectations=(FAILED,))


def test_a_batch_that_the_target_holds_is_not_split_again() -> None:
    steps = Steps(held="the batch")
    run(steps, split=Quarantine(steps))
    assert not any(call.startswith("quarantine") for call in steps.calls)


def test_rows_that_a_writer_reads_twice_are_kept_once_and_released() -> None:
    class Frame:
        persisted = released = 0

        def persist(self) -> Frame:
            self.persisted += 1
            return self

        def unpersist(self) -> None:
            self.released += 1

    frame = Frame()
    with SplitRows(accepted=cast(Any, frame)) as rows:
        assert rows.keep() is rows.keep() is frame
    assert (frame.persisted, frame.released) == (1, 1)
