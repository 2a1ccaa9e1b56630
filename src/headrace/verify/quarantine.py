"""The quarantine table of a dataset, as far as the proof needs it: which batch rejected how many rows."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from itertools import chain
from typing import Any

import numpy as np

from headrace.errors import first_line
from headrace.model.texts import counted
from headrace.verify.balance import RowBalance
from headrace.verify.checkpoints import Lineage
from headrace.verify.commits import Batches, Refresh, Replay, holds_replay, replay_transaction
from headrace.verify.coordinates import NamedColumns
from headrace.verify.delta_log import has_log
from headrace.verify.equations import RowCounts
from headrace.verify.report import Judgement
from headrace.verify.source_range import Kinds, Partition, Spans
from headrace.verify.stored import StoredPath, query

BatchKey = tuple[str, int]
"""The checkpoint and number of a batch; of a refresh its update, and -1."""

_QUERY = """SELECT coalesce(checkpoint, update) AS checkpoint, coalesce(batch, -1) AS batch, state, replay{}
    FROM t"""
_READ = """, CASE WHEN source['path'] LIKE '%.parquet' THEN source['value'] END AS row"""
_DISCARDED = "discarded"
_REPLAYED = ("replaying", "replayed")
"""A row is replayed when the table holds its replay, whatever of both the quarantine states."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    rows: int = 0
    partitions: Mapping[Partition, array[int]] = field(default_factory=dict)
    read: tuple[bytes, ...] = ()  # rows of tables on which the query failed, as JSON

    @classmethod
    def of(cls, batches: Iterable[Batches], *parts: Mapping[BatchKey, Rejected]) -> Rejected:
        keys = [(one.checkpoint, number) for one in batches for number in range(one.first, one.last + 1)]
        found = [part[key] for part in parts for key in keys if key in part]
        offsets: dict[Partition, array[int]] = defaultdict(lambda: array("q"))
        for one in found:
            for partition, some in one.partitions.items():
                offsets[partition].extend(some)
        read = tuple(text for one in found for text in one.read)
        return cls(rows=sum(one.rows for one in found), partitions=offsets, read=read)

    def with_read(self, named: Sequence[NamedColumns]) -> Rejected:
        """With the coordinates in the rows of tables on which the query failed."""
        offsets = {key: some[:] for key, some in self.partitions.items()}
        for text in self.read:
            with suppress(ValueError):  # a long row is cut
                row = json.loads(text)
                found = next(filter(None, (one.find(row) for one in named)), None)
                if found is not None:
                    offsets.setdefault(found[0], array("q")).append(found[1])
        return replace(self, partitions=offsets)

    @property
    def spans(self) -> dict[Partition, Spans]:
        return {
            key: Spans.of_offsets(np.array(some, dtype=np.int64)) for key, some in self.partitions.items()
        }


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    kept: Mapping[BatchKey, Rejected] = field(default_factory=dict)  # neither replayed nor discarded
    discarded: Mapping[BatchKey, Rejected] = field(default_factory=dict)
    replayed: Mapping[BatchKey, Rejected] = field(default_factory=dict)  # those whose replay the table holds
    replays: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(
        default_factory=dict
    )  # rows that are marked with replays not in the table
    damage: str = ""  # why the quarantine table cannot be read

    @cached_property
    def rows(self) -> Mapping[BatchKey, int]:
        """How many rows each batch has in it, in every state."""
        found: dict[BatchKey, int] = defaultdict(int)
        for part in (self.kept, self.discarded, self.replayed):
            for key, one in part.items():
                found[key] += one.rows
        return dict(found)

    def rows_of(self, batch: Batches) -> int:
        """The rows that a batch, or several, have in it, in every state."""
        return sum(self.rows.get((batch.checkpoint, n), 0) for n in range(batch.first, batch.last + 1))

    def pending(self, lineage: Lineage) -> int:
        """Rows of a batch that the table does not hold yet."""
        mine = lineage.checkpoint
        last = max((one.last for one in lineage.batches if one.checkpoint == mine), default=-1)
        return sum(count for key, count in self.rows.items() if key[0] == mine and key[1] > last)

    def unclaimed(self, lineages: Sequence[Lineage], refresh: str | None) -> int:
        """Rows of batches and refreshes that the table does not hold, without those that are pending."""
        batches = [batch for lineage in lineages for batch in lineage.batches]
        claimed = {(b.checkpoint, number) for b in batches for number in range(b.first, b.last + 1)}
        known = {refresh, *(one.checkpoint for one in lineages)}
        return sum(count for key, count in self.rows.items() if key not in claimed and key[0] not in known)


def load_quarantine(
    path: StoredPath,
    target: StoredPath,
    transactions: Mapping[str, int],
    kinds: Kinds,
    *,
    reads_tables: bool = True,
) -> Quarantine:
    """Read a quarantine table; a missing one is empty. `reads_tables`: whether a flow reads a Delta table, so
    that rows of it can be rejected."""
    if not has_log(path):
        return Quarantine()
    import pyarrow as pa

    try:
        rejected = path.open_table()
        held = {one.name for one in pa.schema(rejected.schema()).field("source").type}
        parts = sorted(held & {name for one in kinds.coordinates for name in one.names})
        columns = "".join(f", source['{part}'] AS \"{part}\"" for part in parts)
        columns += _READ if reads_tables and {"path", "value"} <= held else ", NULL"
        found = query(rejected, _QUERY.format(columns))
    except Exception as error:  # the engine raises no narrower class
        return Quarantine(damage=first_line(error))
    quarantine = _build(found, parts, transactions, kinds)
    if not quarantine.lost:
        return quarantine
    # A replay may have ended since the dataset's table was read.
    now = target.open_table()
    lost = {
        one: rows
        for one, rows in quarantine.lost.items()
        if not holds_replay(one, now.transaction_version(replay_transaction(one)[0]), settled=True)
    }
    return replace(quarantine, lost=lost)


