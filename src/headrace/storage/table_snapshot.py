"""Reads the files of a table's newest version from its log: its checkpoint and the commits after it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.storage import table_log
from headrace.storage.location import Location

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_MANIFEST = re.compile(r"(\d{20})\.checkpoint\.[0-9a-fA-F-]{36}\.(?:parquet|json)")
"""A V2 checkpoint: its files are listed elsewhere, its transactions are in it."""
_STATE = ("protocol", "metaData", "add", "domainMetadata")
_ADD_FIELDS = (
    *("path", "partitionValues", "size", "modificationTime", "dataChange", "stats", "tags"),
    *("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider"),
)
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_KNOWN_FEATURES = """
    appendOnly invariants checkConstraints changeDataFeed generatedColumns columnMapping identityColumns
    deletionVectors timestampNtz domainMetadata clustering rowTracking typeWidening typeWidening-preview
    vacuumProtocolCheck inCommitTimestamp variantType variantType-preview variantShredding-preview
    allowColumnDefaults icebergCompatV1 icebergCompatV2
"""
_FEATURES = frozenset(_KNOWN_FEATURES.split())
"""The table features with which the files of a table are those that this module finds."""


class SnapshotUnreadableError(ValueError):
    """The files of a table cannot be found in its log."""


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str  # its path in the table's folder, or an absolute path
    size: int
    rows: int | None = None  # its rows, deleted ones too; ``None`` if the log has no statistics
    deleted: int = 0
    partition: tuple[tuple[str, str | None], ...] = ()
    vector: str | None = None  # the path of the file with the deletion vector; ``None`` without one


@dataclass(frozen=True, kw_only=True)
class TableSnapshot:
    """The newest version of a table."""

    version: int
    table_id: str
    properties: Mapping[str, str]
    partition_columns: tuple[str, ...]
    schema: Mapping[str, Any]  # the columns, as the JSON of Spark's ``StructType``
    files: tuple[DataFile, ...]
    commits: tuple[int, ...]  # the versions whose commit files the log holds, ascending
    checkpoints: tuple[int, ...]  # the versions of which the log holds a whole checkpoint, ascending
    features: frozenset[str]
    domains: frozenset[str]  # the names of the metadata domains; clustered tables have ``delta.clustering``

    @cached_property
    def size_bytes(self) -> int:
        return sum(one.size for one in self.files)

    @property
    def unknown_features(self) -> list[str]:
        """Table features that can mean further files."""
        return sorted(self.features - _FEATURES)


@dataclass
class _State:
    make: Callable[[Mapping[str, Any]], Any]  # what is kept of an action that adds a file
    files: dict[tuple[str, str | None], Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    domains: set[str] = field(default_factory=set)

    def apply(self, name: str, value: Mapping[str, Any]) -> None:
        if name == "remove":
            self.files.pop(_key(value), None)
        elif name == "add":
            # The key has the whole deletion vector: two versions of a file can share a vector's file.
            self.files[_key(value)] = self.make(value)
        elif name == "metaData":
            self.metadata = value
        elif name == "protocol":
            self.protocol = value
        elif name == "domainMetadata":
            (self.domains.discard if value.get("removed") else self.domains.add)(value["domain"])


def load_snapshot(table: Location) -> TableSnapshot:
    commits, checkpoints = table_log.versions(table), find_checkpoints(table)
    if not commits and not checkpoints:
        raise SnapshotUnreadableError("its log has no commit")
    newest = max([*commits[-1:], *checkpoints])
    try:
        state = _load_state(table, newest, commits, checkpoints, _data_file)
        metadata = state.metadata
        if metadata is None:
            raise SnapshotUnreadableError("its log has no metadata; its checkpoint may have another form")
        features = [
            one for key in ("readerFeatures", "writerFeatures") for one in state.protocol.get(key) or ()
        ]
        return TableSnapshot(
            version=newest,
            table_id=str(metadata["id"]),
            properties=dict(metadata.get("configuration") or {}),
            partition_columns=tuple(metadata.get("partitionColumns") or ()),
            schema=json.loads(metadata["schemaString"]),
            files=tuple(state.files.values()),
            commits=commits,
            checkpoints=tuple(sorted(checkpoints)),
            features=frozenset(features),
            domains=frozenset(state.domains),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise SnapshotUnreadableError(f"its log is damaged: {error!r}") from error


def load_added(
    table: Location, version: int, wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """The actions that have added the files of a version, as JSON objects. `wanted`: chooses the files that
    are kept in memory."""

    def make(action: Mapping[str, Any]) -> dict[str, Any] | None:
        return _added(action) if wanted(action) else None

    found = _load_state(table, version, table_log.versions(table), find_checkpoints(table), make)
    return [one for one in found.files.values() if one is not None]


def _added(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action that adds a file as the log has it: a checkpoint also has its values in other forms."""
    kept = {name: action[name] for name in _ADD_FIELDS if action.get(name) is not None}
    if "stats" not in kept and (rows := _data_file(action).rows) is not None:
        kept["stats"] = json.dumps({"numRecords": rows})
    return kept


def _load_state(
    table: Location,
    version: int,
    commits: Sequence[int],
    checkpoints: Mapping[int, Sequence[Location]],
    make: Callable[[Mapping[str, Any]], Any],
) -> _State:
    start = max((one for one in checkpoints if one <= version), default=-1)
    state = _State(make)
    for file in checkpoints.get(start, ()):
        for name, value in checkpoint_actions(file):
            state.apply(name, value)
    if set(range(start + 1, version + 1)) - set(commits):
        raise SnapshotUnreadableError(f"its log lacks commits after version {start}")
    for number, data in table_log.read_ahead(table, range(start + 1, version + 1)):
        file = table_log.commit_file(table, number)
        for line in table_log.action_lines(file, data):
            if not line.startswith(('{"commitInfo"', '{"txn"')):
                for name, value in table_log.parse_actions(line, file).items():
                    state.apply(name, value)
    return state


