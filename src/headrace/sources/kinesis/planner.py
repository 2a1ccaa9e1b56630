"""Plans the batches of a stream. Kinesis does not tell where a shard ends, so a plan reads the records.

Spark calls it in a Python process beside the driver, which lives as long as the query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from headrace import errors
from headrace.model.texts import moment_text
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition, shard_id
from headrace.sources.kinesis.shards import (
    ListedShard,
    Page,
    ShardPages,
    join,
    list_shards,
    look_at,
    roots_of,
)
from headrace.sources.kinesis.spans import Row, rows_of

_PLAN_S: Final = 10.0
"""How long a plan reads ahead; each shard gives at least one page."""
_PLAN_BYTES: Final = 64 << 20
"""A plan ends with the page that reaches this number of bytes."""
_IDLE_S: Final = 1.0
"""The pause between two plans of a stream without new records."""
_RENEW_MS: Final = 3_600_000
"""How old the time up to which a quiet shard was read may become in the table: then a batch without rows
writes it again. The next start compares it with the retention."""
_NEAR_MS: Final = 43_200_000
"""How old unread records may become before each plan asks for the retention: half of the shortest one."""
_MARGIN_MS: Final = 5_000
"""Arrival times are approximate, and the server's clock has seconds."""
_THREADS: Final = 16


class Keeps(Protocol):
    """Keeps the rows of planned ranges until their batch has read them."""

    def put(self, shard: int, start: ShardPosition, end: ShardPosition, rows: Sequence[Row]) -> None: ...


@dataclass
class _Reading:
    """How far a shard was read ahead."""

    pages: ShardPages
    at: ShardPosition


@dataclass
class _Planned:
    """What a plan has read of a shard."""

    end: ShardPosition
    rows: list[Row] = field(default_factory=list)


