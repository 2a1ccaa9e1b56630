"""What the checkpoint of each flow holds, and what is wrong with its files; without Spark."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from headrace.errors import CheckpointCorruptError, HeadraceError
from headrace.model.names import TableName
from headrace.model.ranges import Position
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sinks.delta.table import CHECKPOINT_PROPERTY
from headrace.sources.registry import committed_positions, describe_source
from headrace.state.checkpoint import (
    CheckpointIdentity,
    find_checkpoints,
    generations,
    load_identity,
    load_offsets,
    load_state,
    offset_lines,
    offsets_path,
)
from headrace.state.ledger import Ledger
from headrace.storage.layout import Storage
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table
from headrace.storage.table_snapshot import TableSnapshot


@dataclass(frozen=True, kw_only=True)
class StateFiles:
    operator: int
    partitions: int
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class SavedSource:
    title: str  # the source, such as ``topic orders``
    position: Position | None  # where the next batch begins; ``None`` if it is not known


@dataclass(frozen=True, kw_only=True)
class FlowCheckpoint:
    storage: Storage
    dataset: TableName
    flow: str
    path: Location
    replaced: tuple[Location, ...] = ()
    identity: CheckpointIdentity | None = None  # its identity; ``None`` if `broken` is set
    broken: HeadraceError | None = None  # why the identity cannot be read
    committed: int = -1  # the last batch that the table holds; -1 if none

    @cached_property
    def last_planned(self) -> int:
        """The last batch that Spark has planned; -1 if none."""
        return load_state(self.path).last_planned

    @cached_property
    def last_finished(self) -> int:
        """The last batch that Spark has finished; -1 if none."""
        return load_state(self.path).last_finished

    @property
    def sources(self) -> tuple[SavedSource, ...]:
        """The sources, and where the next batch begins."""
        if self.identity is None:
            return ()
        positions = self.positions(self.committed) or {}
        return tuple(
            SavedSource(title=describe_source(one), position=positions.get(one.index))
            for one in self.identity.sources
        )

    @property
    def watermark_ms(self) -> int | None:
        return watermark_ms(self.path)

    @property
    def state(self) -> tuple[StateFiles, ...]:
        root = self.path / "state"
        return tuple(
            StateFiles(
                operator=int(name),
                partitions=sum(one.isdigit() for one in (root / name).list_folders()),
                **measure(root / name),
            )
            for name in sorted(root.list_folders())
            if name.isdigit()
        )

    @property
    def sends(self) -> bool:
        """Whether the rows go to a sink, which can have a batch that the table does not record yet."""
        entry = self._record(self.committed)
        return entry is None or entry.get("kind") == "send"

    def positions(self, batch: int) -> Mapping[int, Position] | None:
        """Where a batch ended, as the table or the ledger says; ``None`` if neither has it."""
        entry = self._record(batch)
        return None if entry is None else committed_positions(entry)

    def _record(self, batch: int) -> Mapping[str, Any] | None:
        if self.identity is None or batch < 0:
            return None
        target = DeltaCommits(self.storage.table(self.dataset))
        return self._ledger.last_batch(target, self.identity.checkpoint, batch)

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.storage.ledger(self.dataset, self.flow), self.dataset, self.flow)

    def to_json(self) -> dict[str, Any]:
        identity, watermark = self.identity, self.watermark_ms
        return {
            "flow": self.flow,
            "dataset": str(self.dataset),
            "path": str(self.path),
            "checkpoint": None if identity is None else identity.checkpoint,
            "created": None if identity is None else identity.created,
            "generation": int(self.path.name),
            "replaced": [str(one) for one in self.replaced],
            "last_planned": self.last_planned,
            "last_finished": self.last_finished,
            "last_committed": self.committed,
            "sources": [
                {"source": one.title, "position": None if one.position is None else one.position.to_json()}
                for one in self.sources
            ],
            "watermark": None
            if watermark is None
            else datetime.fromtimestamp(watermark / 1000, UTC).isoformat(timespec="milliseconds"),
            "state": [asdict(one) for one in self.state],
            **measure(self.path),
        }


def load_checkpoints(storage: Storage, chosen: Callable[[str], bool]) -> Iterator[FlowCheckpoint]:
    """The newest checkpoint of each flow in a storage, by dataset and flow. `chosen`: whether a flow, by its
    name, is wanted."""
    for dataset, flow, known in find_checkpoints(storage):
        if chosen(flow):
            yield _load(storage, dataset, flow, known)


def watermark_ms(checkpoint: Location) -> int | None:
    found = load_metadata(checkpoint / "commits" / str(load_state(checkpoint).last_finished))
    return None if found is None else found.get("nextBatchWatermarkMs") or None


def load_metadata(path: Location) -> Mapping[str, Any] | None:
    """The JSON object in the second line of a file of Spark's logs; ``None`` if it cannot be read."""
    try:
        lines = path.read_text().splitlines()
        found = json.loads(lines[1])
    except HeadraceError:
        raise
    except (OSError, ValueError, IndexError):
        return None
    return found if lines[0] == "v1" and isinstance(found, dict) else None


