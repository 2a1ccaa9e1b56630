"""How far a flow has read each of its sources, over all checkpoints since its rows were last cleared.

A source that leaves a query and comes back two checkpoints later is one that was read before: what its
last commit says is found here, and nowhere in the checkpoint that is in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.model.ranges import Position
from headrace.state.identity import SourceIdentity
from headrace.state.ledger import Ledger, entry_of, last_version
from headrace.state.table_log import iter_commits


@dataclass(frozen=True, kw_only=True)
class PastRead:
    """What the last commit that read a table or a folder says of it.

    Args:
        checkpoint: The checkpoint that read it.
        source: Which it was, and in which place of the query.
        until: Where it ended.
        seen: The last version that was read of a table, with its mark.
        files: What the commit says of the files of a folder.
    """

    checkpoint: str
    source: SourceIdentity
    until: Position
    seen: Mapping[str, Any] | None = None
    files: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """How far each source of a flow was read.

    Args:
        topics: By the id of a topic, where each partition ended; ``None`` where a join had read it on
            both sides, up to different offsets.
        reads: Tables and folders, by their key: the last reads of them; two where a join had both sides.
        whole: Whether the commits of all the flow's checkpoints are known.
    """

    topics: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    reads: Mapping[tuple[str, str], tuple[PastRead, ...]] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]], *, whole: bool = True) -> History:
        """What commits of a flow say, in the order in which they were made."""
        topics: dict[str, dict[str, int | None]] = {}
        reads: dict[tuple[str, str], tuple[PastRead, ...]] = {}
        for entry in entries:
            mine: dict[tuple[str, str], tuple[PastRead, ...]] = {}
            ended: dict[str, dict[str, int | None]] = {}
            for said in entry.get("sources", ()):
                source = SourceIdentity(index=said["index"], kind=said["kind"], identity=said["identity"])
                if source.kind == "kafka":
                    _end_topics(source, said["until"], ended)
                else:
                    read = PastRead(
                        checkpoint=entry["checkpoint"],
                        source=source,
                        until=said["until"],
                        seen=said.get("seen"),
                        files=said.get("files"),
                    )
                    mine[source.key] = (*mine.get(source.key, ()), read)
            for topic_id, offsets in ended.items():
                topics.setdefault(topic_id, {}).update(offsets)
            reads |= mine
        return cls(topics=topics, reads=reads, whole=whole)


def load_history(ledger: Ledger, table: Path, table_id: str, version: int, checkpoint: str | None) -> History:
    """Follow a flow back, from the checkpoint that feeds its table to the first after the last refresh.

    Args:
        ledger: The flow's.
        table: Its table.
        table_id: Delta's id of the table.
        version: The table's version: what the ledger holds beyond it was taken back by a restored copy.
        checkpoint: The checkpoint that feeds the table through this flow; ``None`` where none does.

    Raises:
        CheckpointCorruptError: A fold cannot be read.
    """
    if checkpoint is None:
        return History()
    entries = _entries((ledger,), table, table_id, version)
    chain, whole = _chain(entries, checkpoint)
    # Checkpoints go from name to name with `--rename-flow`, and their folds stay where they were written.
    if not whole or any(_is_rename(entry) for entry in entries if entry["checkpoint"] in chain):
        entries = _entries({*ledger.siblings(), ledger}, table, table_id, version)
        chain, whole = _chain(entries, checkpoint)
    said = sorted((entry for entry in entries if entry["checkpoint"] in chain), key=last_version)
    return History.of(said, whole=whole)


def _entries(ledgers: Iterable[Ledger], table: Path, table_id: str, version: int) -> list[Mapping[str, Any]]:
    """What folds say that is still so, and what the table's log says beyond them."""
    held, first = [], version + 1
    for ledger in ledgers:
        stale = ledger.stale_folds(table, table_id, version)
        held += [fold for fold in ledger.folds() if fold["table_id"] == table_id and fold not in stale]
        # The log says again what was taken back.
        first = min([first, ledger.next_version(table_id), *(fold["versions"][0] for fold in stale)])
    logged = [
        entry_of(commit)
        for commit in iter_commits(table, first)
        if commit.metadata is not None and commit.is_ours and "checkpoint" in commit.metadata
    ]
    return [*(entry for fold in held for entry in fold["batches"]), *logged]


def _is_rename(entry: Mapping[str, Any]) -> bool:
    return bool("opens" in entry and entry["opens"]["reason"] == "renamed")


def _chain(entries: Iterable[Mapping[str, Any]], checkpoint: str) -> tuple[set[str], bool]:
    """The checkpoints that led to one, each fenced by the next; whether the first of them is among them."""
    # The checkpoint of a renamed flow has two openings: the first says what came before it.
    opened: dict[str, Mapping[str, Any]] = {}
    for entry in sorted((entry for entry in entries if "opens" in entry), key=last_version):
        if not _is_rename(entry):
            opened.setdefault(entry["checkpoint"], entry["opens"])
    chain = {checkpoint}
    while (opens := opened.get(checkpoint)) is not None:
        before = opens.get("fences")
        if opens["reason"] == "full-refresh" or before is None or before in chain:
            return chain, True
        chain.add(before)
        checkpoint = before
    return chain, False


def _end_topics(source: SourceIdentity, until: Position, ended: dict[str, dict[str, int | None]]) -> None:
    ids = source.identity["topics"]
    for topic, partitions in until.items():
        if (topic_id := ids.get(topic)) is None:
            continue
        known = ended.setdefault(topic_id, {})
        for partition, offset in partitions.items():
            known[partition] = offset if known.setdefault(partition, offset) == offset else None
