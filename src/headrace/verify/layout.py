"""Where the parts of a storage root are, and the tables that flows have read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.model.names import TableName
from headrace.verify.delta_log import LogDamagedError, list_versions, load_table_log
from headrace.verify.source_range import SourceRange


@dataclass(frozen=True)
class Storage:
    """A storage root on a local disk."""

    root: Path

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    def table(self, dataset: TableName) -> Path:
        return self.tables / dataset.schema / dataset.name

    def quarantine(self, dataset: TableName) -> Path:
        """The table of a dataset's rejected rows."""
        return self.root / "quarantine" / dataset.schema / dataset.name

    def flow_checkpoints(self, dataset: TableName, flow: str) -> Path:
        """The folder that holds the flow's generations, each a checkpoint of its own."""
        return self.root / "checkpoints" / str(dataset) / flow

    def ledger(self, dataset: TableName, flow: str) -> Path:
        return self.root / "ledger" / str(dataset) / flow


@dataclass(frozen=True)
class Upstream:
    """Where a table lies that a flow has read."""

    path: Path
    storage: Storage | None  # the storage whose layout it lies in; ``None`` for any other folder

    @property
    def name(self) -> TableName:
        return TableName(self.path.parent.name, self.path.name)


def find_upstream(storage: Storage, source: SourceRange) -> Upstream | None:
    """The table behind a range; ``None`` where it is not there any more.

    Its name in our own storage comes first, since the storage may have been moved; where a table lies at
    the recorded path as well, its id decides.
    """
    text = str(source.identity.get("path", ""))
    parts = urlsplit(text)
    recorded = Path(unquote(parts.path) if parts.scheme == "file" else text)
    moved = storage.table(TableName(recorded.parent.name, recorded.name))
    there = [path for path in dict.fromkeys((moved, recorded)) if text and list_versions(path)]
    if len(there) > 1:
        there = [path for path in there if _table_id(path) == source.identity.get("table_id")] or there
    if not there:
        return None
    (path, *_) = there
    layout = path.parents[2] if len(path.parents) > 2 and path.parents[1].name == "tables" else None
    return Upstream(path, None if layout is None else Storage(layout))


def _table_id(path: Path) -> str | None:
    try:
        return load_table_log(path, since=list_versions(path)[-1]).metadata.id
    except LogDamagedError:
        return None