def measure(folder: Location) -> dict[str, int]:
    """The number of files in a folder and all below it, and their bytes."""
    sizes = [state.size for _, state in folder.walk_states()]
    return {"files": len(sizes), "size_bytes": sum(sizes)}


def offsets_problem(checkpoint: Location, batch: int, sources: int) -> str | None:
    """Why Spark cannot read the offsets of a batch; ``None`` if it can."""
    try:
        lines = load_offsets(checkpoint, batch)
        for line in lines:
            if line is not None:
                json.loads(line)
    except CheckpointCorruptError as error:
        return error.facts[0]
    except ValueError as error:
        return f"the position of a source is not JSON: {error}"
    if len(lines) != sources:
        return f"it has the positions of {len(lines)} of {sources} sources"
    if load_metadata(checkpoint / "offsets" / str(batch)) is None:
        return "its second line is not JSON"
    return None


def _load(storage: Storage, dataset: TableName, flow: str, known: tuple[Location, ...]) -> FlowCheckpoint:
    path = known[-1]
    try:
        identity, broken = load_identity(path), None
    except HeadraceError as error:
        if isinstance(error, OSError):
            raise
        identity, broken = None, error
    return FlowCheckpoint(
        storage=storage,
        dataset=dataset,
        flow=flow,
        path=path,
        replaced=known[:-1],
        identity=identity,
        broken=broken,
        committed=-1 if identity is None else _committed(storage.table(dataset), identity.checkpoint),
    )


def _committed(table: Location, checkpoint: str) -> int:
    if not is_table(table):
        return -1
    found = open_delta(table).transaction_version(checkpoint)
    return -1 if found is None else int(found)


@dataclass(frozen=True, kw_only=True)
class ReplacedCheckpoint:
    flow: str
    path: Location
    replaced: datetime
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        replaced = self.replaced.isoformat(timespec="seconds")
        return {**vars(self), "path": str(self.path), "replaced": replaced}


def find_replaced(
    storage: Storage, table: TableName, snapshot: TableSnapshot, kept_since: datetime
) -> Iterator[ReplacedCheckpoint]:
    """The checkpoints of a table's flows that were replaced before a time.

    If the table's properties do not name the newest checkpoint of a flow, all checkpoints of the flow are
    kept: a process may have created the newest one and not finished.
    """
    for flow in storage.checkpoints(table).list_folders():
        known = generations(storage.flow_checkpoints(table, flow))
        if len(known) < 2:
            continue
        try:
            newest = load_identity(known[-1])
            replaced = datetime.fromisoformat(newest.created)
        except (HeadraceError, OSError, ValueError):
            continue
        replaced = replaced if replaced.tzinfo else replaced.replace(tzinfo=UTC)
        if snapshot.properties.get(CHECKPOINT_PROPERTY + flow) != newest.checkpoint or replaced >= kept_since:
            continue
        for path in known[:-1]:
            yield ReplacedCheckpoint(flow=flow, path=path, replaced=replaced, **measure(path))


@dataclass(frozen=True, kw_only=True)
class Repair:
    file: Location  # the file to repair; a backup keeps its present content
    text: str | None = field(default=None, repr=False)  # the new content; ``None`` if the file is taken away
    action: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    file: Location
    found: str
    repair: Repair | None = None


