"""The quarantine table of a dataset, as far as the proof needs it: which batch rejected how many rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.commits import Batches, Refresh
from headrace.verify.delta_log import has_log
from headrace.verify.report import Judgement
from headrace.verify.source_range import TopicPartition
from headrace.verify.wording import counted

BatchKey = tuple[str, int]
"""The checkpoint and number of a batch; of a refresh its update, and -1."""

_QUERY = """
    SELECT coalesce(checkpoint, update) AS checkpoint, coalesce(batch, -1) AS batch,
        source['topic'] AS topic, source['partition'] AS partition,
        source['offset'] AS offset
    FROM rejected
"""


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """The rows of a quarantine table, in every state.

    Args:
        rows: How many rows each batch has in it.
        partitions: The offsets of these rows, where they still have coordinates.
        damage: Why the table cannot be read.
    """

    rows: Mapping[BatchKey, int] = field(default_factory=dict)
    partitions: Mapping[BatchKey, Mapping[TopicPartition, tuple[int, ...]]] = field(default_factory=dict)
    damage: str = ""

    def rows_of(self, batch: Batches) -> int:
        """The rows that a batch, or several, have in it."""
        return sum(self.rows.get((batch.checkpoint, n), 0) for n in range(batch.first, batch.last + 1))

    def offsets_of(self, lineage: Lineage) -> dict[TopicPartition, list[int]]:
        """The offsets of the rows of a flow's committed batches, where they still have coordinates."""
        offsets: dict[TopicPartition, list[int]] = defaultdict(list)
        for batch in lineage.batches:
            for number in range(batch.first, batch.last + 1):
                for partition, found in self.partitions.get((batch.checkpoint, number), {}).items():
                    offsets[partition].extend(found)
        return dict(offsets)

    def pending(self, lineage: Lineage) -> int:
        """Rows of a batch that the table does not hold yet."""
        last = max((one.last for one in lineage.batches if one.checkpoint == lineage.checkpoint), default=-1)
        return sum(
            count
            for (checkpoint, number), count in self.rows.items()
            if checkpoint == lineage.checkpoint and number > last
        )

    def unclaimed(self, lineages: Iterable[Lineage], refresh: str | None) -> int:
        """Rows of batches and refreshes that the table does not hold, without those that are pending.

        Args:
            lineages: The flows of the table.
            refresh: The update of a view's last refresh.
        """
        known = {refresh}
        claimed = {
            (batch.checkpoint, number)
            for lineage in lineages
            for batch in lineage.batches
            for number in range(batch.first, batch.last + 1)
        }
        known |= {one.checkpoint for one in lineages}
        return sum(count for key, count in self.rows.items() if key not in claimed and key[0] not in known)


def load_quarantine(path: Path) -> Quarantine:
    """Read a quarantine table; a missing one is empty."""
    if not has_log(path):
        return Quarantine()
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    try:
        found = QueryBuilder().register("rejected", DeltaTable(path)).execute(_QUERY).read_all()
    except Exception as error:  # the engine of `QueryBuilder` raises no narrower class
        return Quarantine(damage=str(error).splitlines()[0])
    return _build(pa.table(found))


def _build(table: Any) -> Quarantine:
    rows: dict[BatchKey, int] = defaultdict(int)
    partitions: dict[BatchKey, dict[TopicPartition, list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = (table.column(name).to_pylist() for name in table.column_names)
    for checkpoint, batch, topic, partition, offset in zip(*columns, strict=True):
        rows[checkpoint, batch] += 1
        if topic is not None and partition is not None and offset is not None:
            partitions[checkpoint, batch][topic, partition].append(offset)
    kept = {
        key: {partition: tuple(offsets) for partition, offsets in found.items()}
        for key, found in partitions.items()
    }
    return Quarantine(rows=dict(rows), partitions=kept)


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
