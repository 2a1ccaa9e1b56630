"""What the checkpoint of each flow holds; without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.model.ranges import Position
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sinks.delta.table import CHECKPOINT_PROPERTY
from headrace.sources.registry import committed_positions, describe_source
from headrace.state.identity import CheckpointIdentity, find_checkpoints, generations, load_identity
from headrace.state.ledger import Ledger
from headrace.state.offset_log import load_state
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
        positions = self._positions(self.identity)
        return tuple(
            SavedSource(title=describe_source(one), position=positions.get(one.index))
            for one in self.identity.sources
        )

    @property
    def watermark_ms(self) -> int | None:
        """The watermark of the next batch; ``None`` if there is none."""
        found = load_metadata(self.path / "commits" / str(self.last_finished))
        return None if found is None else found.get("nextBatchWatermarkMs") or None

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

    def _positions(self, identity: CheckpointIdentity) -> Mapping[int, Position]:
        """Where the last batch ended, as the table or the ledger says; empty if neither has it."""
        if self.committed < 0:
            return {}
        ledger = Ledger(self.storage.ledger(self.dataset, self.flow), self.dataset, self.flow)
        target = DeltaCommits(self.storage.table(self.dataset))
        entry = ledger.last_batch(target, identity.checkpoint, self.committed)
        return {} if entry is None else committed_positions(entry)

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
    """A checkpoint that can be removed."""

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