class Planner:
    def __init__(self, connection: StreamConnection, keeps: Keeps) -> None:
        self._connection = connection
        self._keeps = keeps
        self._client: Any = connection.open()
        self._readings: dict[int, _Reading] = {}
        self._listed: Mapping[int, ListedShard] | None = None
        self._until_ms: int | None = None  # where a triggered run ends
        self._done: set[int] = set()
        self._idle_until_s = 0.0
        look = look_at(self._client, connection, lists=False)
        self._retention_ms, self._looked_ms = look.retention_ms, look.now_ms
        self._horizon_ms = 0  # the time before which records may have been deleted since this planner began
        self._clock_ms = look.now_ms - time.time() * 1000

    @property
    def _now_ms(self) -> int:
        """The time of the server."""
        return int(time.time() * 1000 + self._clock_ms)

    def roots(self) -> list[int]:
        """The shards whose parents Kinesis no longer has: a new flow starts with them."""
        return roots_of(list_shards(self._client, self._connection))

    def end_now(self) -> None:
        """Plan no records that arrive from now on, as far as arrival times tell."""
        self._until_ms = self._now_ms
        self._done = set()

    def plan(self, start: KinesisPosition, limit: int | None) -> KinesisPosition:
        """The end of the next batch; the start itself if there is nothing to read."""
        if (pause := self._idle_until_s - time.monotonic()) > 0 and self._until_ms is None:
            time.sleep(pause)
        joined = join(start, self._list(start))
        self._check_expired(joined)
        try:
            planned = self._read(joined, limit)
        except Exception:
            # Other threads may have read their shards.
            self._readings.clear()
            raise
        ends = {**joined, **{shard: one.end for shard, one in planned.items()}}
        before = {shard: start.start_of(shard) for shard in ends}
        if not any(end.has_moved(before[shard]) for shard, end in ends.items()):
            self._idle_until_s = time.monotonic() + _IDLE_S
            if not any(_is_stale(joined[shard], end) for shard, end in ends.items()):
                return start
        for shard, one in planned.items():
            if one.rows:
                self._keeps.put(shard, joined[shard], one.end, one.rows)
        return start.with_shards(ends)

    def _list(self, start: KinesisPosition) -> Mapping[int, ListedShard]:
        """The shards of the stream: they change only when one of them is closed."""
        listed = self._listed
        if listed is None or self._awaits_children(start, listed):
            listed = self._listed = list_shards(self._client, self._connection)
        return listed

    def _awaits_children(self, start: KinesisPosition, listed: Mapping[int, ListedShard]) -> bool:
        parents = {parent for shard in listed.values() for parent in shard.parents}
        return any(one.closed and n in listed and n not in parents for n, one in start.shards.items())

    def _check_expired(self, shards: Mapping[int, ShardPosition]) -> None:
        """Stop the flow if Kinesis may have deleted unread records. Its next start says which."""
        current = {number: self._current(number, one) for number, one in shards.items()}
        seen = {n: one.seen_ms for n, one in current.items() if not one.closed and one.seen_ms is not None}
        now_ms = self._now_ms
        # A retention that was raised does not bring expired records back.
        self._horizon_ms = max(self._horizon_ms, now_ms - self._retention_ms)
        if now_ms > min([self._looked_ms + _RENEW_MS, *(one + _NEAR_MS for one in seen.values())]):
            look = look_at(self._client, self._connection, lists=False)
            self._retention_ms, self._looked_ms = look.retention_ms, now_ms
            self._horizon_ms = max(self._horizon_ms, now_ms - self._retention_ms)
        for number, seen_ms in seen.items():
            if seen_ms < self._horizon_ms:
                raise errors.FlowInterruptedError(
                    f"records of the stream `{self._connection.stream}` have expired before they were read",
                    facts=(
                        f"{shard_id(number)}: it was read up to {moment_text(seen_ms)}; records from before "
                        f"{moment_text(self._horizon_ms)} may have been deleted",
                    ),
                    params={"stream": self._connection.stream, "shard": number},
                )

    def _current(self, shard: int, position: ShardPosition) -> ShardPosition:
        """A position with the newest time up to which the shard was read."""
        reading = self._readings.get(shard)
        return reading.at if reading is not None and not reading.at.has_moved(position) else position

    def _read(self, shards: Mapping[int, ShardPosition], limit: int | None) -> dict[int, _Planned]:
        found = {
            number: _Planned(self._current(number, one))
            for number, one in shards.items()
            if not one.closed and number not in self._done
        }
        # The shards that were asked least recently come first.
        waiting = sorted(found, key=lambda number: found[number].end.seen_ms or 0)
        left, size, moved = limit, 0, False
        deadline = time.monotonic() + _PLAN_S
        with ThreadPoolExecutor(_THREADS) as pool:
            while waiting:
                asked = waiting[: _THREADS if left is None else min(_THREADS, left)]
                share = None if left is None else max(1, left // len(waiting))
                ends = [found[number].end for number in asked]
                pages = list(pool.map(self._next_page, asked, ends, [share] * len(asked)))
                waiting = waiting[len(asked) :]
                for number, before, page in zip(asked, ends, pages, strict=True):
                    taken = self._take(number, found[number], page)
                    size += sum(len(row.value) for row in taken)
                    left = None if left is None else left - len(taken)
                    moved = moved or found[number].end.has_moved(before)
                    if not self._is_finished(number, page):
                        waiting.append(number)
                # An empty plan ends a triggered run, so it must have asked all shards.
                is_late = time.monotonic() > deadline and (moved or self._until_ms is None)
                if (left is not None and left <= 0) or size >= _PLAN_BYTES or is_late:
                    break
        return found

    def _next_page(self, shard: int, at: ShardPosition, limit: int | None) -> Page:
        reading = self._readings.get(shard)
        if reading is None or reading.at.has_moved(at):
            reading = self._readings[shard] = _Reading(
                ShardPages(self._client, self._connection, shard, at), at
            )
        return reading.pages.read() if limit is None else reading.pages.read(limit)

    def _take(self, shard: int, planned: _Planned, page: Page) -> list[Row]:
        """Add the records of a page to a plan."""
        at, rows = planned.end, list[Row]()
        for record in page.records:
            found = rows_of(self._connection, shard, record, at.number)
            at = replace(at, sequence=record["SequenceNumber"], number=at.number + len(found))
            rows += found
        # The children of a closed shard begin when it ended, and not when the flow has noticed it.
        seen_ms = page.arrived_ms if page.is_end else page.until_ms
        # Until its first record, a shard has the time at which the flow was opened.
        is_first = planned.end.sequence is None and bool(page.records)
        seen_ms = seen_ms if is_first else max(seen_ms, at.seen_ms or 0)
        at = replace(at, seen_ms=seen_ms or None, retention_ms=self._retention_ms, closed=page.is_end)
        planned.end = self._readings[shard].at = at
        planned.rows += rows
        return rows

    def _is_finished(self, shard: int, page: Page) -> bool:
        """Whether there is nothing more to plan of a shard now."""
        until_ms = self._until_ms
        finished = page.is_end or page.is_last
        finished = finished or (until_ms is not None and page.arrived_ms > until_ms + _MARGIN_MS)
        if finished and until_ms is not None:
            self._done.add(shard)
        return finished


def _is_stale(start: ShardPosition, end: ShardPosition) -> bool:
    return not end.closed and (end.seen_ms or 0) - (start.seen_ms or 0) > _RENEW_MS
