"""What the storage holds of a table, read from its Delta log without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.model.names import Storage, TableName
from headrace.state.table_log import versions

_CHECKPOINT = "headrace.checkpoint."


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table of the storage.

    Args:
        version: Its newest version.
        schema: Its columns, as ``StructType.jsonValue()`` gives them.
        properties: Its table properties.
        partition_cols: Its partition columns.
        comment: What it says of itself.
    """

    name: TableName
    version: int
    schema: Mapping[str, Any]
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    comment: str | None = None

    @property
    def pipeline(self) -> str | None:
        """The pipeline that made it; ``None`` for a table of anybody else's."""
        return self.properties.get("headrace.pipeline")

    @property
    def kind(self) -> str | None:
        return self.properties.get("headrace.kind")

    @property
    def flows(self) -> tuple[str, ...]:
        """The flows that have a checkpoint behind the table."""
        return tuple(
            key.removeprefix(_CHECKPOINT)
            for key, value in self.properties.items()
            if key.startswith(_CHECKPOINT) and value
        )


def load_stored(storage: Storage, name: TableName) -> StoredTable | None:
    """A table's newest metadata; ``None`` where the storage holds no such table."""
    return load_stored_at(storage.table(name))


def load_stored_at(path: Path) -> StoredTable | None:
    """The newest metadata of the table in a folder, wherever that lies; ``None`` where there is none."""
    known = versions(path)
    metadata = _newest_metadata(path, known)
    if metadata is None:
        return None
    return StoredTable(
        name=TableName(path.parent.name, path.name),
        version=known[-1] if known else _checkpoint_version(path),
        schema=json.loads(metadata.get("schemaString") or '{"type":"struct","fields":[]}'),
        properties=metadata.get("configuration") or {},
        partition_cols=tuple(metadata.get("partitionColumns") or ()),
        comment=metadata.get("description"),
    )


def stored_names(storage: Storage) -> tuple[TableName, ...]:
    """The tables that the storage holds."""
    if not storage.tables.is_dir():
        return ()
    return tuple(
        TableName(schema.name, table.name)
        for schema in sorted(storage.tables.iterdir())
        if schema.is_dir()
        for table in sorted(schema.iterdir())
        if (table / "_delta_log").is_dir()
    )


def _newest_metadata(path: Path, known: tuple[int, ...]) -> Mapping[str, Any] | None:
    checkpoint = _checkpoint_version(path)
    for version in reversed(known):
        if version <= checkpoint:
            break
        for metadata in _in_commit(path / "_delta_log" / f"{version:020d}.json"):
            return metadata
    if checkpoint >= 0:
        return _in_checkpoint(path, checkpoint)
    return None


def _in_commit(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"metaData"'):
                yield json.loads(line)["metaData"]


def _checkpoint_version(path: Path) -> int:
    try:
        return int(json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return -1


def _in_checkpoint(path: Path, version: int) -> Mapping[str, Any] | None:
    files = sorted((path / "_delta_log").glob(f"{version:020d}.checkpoint*"))
    for file in files:
        if file.suffix == ".json":
            for metadata in _in_commit(file):
                return metadata
            continue
        import pyarrow.parquet as parquet

        column = parquet.read_table(file, columns=["metaData"])["metaData"]
        for value in column.drop_null().to_pylist():
            # Arrow gives maps as lists of pairs.
            return {**value, "configuration": dict(value.get("configuration") or ())}
    return None
