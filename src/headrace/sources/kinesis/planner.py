"""Plans the batches of a stream: Kinesis names no end, so the records of a batch are read ahead.

Spark calls it in a Python process beside the driver, which lives as long as the query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from headrace import errors
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.position import KinesisPosition, ShardPosition
from headrace.sources.kinesis.shards import ListedShard, Page, ShardPages, list_shards, look_at
from headrace.sources.kinesis.spans import Row, rows_of

_PLAN_S: Final = 10.0
"""How long a plan reads ahead; each shard gives at least one page."""
_PLAN_BYTES: Final = 64 << 20
"""The bytes that a plan reads, with those of the page that reaches this number."""
_IDLE_S: Final = 1.0
"""How often shards without new records are asked."""
_RENEW_MS: Final = 3_600_000
"""How old the time up to which a quiet shard was read may become: then a batch without rows renews it. After
a pause, it tells whether records can have expired."""
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
        self._retention_ms = look.retention_ms
        self._clock_ms = look.now_ms - time.time() * 1000

    @property
    def _now_ms(self) -> int:
        """The time of the server."""
        return int(time.time() * 1000 + self._clock_ms)

    def roots(self) -> list[int]:
        """The shards whose parents Kinesis does not have any more: a stream is read from them on."""
        listed = list_shards(self._client, self._connection)
        return [n for n, one in listed.items() if not any(parent in listed for parent in one.parents)]

    def end_now(self) -> None:
        """Plan no records that arrive from now on, as far as arrival times tell."""
        self._until_ms = self._now_ms
        self._done = set()

    def plan(self, start: KinesisPosition, limit: int | None) -> KinesisPosition:
        """The end of the next batch; the start itself if there is nothing to read."""
        if (pause := self._idle_until_s - time.monotonic()) > 0 and self._until_ms is None:
            time.sleep(pause)
        joined = self._join(start)
        self._check_expired(joined)
        try:
            planned = self._read(joined, limit)
        except Exception:
            # Shards of other threads have gone on.
            self._readings.clear()
            raise
        ends = {**joined, **{shard: one.end for shard, one in planned.items()}}
        before = {shard: start.start_of(shard) for shard in ends}
        if not any(end.has_moved(before[shard]) for shard, end in ends.items()):
            self._idle_until_s = time.monotonic() + _IDLE_S
            if not any(_is_stale(start.shards.get(shard), end) for shard, end in ends.items()):
                return start
        for shard, one in planned.items():
            if one.rows:
                self._keeps.put(shard, joined[shard], one.end, one.rows)
        return start.with_shards(ends)

    def _join(self, start: KinesisPosition) -> dict[int, ShardPosition]:
        """The shards to read: without closed ones that Kinesis has forgotten, and with those whose parents
        are read to their end."""
        listed = self._list(start)
        shards = {n: one for n, one in start.shards.items() if n in listed or not one.closed}
        for number, shard in sorted(listed.items()):
            if number in shards:
                continue
            # Parents that were neither read nor listed have expired before the flow began.
            parents = [start.shards.get(n) for n in shard.parents if n in listed or n in start.shards]
            known = [one for one in parents if one is not None and one.closed]
            if len(known) == len(parents):
                shards[number] = _child(known)
        return shards

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
        """Stop where Kinesis may have deleted records that were not read: the start of the flow says what is
        lost."""
        horizon_ms = self._now_ms - self._retention_ms
        for number, one in shards.items():
            current = self._current(number, one)
            if not current.closed and current.seen_ms is not None and current.seen_ms < horizon_ms:
                raise errors.FlowInterruptedError(
                    f"records of the stream `{self._connection.stream}` have expired before they were read",
                    facts=(f"shard {number} was read up to a time that its retention has passed",),
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
                # A triggered run ends with a plan that has nothing: it must have asked all shards.
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
        # The children of a closed shard begin where it has ended, and not when this was noticed.
        seen_ms = page.arrived_ms if page.is_end else page.until_ms
        # The start of a flow has the time at which it was opened.
        is_first = planned.end.sequence is None and bool(page.records)
        seen_ms = seen_ms if is_first else max(seen_ms, at.seen_ms or 0)
        at = replace(at, seen_ms=seen_ms or None, closed=page.is_end)
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


def _child(parents: Sequence[ShardPosition]) -> ShardPosition:
    """Where a shard begins whose parents are read: at its first record, or where the flow began."""
    since = [one.since_ms for one in parents if one.since_ms is not None]
    seen = [one.seen_ms for one in parents]
    known = [one for one in seen if one is not None]
    return ShardPosition(
        since_ms=min(since, default=None),
        seen_ms=min(known, default=None) if len(known) == len(seen) else None,
    )


def _is_stale(start: ShardPosition | None, end: ShardPosition) -> bool:
    if start is None or end.closed or end.seen_ms is None:
        return False
    return end.seen_ms - (start.seen_ms or 0) > _RENEW_MS
