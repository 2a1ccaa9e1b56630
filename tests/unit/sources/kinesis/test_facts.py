"""Where a flow continues with a stream that has lost records, or has other shards than before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from headrace.errors import OffsetsExpiredError, SourceLocation
from headrace.sources.kinesis.facts import KinesisFacts
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition
from headrace.sources.kinesis.shards import ListedShard, StreamLook
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import FlowFacts, History

HOUR = 3_600_000
NOW = 1_000 * HOUR


def check(
    position: Mapping[int, ShardPosition],
    shards: Mapping[int, tuple[int, ...]],
    *,
    policy: Literal["refuse", "record"] = "record",
    retention_h: int = 24,
) -> tuple[Mapping[int, ShardPosition], list[int]]:
    """The positions with which a flow continues, and the shards of which it records a loss.

    `shards`: the shards that Kinesis lists, each with its parents."""
    look = StreamLook(
        arn="arn",
        created_ms=0,
        retention_ms=retention_h * HOUR,
        now_ms=NOW,
        shards={number: ListedShard(number, parents) for number, parents in shards.items()},
    )
    identity: Any = {"stream": "clicks", "id": look.id}
    facts = KinesisFacts(
        source=SourceIdentity(kind="kinesis", index=0, identity=identity), look=look, on_data_loss=policy
    )
    flow = FlowFacts(
        flow="clicks",
        dataset="clicks",
        location=SourceLocation("clicks.py", 1),
        folder="checkpoints",
        declared_flows=frozenset(["clicks"]),
        sources=(facts,),
        stateful=False,
    )
    found, losses = facts.check_position(flow, History(), KinesisPosition("clicks", position), continues=True)
    assert isinstance(found, KinesisPosition)
    return found.shards, [loss["shard"] for loss in losses]


def seen(hours_ago: int, **more: Any) -> ShardPosition:
    return ShardPosition(
        sequence="7", number=8, seen_ms=NOW - hours_ago * HOUR, retention_ms=24 * HOUR, **more
    )


def test_a_flow_continues_where_it_ended() -> None:
    position = {0: seen(23), 1: seen(1)}
    assert check(position, {0: (), 1: ()}) == (position, [])


def test_a_loss_leaves_out_one_number_and_continues_at_the_horizon() -> None:
    found, lost = check({0: seen(25), 1: seen(1)}, {0: (), 1: ()})
    assert lost == [0] and found[1] == seen(1)
    assert (found[0].sequence, found[0].number, found[0].since_ms) == (None, 9, NOW - 24 * HOUR)
    # What is left may expire from now on: the planner does not take it for lost again.
    assert found[0].seen_ms == NOW


def test_children_of_a_shard_that_ended_before_the_retention_are_lost_too() -> None:
    """Else the planner would stop the flow at their expired records, again at each start."""
    found, lost = check({0: seen(30, closed=True)}, {0: (), 1: (0,), 2: (0,)})
    assert lost == [1, 2]
    assert all(found[shard].since_ms == NOW - 24 * HOUR for shard in (1, 2))


def test_a_shard_whose_parents_came_and_expired_while_the_flow_was_stopped_is_a_loss() -> None:
    """The records of its parents were never read, and nothing but its parents' number is left of them."""
    ended = {0: seen(30, closed=True)}
    assert check(ended, {2: (1,)})[1] == [2]
    with pytest.raises(OffsetsExpiredError, match="may have expired"):
        check(ended, {2: (1,)}, policy="refuse")


def test_the_children_of_a_shard_that_was_read_and_has_expired_are_no_loss() -> None:
    assert check({0: seen(23, closed=True)}, {1: (0,), 2: (0,)})[1] == []
    assert check({0: seen(30, closed=True), 1: seen(1)}, {1: (0,)})[1] == []


def test_a_retention_that_was_raised_after_records_expired_does_not_hide_their_loss() -> None:
    with pytest.raises(OffsetsExpiredError):
        check({0: seen(30)}, {0: ()}, policy="refuse", retention_h=168)


def test_a_recorded_loss_leaves_out_nothing_that_a_longer_retention_has_kept() -> None:
    found, lost = check({0: seen(30)}, {0: ()}, retention_h=168)
    assert lost == [0]
    assert (found[0].sequence, found[0].number) == ("7", 9)
    # It is not a loss at the next start, too.
    assert check(found, {0: ()}, retention_h=168) == (found, [])
