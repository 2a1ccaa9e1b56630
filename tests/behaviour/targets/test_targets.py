"""What every target promises: each batch once, none skipped, and nothing visible before its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from behaviour.targets.conftest import FOLLOWED, FlowHarness, Harness, SinkHarness
from headrace.errors import BatchFencedError, CheckpointBehindTableError, TableBehindCheckpointError
from headrace.state.facts import Open

if TYPE_CHECKING:
    pass

ONE, TWO = [(1, "a"), (2, "b")], [(3, "c")]
NEW = "headrace-new"


def test_a_batch_is_one_commit(harness: Harness) -> None:
    before = harness.commits
    committed = harness.write(0, *ONE)
    assert committed is not None
    assert (committed.counts.input, committed.counts.accepted) == (2, 2)
    assert harness.commits == before + 1 == committed.version + 1
    assert harness.rows == sorted(ONE)
    again = harness.write(1, *TWO)
    assert again is not None and again.version == committed.version + 1
    assert harness.rows == harness.visible(ONE, TWO)


def test_a_replay_writes_nothing(harness: Harness) -> None:
    harness.write(0, *ONE)
    before = harness.commits
    assert harness.write(0, *ONE) is None
    assert (harness.commits, harness.rows) == (before, sorted(ONE))


def test_rows_are_seen_by_the_commit_and_not_before(harness: Harness) -> None:
    writer = harness.begin(0)
    assert writer is not None
    before = harness.commits
    with writer:
        writer.write(harness.split(*ONE))
        assert (harness.commits, harness.rows) == (before, [])
        writer.commit()
    assert harness.rows == sorted(ONE)


def test_a_crash_before_the_commit_leaves_nothing_and_the_batch_is_written_again(harness: Harness) -> None:
    writer, before = harness.begin(0), harness.commits
    assert writer is not None
    with pytest.raises(RuntimeError, match="a crash"), writer:
        writer.write(harness.split(*ONE))
        raise RuntimeError("a crash")
    assert (harness.commits, harness.rows) == (before, [])
    assert harness.write(0, *ONE) is not None
    assert harness.rows == sorted(ONE)


def test_an_empty_batch_leaves_its_marker(harness: Harness) -> None:
    committed = harness.write(0)
    assert committed is not None and (committed.counts.input, committed.counts.accepted) == (0, 0)
    assert harness.rows == []
    assert harness.write(0) is None
    assert harness.write(1, *ONE) is not None


def test_a_commit_names_its_flow_and_what_it_read(harness: Harness) -> None:
    committed = harness.write(0, *ONE)
    assert committed is not None
    metadata = harness.metadata(committed.version)
    assert (metadata["headrace"], metadata["pipeline"]) == (1, "shop")
    assert metadata.keys() & {"sources", "inputs"}


# Targets that flows with a checkpoint feed.


def test_the_counts_of_a_commit_are_the_rows_of_the_batch(flow: FlowHarness) -> None:
    committed = flow.write(0, *ONE, quarantined=3, dropped=1)
    assert committed is not None
    counts = committed.counts
    assert (counts.input, counts.accepted, counts.quarantined, counts.dropped) == (6, 2, 3, 1)
    assert [(one.passed, one.failed) for one in counts.expectations] == [(3, 3)]
    metadata = flow.metadata(committed.version)
    assert {name: metadata[name] for name in committed.counts.to_json()} == committed.counts.to_json()
    assert len(flow.rows) == metadata["accepted"]


def test_a_gap_and_an_older_batch_are_refused(flow: FlowHarness) -> None:
    flow.write(0, *ONE)
    flow.write(1, *TWO)
    with pytest.raises(TableBehindCheckpointError):
        flow.write(3, (9, "z"))
    with pytest.raises(CheckpointBehindTableError):
        flow.write(0, (9, "z"))
    assert flow.rows == flow.visible(ONE, TWO)


def test_of_two_drivers_only_one_commits(flow: FlowHarness) -> None:
    ours, theirs = flow.begin(0), flow.begin(0)
    assert ours is not None and theirs is not None
    with ours, theirs:
        ours.write(flow.split(*ONE))
        theirs.write(flow.split(*TWO))
        theirs.commit()
        with pytest.raises(BatchFencedError) as caught:
            ours.commit()
    assert caught.value.params == {"flow": "sales", "checkpoint": flow.checkpoint, "batch": 0}
    assert flow.rows == TWO


def test_the_state_names_the_checkpoint_and_its_last_batch(flow: FlowHarness) -> None:
    assert flow.state.checkpoints == {}
    flow.open(flow.checkpoint, Open(reason="first"))
    flow.write(0, *ONE)
    state = flow.state
    assert state.checkpoints == {"sales": flow.checkpoint}
    assert state.transactions == {flow.checkpoint: 0}
    assert state.version == flow.commits - 1


def test_a_sink_keeps_its_state_whole(sink: SinkHarness) -> None:
    sink.open(sink.checkpoint, Open(reason="first"))
    sink.write(0, *ONE)
    sink.open(NEW, Open(reason="full-refresh", fences=sink.checkpoint), replaces=sink.checkpoint)
    state = sink.sink.state()
    assert state is not None and state.replaced == {"sales": (sink.checkpoint, -1)}
    assert state.follows == FOLLOWED