def find_checkpoints(table: Location, names: Sequence[str] | None = None) -> dict[int, tuple[Location, ...]]:
    """The files of each whole checkpoint of a log, by its version; V2 checkpoints are left out. `names`: the
    files of the log, if they are known."""
    parts: dict[int, dict[int, list[str]]] = {}
    for name in (table / table_log.LOG).list_files() if names is None else names:
        if found := _CHECKPOINT.fullmatch(name):
            parts.setdefault(int(found[1]), {}).setdefault(int(found[3] or 1), []).append(name)
    whole: dict[int, tuple[Location, ...]] = {}
    for version, forms in parts.items():
        for number, names in forms.items():
            if len(names) == number:
                whole[version] = tuple(table / table_log.LOG / name for name in sorted(names))
    return whole


def find_all_checkpoints(table: Location) -> dict[int, tuple[Location, ...]]:
    """The files with the transactions of each whole checkpoint, V2 checkpoints too."""
    names = (table / table_log.LOG).list_files()
    checkpoints = find_checkpoints(table, names)
    for name in names:
        if found := _MANIFEST.fullmatch(name):
            checkpoints.setdefault(int(found[1]), (table / table_log.LOG / name,))
    return checkpoints


def load_held_batch(table: Location, checkpoint: str) -> int:
    """The last batch of a checkpoint that a table holds, by the files of its log alone; -1 if none."""
    commits, checkpoints = table_log.versions(table), find_all_checkpoints(table)
    start = max(checkpoints, default=-1)
    for version in reversed(commits):
        if version <= start:
            break
        number = table_log.load_commit(table, version).transactions.get(checkpoint)
        if number is not None:
            return number
    if not commits or commits[0] > start + 1:
        raise SnapshotUnreadableError(f"its log lacks commits after version {start}")
    for file in checkpoints.get(start, ()):
        for _, value in checkpoint_actions(file, ("txn",)):
            if value["appId"] == checkpoint:
                return int(value["version"])
    return -1


def is_part(table: Location, known: int, version: int) -> bool:
    """Whether a commit that was made after a known version is part of the table.

    Also False if the log does not show it any more.
    """
    if table_log.is_followed(table, known):
        return True
    held = table_log.versions(table)
    return version in held and (known in held or version > max(find_all_checkpoints(table), default=-1))


def named_files(action: Mapping[str, Any]) -> Iterator[str]:
    """The paths of the files that an ``add``, ``remove`` or ``cdc`` action names."""
    yield decode_path(str(action["path"]))
    if vector := vector_file(action):
        yield vector


def vector_file(action: Mapping[str, Any]) -> str | None:
    """The path of the file with the deletion vector of an action."""
    vector = action.get("deletionVector") or {}
    text = str(vector.get("pathOrInlineDv") or "")
    match vector.get("storageType"):
        case "u":
            folder = text[:-20]
            name = f"deletion_vector_{uuid.UUID(bytes=_decode_z85(text[-20:]))}.bin"
            return f"{folder}/{name}" if folder else name
        case "p":
            return decode_path(text)
        case _:
            return None


def decode_path(text: str) -> str:
    """A path of the log: relative and percent-encoded, or absolute with a scheme."""
    parts = urlsplit(text)
    return unquote(parts.path) if parts.scheme == "file" else unquote(text)


def _key(action: Mapping[str, Any]) -> tuple[str, str | None]:
    vector = action.get("deletionVector") or {}
    text = vector.get("pathOrInlineDv")
    return str(action["path"]), None if text is None else f"{text}@{vector.get('offset')}"


def _data_file(action: Mapping[str, Any]) -> DataFile:
    stats = action.get("stats")
    rows = (json.loads(stats) if stats else action.get("stats_parsed") or {}).get("numRecords")
    vector = action.get("deletionVector") or {}
    return DataFile(
        path=decode_path(str(action["path"])),
        size=int(action["size"]),
        rows=None if rows is None else int(rows),
        deleted=int(vector.get("cardinality") or 0),
        partition=tuple(sorted((action.get("partitionValues") or {}).items())),
        vector=vector_file(action),
    )


def checkpoint_actions(
    file: Location, wanted: Sequence[str] = _STATE
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file.name.endswith(".json"):
        yield from table_log.read_actions(file, *wanted)
        return
    try:
        with file.open() as stream:
            held = pq.ParquetFile(stream)
            names = [name for name in wanted if name in held.schema_arrow.names]
            sidecars = "add" in wanted and "sidecar" in held.schema_arrow.names
            if sidecars and len(held.read(columns=["sidecar"]).column("sidecar").drop_null()):
                raise SnapshotUnreadableError("its log has V2 checkpoints")
            for name in names:
                column = held.read(columns=[name]).column(name)
                for value in column.drop_null().to_pylist(maps_as_pydicts="lossy"):
                    yield name, value
    except pa.ArrowException as error:
        raise SnapshotUnreadableError(f"its checkpoint {file.name} cannot be read: {error}") from error


def _decode_z85(text: str) -> bytes:
    data = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            number = number * 85 + _Z85.index(letter)
        data += number.to_bytes(4, "big")
    return bytes(data)
