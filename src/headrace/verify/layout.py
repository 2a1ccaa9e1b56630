"""Where the parts of a storage root are, and the tables that flows have read."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.names import TableName
from headrace.verify.delta_log import LogDamagedError, list_versions, load_table_log
from headrace.verify.source_range import SourceRange
from headrace.verify.stored import StoredPath, plain_path


@dataclass(frozen=True)
class Storage:
    """A storage root."""

    root: StoredPath

    @property
    def tables(self) -> StoredPath:
        return self.root / "tables"

    @property
    def plans(self) -> StoredPath:
        return self.root / "plans"

    def table(self, dataset: TableName) -> StoredPath:
        return self.tables / dataset.schema / dataset.name

    def quarantine(self, dataset: TableName) -> StoredPath:
        """The table of a dataset's rejected rows."""
        return self.root / "quarantine" / dataset.schema / dataset.name

    def tombstones(self, dataset: TableName) -> StoredPath:
        """The table of a dataset's deleted keys."""
        return self.root / "tombstones" / dataset.schema / dataset.name

    def flow_checkpoints(self, dataset: TableName, flow: str) -> StoredPath:
        """The folder that holds the flow's generations, each a checkpoint of its own."""
        return self.root / "checkpoints" / str(dataset) / flow

    def ledger(self, dataset: TableName, flow: str) -> StoredPath:
        return self.root / "ledger" / str(dataset) / flow


@dataclass(frozen=True)
class Upstream:
    """Where a table lies that a flow has read."""

    path: StoredPath
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
    *_, schema, name = ["", "", *plain_path(text).rstrip("/").split("/")]
    moved = storage.table(TableName(schema, name)) if name else None
    candidates = dict.fromkeys((moved, StoredPath.find(text)))
    there = [path for path in candidates if path is not None and list_versions(path)]
    if len(there) > 1:
        there = [path for path in there if _table_id(path) == source.identity.get("table_id")] or there
    if not there:
        return None
    (path, *_) = there
    tables = path.parent.parent
    return Upstream(path, Storage(tables.parent) if tables.name == "tables" else None)


def _table_id(path: StoredPath) -> str | None:
    try:
        return load_table_log(path, since=list_versions(path)[-1]).metadata.id
    except LogDamagedError:
        return None