def _build(table: Any, parts: Sequence[str], transactions: Mapping[str, int], kinds: Kinds) -> Quarantine:
    rows: dict[tuple[str, BatchKey], int] = defaultdict(int)
    offsets: dict[tuple[str, BatchKey], dict[Partition, array[int]]] = {}
    read: dict[tuple[str, BatchKey], list[bytes]] = defaultdict(list)
    replays: dict[str, int] = defaultdict(int)
    lost: dict[str, int] = defaultdict(int)
    find_coordinates = cache(kinds.find_coordinates)  # few sets of names for many rows
    # Part by part: as Python's objects, many rows take many times the memory.
    for checkpoint, batch, state, replay, *source, row in chain.from_iterable(map(_rows, table.to_batches())):
        part = _DISCARDED if state == _DISCARDED else "kept"
        held_number = transactions.get(replay_transaction(replay)[0]) if state in _REPLAYED else None
        if state in _REPLAYED and holds_replay(replay, held_number, settled=state == "replayed"):
            part = "replayed"
            replays[replay] += 1
        elif state == "replayed":
            lost[replay] += 1
        key = (part, (checkpoint, batch))
        rows[key] += 1
        if row is not None:
            read[key].append(row)
        there = {name: value for name, value in zip(parts, source, strict=True) if value is not None}
        if (coordinates := find_coordinates(tuple(there))) is not None:
            *partition, offset = (there[name] for name in coordinates.names)
            of_batch = offsets.setdefault(key, defaultdict(lambda: array("q")))
            of_batch[tuple(partition)].append(offset)
    found: dict[str, dict[BatchKey, Rejected]] = defaultdict(dict)
    for (part, batch_key), count in rows.items():
        held, texts = offsets.get((part, batch_key), {}), tuple(read.get((part, batch_key), ()))
        found[part][batch_key] = Rejected(rows=count, partitions=held, read=texts)
    kept, discarded, replayed = (found[part] for part in ("kept", _DISCARDED, "replayed"))
    return Quarantine(kept=kept, discarded=discarded, replayed=replayed, replays=replays, lost=lost)


def _rows(batch: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def judge_quarantine(batch: Batches, quarantine: Quarantine, found: Judgement) -> None:
    """A batch has as many rows in the quarantine as its commit states."""
    stated = batch.counts.quarantined
    if stated and quarantine.damage:
        text = f"{batch.name} quarantined {counted(stated, 'row')}; the quarantine table cannot be read: "
        found.find("QUARANTINE_UNREADABLE", text + quarantine.damage, **batch.place)
        return
    held = quarantine.rows_of(batch)
    if stated != held:
        text = f"{batch.name} states that it quarantined {counted(stated, 'row')}; the quarantine table holds"
        found.find("QUARANTINE_DIFFERS", f"{text} {held:,}", **batch.place)


def judge_missing_replays(quarantine: Quarantine, found: Judgement) -> None:
    """The table holds each replay whose rows the quarantine marks as replayed."""
    for replay, rows in sorted(quarantine.lost.items()):
        text = f"{counted(rows, 'row')} in quarantine marked as replayed by {replay}, and the table does not "
        found.find("REPLAY_MISSING", text + "hold this replay", replay=replay)


def judge_refresh(refresh: Refresh, quarantine: Quarantine, found: Judgement) -> None:
    """A view has as many rows in the quarantine as its last refresh states."""
    held = quarantine.rows.get((refresh.update, -1), 0)
    if refresh.quarantined and quarantine.damage:
        text = f"the quarantine table cannot be read: {quarantine.damage}"
        found.find("QUARANTINE_UNREADABLE", text, version=refresh.version)
    elif refresh.quarantined != held:
        text = f"the refresh of version {refresh.version} states that it quarantined "
        text += f"{counted(refresh.quarantined, 'row')}; the quarantine table holds {held:,}; "
        text += "if the table is deleted, `headrace run` computes the view again"
        found.find("QUARANTINE_DIFFERS", text, version=refresh.version)


def describe_pending(lineage: Lineage, quarantine: Quarantine) -> Iterator[str]:
    """Rejected rows of a batch that did not get as far as the table."""
    rows = quarantine.pending(lineage)
    if rows:
        yield f"{counted(rows, 'row')} in quarantine pending: the next run repeats their batch"


def judge_replays(
    replays: Sequence[Replay], balance: RowBalance, quarantine: Quarantine, found: Judgement
) -> str:
    """Judge the replays of one flow; returns the sum of their equations, empty if there are none."""
    for one in replays:
        place = {"replay": one.id, "version": one.version}
        for equation in one.counts.broken:
            found.find("COUNTS_UNBALANCED", f"replay {one.id}: {equation}", **place)
        delta = balance.deltas.get(one.version)
        removes = delta is not None and delta.removed and not one.counts.by_key
        if delta is not None and not delta.unknown and (removes or not delta.agrees(one.counts)):
            found.find("COUNTS_DIFFER", delta.differs(f"replay {one.id}", one.counts), **place)
        marked = quarantine.replays.get(one.id, 0)
        if marked != one.rows and not quarantine.damage:
            text = f"replay {one.id} states that it moved {counted(one.rows, 'row')} out of the quarantine, "
            found.find("REPLAY_DIFFERS", text + f"which has {marked:,} marked with it", **place)
    if not replays:
        return ""
    total = reduce(RowCounts.plus, (one.counts for one in replays))
    return f"; {sum(one.rows for one in replays):,} replayed: {total.text}"
