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
from headrace.sources.kinesis.shards import StreamLook, join, roots_of
from headrace.state.facts import FlowFacts, History, Losses, NextPosition, ReadBefore, SourceFacts
from headrace.state.starting_positions import require_whole


@dataclass(frozen=True, kw_only=True)
class KinesisFacts(SourceFacts):
    """The stream of one source, as Kinesis describes it now."""

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
        """Where a flow that has read nothing starts. `latest` becomes a time here: the flow then reads all
        records that arrive from now on, also if its first batch comes later."""
        return self._start(self.starts_ms)

    def _start(self, since_ms: int | None) -> KinesisPosition:
        # Records from before the horizon may be gone. Later ones must be read before they expire.
        is_held = since_ms is not None and since_ms >= self.look.horizon_ms
        seen_ms = since_ms if is_held else self.look.now_ms
        start = ShardPosition(since_ms=since_ms, seen_ms=seen_ms, retention_ms=self.look.retention_ms)
        return KinesisPosition(self.stream, dict.fromkeys(roots_of(self.look.shards), start))

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
        """Skip records that the stream has lost. Their number is not known, so each gap counts as one."""
        assert isinstance(position, KinesisPosition)
        # With the children of shards that were read to their end.
        known = join(position, self.look.shards)
        lost = [number for number, one in known.items() if self._is_lost(position, number, one)]
        if not lost:
            return position, ()
        losses = tuple(
            {
                "source": self.source.index,
                "stream": self.stream,
                "shard": number,
                "from": known[number].number,
                "until": known[number].number + 1,
            }
            for number in lost
        )
        if (self.on_data_loss or flow.on_data_loss) == "refuse":
            raise _expired(flow, position.with_shards(known), losses)
        return position.with_shards({**known, **{n: self._after_loss(n, known[n]) for n in lost}}), losses

    def _is_lost(self, position: KinesisPosition, shard: int, one: ShardPosition) -> bool:
        """Whether records may have expired between a position of a shard and the first record that it has."""
        listed = self.look.shards.get(shard)
        if one.closed or listed is None:
            return not one.closed
        if shard not in position.shards and not any(parent in position.shards for parent in listed.parents):
            # Its parents were created and have expired since the flow was stopped.
            return True
        # A longer retention does not bring expired records back.
        retention_ms = min(one.retention_ms or self.look.retention_ms, self.look.retention_ms)
        return one.seen_ms is not None and one.seen_ms < self.look.now_ms - retention_ms

    def _after_loss(self, shard: int, one: ShardPosition) -> ShardPosition:
        look = self.look
        if one.seen_ms is not None and one.seen_ms >= look.horizon_ms and shard in look.shards:
            # Under the longer retention, no record behind the position expires.
            return replace(one, number=one.number + 1, retention_ms=look.retention_ms)
        # As at a first start, records from before the horizon may be gone. Kinesis lists a shard until its
        # last record has expired.
        return ShardPosition(
            number=one.number + 1,
            since_ms=look.horizon_ms,
            seen_ms=look.now_ms,
            retention_ms=look.retention_ms,
            closed=shard not in look.shards,
        )


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


def _expired(flow: FlowFacts, position: KinesisPosition, losses: Losses) -> errors.OffsetsExpiredError:
    read = [_read_until(one, position.shards[one["shard"]]) for one in losses]
    return errors.OffsetsExpiredError(
        f"flow {flow.flow}: unread records of the stream `{position.stream}` may have expired",
        location=flow.location,
        facts=(*read, "nothing was read or written"),
        remedies=(
            "continue after them, and record them as lost: write `on_data_loss: record` in headrace.yml, or "
            'on_data_loss="record" in read_kinesis, then run again:   headrace run',
            "keep records for longer from now on:   aws kinesis increase-stream-retention-period",
        ),
        params={"flow": flow.flow, "losses": list(losses)},
    )


def _read_until(loss: Mapping[str, Any], one: ShardPosition) -> str:
    read = (
        "nothing was read of it" if one.seen_ms is None else f"it was read up to {moment_text(one.seen_ms)}"
    )
    return f"{shard_id(loss['shard'])}: {read}"