def find_problems(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    """The files that keep Spark or Headrace from continuing with a checkpoint."""
    path = checkpoint.path
    if checkpoint.broken is not None:
        error = checkpoint.broken
        yield Problem(file=path / "headrace.json", found=error.facts[0] if error.facts else error.summary)
        return
    yield from _metadata(checkpoint)
    yield from _commits(checkpoint)
    yield from _offsets(checkpoint)
    for folder in ("sources", "state"):
        for file, state in sorted((path / folder).walk_states()):
            if not state.size and not file.name.startswith("."):
                yield Problem(file=file, found="the file is empty")


def _metadata(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    file = checkpoint.path / "metadata"
    if checkpoint.last_planned < 0 and not file.exists():
        return
    try:
        found = None if json.loads(file.read_text())["id"] else "it has no id"
    except HeadraceError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
    if found is None:
        yield from _checksum(file)
        return
    text = json.dumps({"id": str(uuid.uuid4())})
    action = "write a new id of the query, which Spark uses only in its own messages"
    yield Problem(file=file, found=found, repair=Repair(file=file, text=text, action=action))


def _commits(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    last = checkpoint.last_finished
    if last < 0:
        return
    file = checkpoint.path / "commits" / str(last)
    if load_metadata(file) is not None:
        yield from _checksum(file)
        return
    repair = None
    if checkpoint.committed >= last:
        action = (
            f"move it to the backup; Spark runs batch {last} again, and the table, which has it, skips it"
        )
        repair = Repair(file=file, action=action)
    yield Problem(file=file, found="it is not a file of Spark's commit log", repair=repair)


def _offsets(checkpoint: FlowCheckpoint) -> Iterator[Problem]:
    """The last two batches: Spark reads no older ones."""
    assert checkpoint.identity is not None
    path, committed, sources = checkpoint.path, checkpoint.committed, len(checkpoint.identity.sources)
    last = max(checkpoint.last_planned, committed)
    if last > committed and (found := offsets_problem(path, last, sources)) is not None:
        file = offsets_path(path, last)
        action = f"move it to the backup; the table does not hold batch {last}, and Spark plans it again"
        # A sink could have the batch, and skip another one of the same number.
        repair = None if checkpoint.sends else Repair(file=file, action=action)
        yield Problem(file=file, found=found, repair=repair)
        last -= 1
    for batch in range(max(last - 1, 0), last + 1):
        file = offsets_path(path, batch)
        found = offsets_problem(path, batch, sources)
        if found is None:
            yield from _checksum(file)
        else:
            yield Problem(file=file, found=found, repair=_rewrite(checkpoint, batch))


def _rewrite(checkpoint: FlowCheckpoint, batch: int) -> Repair | None:
    """Write the offsets of a batch that the table holds, if the table or the ledger has its record."""
    identity, path = checkpoint.identity, checkpoint.path
    positions = checkpoint.positions(batch)
    near = next(
        (
            found
            for other in (batch - 1, batch + 1, batch - 2)
            if other >= 0 and (found := load_metadata(offsets_path(path, other))) is not None
        ),
        None,
    )
    if identity is None or positions is None or near is None:
        return None
    before = load_metadata(path / "commits" / str(batch - 1)) or {}
    watermark = before.get("nextBatchWatermarkMs", near["batchWatermarkMs"])
    text = offset_lines({**near, "batchWatermarkMs": watermark}, positions, identity.sources)
    action = f"write it again from the record of batch {batch} in the table"
    return Repair(file=offsets_path(path, batch), text=text, action=action)


def _checksum(file: Location) -> Iterator[Problem]:
    """Hadoop refuses to read a file that differs from the checksums beside it."""
    sums = file.parent / f".{file.name}.crc"
    try:
        data, stored = file.read_bytes(), sums.read_bytes()
    except OSError:
        return
    size = struct.unpack(">i", stored[4:8])[0] if len(stored) >= 8 else 0
    chunks = [data[start : start + size] for start in range(0, len(data), size)] if size > 0 else []
    if size <= 0 or stored[8:] != b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks):
        action = f"move the checksum file to the backup; {file.name} can be read"
        repair = Repair(file=sums, action=action)
        yield Problem(file=sums, found=f"the checksums do not match {file.name}", repair=repair)
