"""The metadata of stored tables, read from the Delta log without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.model.names import TableName
from headrace.storage.layout import Storage, table_name
from headrace.storage.location import Location
from headrace.storage.log_damage import naming_damage
from headrace.storage.table_log import commit_file, last_checkpoint, read_actions, read_ahead, versions
from headrace.storage.table_snapshot import checkpoint_actions, find_all_checkpoints

_CHECKPOINT = "headrace.checkpoint."
_WANTED = ("metaData", "domainMetadata")
_CLUSTERING = "delta.clustering"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    name: TableName
    version: int
    schema: Mapping[str, Any]  # its columns, as ``StructType.jsonValue()`` gives them
    properties: Mapping[str, str] = field(default_factory=dict)
    partition_cols: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None

    @property
    def pipeline(self) -> str | None:
        """The pipeline that created it; ``None`` for other tables."""
        return self.properties.get("headrace.pipeline")

    def new_clustering(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The declared columns for clustering, if they are new and the table is not partitioned."""
        same = [name.casefold() for name in wanted] == [name.casefold() for name in self.cluster_by]
        return () if same or self.partition_cols else wanted

    @property
    def kind(self) -> str | None:
        return self.properties.get("headrace.kind")

    @property
    def is_private(self) -> bool:
        """Whether lists of tables leave it out."""
        return self.properties.get("headrace.private") == "true"

    @property
    def flows(self) -> tuple[str, ...]:
        return tuple(
            key.removeprefix(_CHECKPOINT)
            for key, value in self.properties.items()
            if key.startswith(_CHECKPOINT) and value
        )


def load_stored(storage: Storage, name: TableName) -> StoredTable | None:
    return load_stored_at(storage.table(name))


def load_stored_at(path: Location) -> StoredTable | None:
    """The latest metadata of the table in a folder; ``None`` if there is no table."""
    known = versions(path)
    metadata, clustering = _newest(path, known)
    if metadata is None:
        return None
    schema = json.loads(metadata.get("schemaString") or '{"type":"struct","fields":[]}')
    return StoredTable(
        name=table_name(path),
        version=known[-1] if known else last_checkpoint(path),
        schema=schema,
        properties=dict(metadata.get("configuration") or {}),
        partition_cols=tuple(metadata.get("partitionColumns") or ()),
        cluster_by=_clustering(clustering, schema),
        comment=metadata.get("description"),
    )


def _newest(
    path: Location, known: tuple[int, ...]
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """The latest metadata of a table, and the latest domain of its clustering."""
    metadata = clustering = None
    for name, found in _newest_first(path, known):
        if name == "metaData":
            metadata = metadata or found
        elif found.get("domain") == _CLUSTERING:
            clustering = clustering or found
        if metadata and clustering:
            break
    return metadata, clustering


def _newest_first(path: Location, known: Sequence[int]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The metadata and domains of the commits after the last checkpoint, and then those of the checkpoint."""
    # By the listing, and not by `_last_checkpoint`, which can be newer than the listing.
    checkpoints = find_all_checkpoints(path)
    last = max(checkpoints, default=-1)
    for version, data in read_ahead(path, [one for one in reversed(known) if one > last]):
        yield from read_actions(commit_file(path, version), *_WANTED, data=data)
    with naming_damage(path):
        for file in checkpoints.get(last, ()):
            yield from checkpoint_actions(file, _WANTED)


def _clustering(domain: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The clustering columns of a table; its domain metadata has their physical names."""
    if domain is None or domain.get("removed"):
        return ()
    logical = dict(_physical_names(schema))
    columns = json.loads(domain.get("configuration") or "{}").get("clusteringColumns", ())
    return tuple(logical.get(tuple(parts), ".".join(parts)) for parts in columns)


def _physical_names(
    schema: Mapping[str, Any], physical: tuple[str, ...] = (), logical: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    for one in schema["fields"]:
        there = (*physical, str((one.get("metadata") or {}).get(_PHYSICAL_NAME, one["name"])))
        here = (*logical, one["name"])
        yield there, ".".join(here)
        if isinstance(one["type"], dict) and one["type"].get("type") == "struct":
            yield from _physical_names(one["type"], there, here)
