"""The quarantine table of a dataset, as far as the proof needs it: which batch rejected how many rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from headrace.model.texts import counted
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.commits import Batches, Refresh, holds_replay, replay_transaction
from headrace.verify.delta_log import has_log
from headrace.verify.report import Judgement
from headrace.verify.source_range import TopicPartition
from headrace.verify.stored import StoredPath

BatchKey = tuple[str, int]
"""The checkpoint and number of a batch; of a refresh its update, and -1."""

_QUERY = """
    SELECT coalesce(checkpoint, update) AS checkpoint, coalesce(batch, -1) AS batch, state, replay,
        source['topic'] AS topic, source['partition'] AS partition,
        source['offset'] AS offset
    FROM rejected
"""
_DISCARDED = "discarded"
_REPLAYED = ("replaying", "replayed")
"""A row is replayed when the table holds its replay, whatever of both the quarantine states."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """Rejected rows of one batch."""

    rows: int = 0
    partitions: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def joined(cls, several: Iterable[Rejected]) -> Rejected:
        rows, offsets = 0, defaultdict[TopicPartition, list[int]](list)
        for one in several:
            rows += one.rows
            for partition, found in one.partitions.items():
                offsets[partition].extend(found)
        return cls(rows=rows, partitions={key: tuple(found) for key, found in offsets.items()})


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """The rows of a quarantine table.

    Args:
        kept: The rows of each batch that are neither replayed nor discarded.
        lost: How many rows are marked as replayed by replays that the table does not hold.
    """

    kept: Mapping[BatchKey, Rejected] = field(default_factory=dict)
    discarded: Mapping[BatchKey, Rejected] = field(default_factory=dict)
    replayed: Mapping[BatchKey, Rejected] = field(default_factory=dict)  # those whose replay the table holds
    replays: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
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
        last = max((one.last for one in lineage.batches if one.checkpoint == lineage.checkpoint), default=-1)
        return sum(
            count
            for (checkpoint, number), count in self.rows.items()
            if checkpoint == lineage.checkpoint and number > last
        )

    def unclaimed(self, lineages: Iterable[Lineage], refresh: str | None) -> int:
        """Rows of batches and refreshes that the table does not hold, without those that are pending."""
        known = {refresh}
        claimed = {
            (batch.checkpoint, number)
            for lineage in lineages
            for batch in lineage.batches
            for number in range(batch.first, batch.last + 1)
        }
        known |= {one.checkpoint for one in lineages}
        return sum(count for key, count in self.rows.items() if key not in claimed and key[0] not in known)


def rows_in(part: Mapping[BatchKey, Rejected], batches: Iterable[Batches]) -> Iterator[Rejected]:
    """The rows of batches in a part of the quarantine."""
    for batch in batches:
        for number in range(batch.first, batch.last + 1):
            if (found := part.get((batch.checkpoint, number))) is not None:
                yield found


def load_quarantine(path: StoredPath, target: StoredPath, transactions: Mapping[str, int]) -> Quarantine:
    """Read a quarantine table; a missing one is empty."""
    if not has_log(path):
        return Quarantine()
    import pyarrow as pa
    from deltalake import QueryBuilder

    try:
        found = QueryBuilder().register("rejected", path.open_table()).execute(_QUERY).read_all()
    except Exception as error:  # the engine of `QueryBuilder` raises no narrower class
        return Quarantine(damage=str(error).splitlines()[0])
    quarantine = _build(pa.table(found), transactions)
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


def _build(table: Any, transactions: Mapping[str, int]) -> Quarantine:
    rows: dict[tuple[str, BatchKey], int] = defaultdict(int)
    offsets: dict[tuple[str, BatchKey], dict[TopicPartition, list[int]]] = {}
    replays: dict[str, int] = defaultdict(int)
    lost: dict[str, int] = defaultdict(int)
    columns = (table.column(name).to_pylist() for name in table.column_names)
    for checkpoint, batch, state, replay, topic, partition, offset in zip(*columns, strict=True):
        part = _DISCARDED if state == _DISCARDED else "kept"
        held_number = transactions.get(replay_transaction(replay)[0]) if state in _REPLAYED else None
        if state in _REPLAYED and holds_replay(replay, held_number, settled=state == "replayed"):
            part = "replayed"
            replays[replay] += 1
        elif state == "replayed":
            lost[replay] += 1
        key = (part, (checkpoint, batch))
        rows[key] += 1
        if topic is not None and partition is not None and offset is not None:
            offsets.setdefault(key, defaultdict(list))[topic, partition].append(offset)
    parts: dict[str, dict[BatchKey, Rejected]] = defaultdict(dict)
    for (part, batch_key), count in rows.items():
        held = {place: tuple(found) for place, found in offsets.get((part, batch_key), {}).items()}
        parts[part][batch_key] = Rejected(rows=count, partitions=held)
    return Quarantine(
        kept=parts["kept"],
        discarded=parts[_DISCARDED],
        replayed=parts["replayed"],
        replays=dict(replays),
        lost=dict(lost),
    )


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
