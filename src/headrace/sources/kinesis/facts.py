"""A stream as it is now, and how a flow can continue with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace import errors
from headrace.errors import SourceLocation
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position
from headrace.model.texts import moment_text
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition, shard_id
from headrace.sources.kinesis.shards import StreamLook
from headrace.state.facts import FlowFacts, History, Losses, NextPosition, ReadBefore, SourceFacts
from headrace.state.starting_positions import require_whole


@dataclass(frozen=True, kw_only=True)
class KinesisFacts(SourceFacts):
    """What Kinesis says of the stream of one source."""

    keys = ("id",)

    look: StreamLook
    starts_ms: int | None = None  # where a new flow starts; ``None`` for the first record that the stream has
    on_data_loss: OnDataLoss | None = None  # the policy of this source alone; ``None`` takes the flow's

    @property
    def stream(self) -> str:
        return str(self.source.identity["stream"])

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        known, now = then.source.identity, self.source.identity
        if known["id"] == now["id"]:
            return True
        if known["id"].partition("@")[0] != self.look.arn:
            return False
        raise stream_recreated(flow.flow, flow.location, self.stream, known["id"], now["id"])

    def first_position(self) -> KinesisPosition:
        """Where a flow starts that has read nothing. It is fixed here: a flow that starts at the end of the
        stream then reads all records that arrive from now on."""
        return self._start(self.starts_ms)

    def _start(self, since_ms: int | None) -> KinesisPosition:
        listed = self.look.shards
        # What arrived before the horizon was never promised. The rest must be read before it expires.
        is_held = since_ms is not None and since_ms >= self.look.horizon_ms
        seen_ms = since_ms if is_held else self.look.now_ms
        roots = (number for number, one in listed.items() if not any(p in listed for p in one.parents))
        start = ShardPosition(since_ms=since_ms, seen_ms=seen_ms)
        return KinesisPosition(self.stream, dict.fromkeys(roots, start))

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition:
        reads = self.last_reads(history)
        if reads:
            return NextPosition(KinesisPosition.from_json(reads[-1].until))
        require_whole(flow, history, f"the stream {self.stream}")
        # All records of a stream that was created again are new.
        before = any(read.source.identity["stream"] == self.stream for read in history.reads("kinesis"))
        return NextPosition(self._start(None if before else self.starts_ms))

    def check_position(
        self, flow: FlowFacts, history: History, position: Position, *, continues: bool
    ) -> tuple[Position, Losses]:
        """Skip records that the stream has lost. Nobody can tell how many they are: one number stands for
        each gap."""
        assert isinstance(position, KinesisPosition)
        found = dict(position.shards)
        losses: list[dict[str, Any]] = []
        for number, one in position.shards.items():
            if one.closed or not self._is_lost(number, one):
                continue
            losses.append(
                {
                    "source": self.source.index,
                    "stream": self.stream,
                    "shard": number,
                    "from": one.number,
                    "until": one.number + 1,
                }
            )
            found[number] = self._after_loss(number, one)
        if not losses:
            return position, ()
        if (self.on_data_loss or flow.on_data_loss) == "refuse":
            raise _expired(flow, position, losses)
        return position.with_shards(found), tuple(losses)

    def _is_lost(self, shard: int, one: ShardPosition) -> bool:
        if shard not in self.look.shards:
            return True
        return one.seen_ms is not None and one.seen_ms < self.look.horizon_ms

    def _after_loss(self, shard: int, one: ShardPosition) -> ShardPosition:
        horizon = self.look.horizon_ms
        moved = ShardPosition(number=one.number + 1, since_ms=horizon, seen_ms=horizon)
        # Kinesis lists a shard until its last record has expired.
        return moved if shard in self.look.shards else replace(moved, closed=True)


def stream_recreated(
    flow: str, location: SourceLocation, stream: str, was: str, now: str | None
) -> errors.StreamRecreatedError:
    return errors.StreamRecreatedError(
        f"flow {flow}: the stream `{stream}` was deleted and created again since its last batch",
        location=location,
        facts=(
            "records of the old stream that were not read are lost; no record of the new one was committed",
        ),
        remedies=(
            f"keep the rows and continue with the new stream:   headrace reset {flow}",
            "or correct the stream in the flow's query, or the endpoint if it points to another server",
        ),
        params={"flow": flow, "stream": stream, "was": was, "is": now},
    )


def _expired(
    flow: FlowFacts, position: KinesisPosition, losses: list[dict[str, Any]]
) -> errors.OffsetsExpiredError:
    read = [_read_until(one, position.shards[one["shard"]]) for one in losses]
    return errors.OffsetsExpiredError(
        f"flow {flow.flow}: records of the stream `{position.stream}` may have expired that the flow has not "
        "read yet",
        location=flow.location,
        facts=(*read, "nothing was read or written"),
        remedies=(
            "continue after them, and record them as lost: write `on_data_loss: record` in headrace.yml, or "
            'on_data_loss="record" in read_kinesis, then run again:   headrace run',
            "keep records for longer from now on:   aws kinesis increase-stream-retention-period",
        ),
        params={"flow": flow.flow, "losses": losses},
    )


def _read_until(loss: Mapping[str, Any], one: ShardPosition) -> str:
    read = (
        "nothing of it was read" if one.seen_ms is None else f"it was read up to {moment_text(one.seen_ms)}"
    )
    return f"{shard_id(loss['shard'])}: {read}"
