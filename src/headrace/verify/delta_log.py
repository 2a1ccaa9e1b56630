"""A Delta table's log on disk, by a parser of its own that knows nothing of what Headrace means by a
commit."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from typing import Any
from urllib.parse import unquote

from headrace.errors import first_line
from headrace.verify.stored import StoredPath, gather, plain_path

_COMMIT = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT = re.compile(
    r"^(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|\.parquet|\.[0-9a-fA-F-]{36}\.(?:parquet|json))$"
)

_ABSOLUTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")
"""An absolute URI: a data file outside of the table's folder, as of a shallow clone."""

FileKey = tuple[str, str]
"""A data file together with its deletion vector: what a remove action names."""


class LogDamagedError(Exception):
    """The table's log is not what the Delta protocol allows; turned into a finding."""


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str
    size: int
    modified_ms: int
    rows: int | None  # rows in the file, by the log's statistics; ``None`` where it keeps none
    data_change: bool  # whether the rows are new; false for a rewrite of rows that the table had
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    vector: str = ""  # the id of its deletion vector; empty if it has none
    deleted: int = 0  # how many rows the deletion vector marks

    @property
    def key(self) -> FileKey:
        return (self.path, self.vector)


@dataclass(frozen=True, slots=True)
class TableMetadata:
    id: str
    properties: Mapping[str, str]
    schema: str


@dataclass(frozen=True, slots=True)
class Commit:
    version: int
    timestamp_ms: int
    operation: str
    engine: str
    user_metadata: str | None
    transactions: Mapping[str, int]
    added: tuple[DataFile, ...]
    removed: tuple[tuple[FileKey, bool], ...]
    metadata: TableMetadata | None
    written_ms: int  # when the commit's file was last modified on disk
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # those of its operation

    @property
    def restores(self) -> int | None:
        """The version that a RESTORE went back to, if the commit says it."""
        version = str(self.parameters.get("version")) if self.operation == "RESTORE" else ""
        return int(version) if version.isdecimal() else None

    @property
    def changes_data(self) -> bool:
        return any(file.data_change for file in self.added) or any(change for _, change in self.removed)


@dataclass(frozen=True)
class TableLog:
    path: StoredPath
    version: int  # the snapshot's version; nothing newer was read
    metadata: TableMetadata
    commits: tuple[Commit, ...]  # every commit that the log still holds, without a hole, up to ``version``
    base: Mapping[FileKey, DataFile]  # the files of the oldest state that can be known
    base_version: int
    transactions: Mapping[str, int]  # the last version of every application id, at the snapshot
    strays: tuple[int, ...] = ()  # versions whose commit files lie below a gap: not part of the table

    @property
    def first_version(self) -> int:
        """The first version whose commit the log still holds."""
        return self.commits[0].version if self.commits else self.version + 1

    def states(self) -> Iterator[tuple[Commit, Mapping[FileKey, DataFile]]]:
        """Each commit after the base with the files active *before* it; the mapping is brought forward
        between two."""
        active = dict(self.base)
        for commit in self.commits:
            if commit.version <= self.base_version:
                continue
            yield commit, active
            _apply(commit, active)

    def active(self, version: int | None = None) -> dict[FileKey, DataFile]:
        """The files of the table as it was at a version; by default at the snapshot's."""
        last = self.version if version is None else version
        if last < self.base_version:
            raise LogDamagedError(f"version {last} is older than what the log still holds")
        active = dict(self.base)
        for commit in self.commits:
            if self.base_version < commit.version <= last:
                _apply(commit, active)
        return active

    @cached_property
    def _newest_keys(self) -> frozenset[FileKey]:
        return frozenset(self.active())

    def version_with(self, file: DataFile) -> int:
        """A version whose state holds this file with this deletion vector; the newest if it does."""
        if file.key in self._newest_keys:
            return self.version
        added = (commit.version for commit in reversed(self.commits) if file in commit.added)
        return next(added, self.base_version)

    def file_path(self, path: str) -> StoredPath:
        is_absolute = path.startswith("/") or _ABSOLUTE.match(path)
        return (self.path.find(path) if is_absolute else None) or self.path / path


def list_versions(table: StoredPath) -> list[int]:
    """The versions whose commit files are there, ascending."""
    names = (file.name for file in (table / "_delta_log").list_files())
    return [int(match[1]) for name in names if (match := _COMMIT.match(name))]


def has_log(table: StoredPath) -> bool:
    """Whether a Delta table has been created here: its log holds a commit, or a checkpoint of one."""
    return bool(list_versions(table) or _checkpoints(table))


def commit_mark(table: StoredPath, version: int) -> str | None:
    """A hash of a commit file; ``None`` if the log does not hold it."""
    try:
        data = (table / "_delta_log" / f"{version:020d}.json").read_bytes()
    except FileNotFoundError:
        return None
    return hashlib.sha256(data).hexdigest()[:16]


def last_change(table: StoredPath, version: int) -> int:
    """The index of the last file with the changes of a version, as its change feed counts them."""
    text = (table / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.split("\n") if line.strip()]
    changes = [one for one in actions if "cdc" in one]
    parts = [one[name] for one in actions for name in ("add", "remove") if name in one]
    return len(changes or [one for one in parts if one.get("dataChange", True)]) - 1


def load_table_log(table: StoredPath, since: int | None = None) -> TableLog:
    """Read a table's log up to its newest version; what lies before `since` only as a state."""
    versions = list_versions(table)
    checkpoints = _checkpoints(table)
    newest = max([*versions[-1:], *checkpoints], default=None)
    if newest is None:
        raise LogDamagedError(f"{table} is not a Delta table: its log holds no commit")
    held = _unbroken(versions, newest)
    first = held[0] if held else newest + 1
    base_version = _base_version(first, since, checkpoints)
    state = _load_checkpoint(checkpoints[base_version]) if base_version >= 0 else _State()
    metadata, transactions = state.metadata, dict(state.transactions)
    start = first if since is None else max(first, min(since, base_version + 1))
    commits = tuple(gather(partial(load_commit, table), [one for one in held if one >= start]))
    for commit in commits:
        if commit.version > base_version:
            metadata = commit.metadata or metadata
            transactions |= commit.transactions
    if metadata is None:
        raise LogDamagedError(f"the log of {table} has no metadata action")
    strays = tuple(version for version in versions if version < first)
    return TableLog(table, newest, metadata, commits, state.files, base_version, transactions, strays)


def load_commit(table: StoredPath, version: int) -> Commit:
    path = table / "_delta_log" / f"{version:020d}.json"
    info: dict[str, Any] = {}
    transactions: dict[str, int] = {}
    added: list[DataFile] = []
    removed: list[tuple[FileKey, bool]] = []
    metadata = None
    try:
        file = path.look()
        written_ms = 0 if file is None else file.modified_ms
        for line in path.read_text().split("\n"):
            if not line.strip():
                continue
            for name, value in json.loads(line).items():
                match name:
                    case "add":
                        added.append(_data_file(value))
                    case "remove":
                        key = (decode_path(value["path"]), _vector(value)[0])
                        removed.append((key, bool(value.get("dataChange", True))))
                    case "txn":
                        transactions[value["appId"]] = int(value["version"])
                    case "metaData":
                        metadata = _metadata(value)
                    case "commitInfo":
                        info = value
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogDamagedError(f"{path.name} cannot be read: {error}") from error
    text = info.get("userMetadata")
    return Commit(
        version=version,
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or written_ms),
        operation=str(info.get("operation", "unknown")),
        engine=str(info.get("engineInfo") or info.get("clientVersion") or "an unknown writer"),
        user_metadata=text if isinstance(text, str) else None,
        transactions=transactions,
        added=tuple(added),
        removed=tuple(removed),
        metadata=metadata,
        written_ms=written_ms,
        metrics=info.get("operationMetrics") or {},
        parameters=info.get("operationParameters") or {},
    )


def _apply(commit: Commit, active: dict[FileKey, DataFile]) -> None:
    for key, _ in commit.removed:
        active.pop(key, None)
    for file in commit.added:
        active[file.key] = file


def _unbroken(versions: list[int], newest: int) -> list[int]:
    """The longest run of versions that ends at the newest."""
    held: list[int] = []
    expected = newest
    for version in reversed(versions):
        if version != expected:
            break
        held.append(version)
        expected -= 1
    return held[::-1]


def _base_version(first: int, since: int | None, checkpoints: Mapping[int, Any]) -> int:
    """The checkpoint to start from; -1 starts at the beginning of a log that is whole."""
    if since is not None:
        near = [version for version in checkpoints if first - 1 <= version < since]
        if near:
            return max(near)
    if first == 0:
        return -1
    usable = [version for version in checkpoints if version >= first - 1]
    if not usable:
        raise LogDamagedError(
            f"the commits before version {first} are gone, and no checkpoint has their state"
        )
    return min(usable)


def _checkpoints(table: StoredPath) -> dict[int, list[StoredPath]]:
    found: dict[int, list[tuple[StoredPath, int]]] = {}
    log = table / "_delta_log"
    for file in log.list_files():
        if match := _CHECKPOINT.match(file.name):
            found.setdefault(int(match["version"]), []).append((log / file.name, int(match["parts"] or 1)))
    complete: dict[int, list[StoredPath]] = {}
    for version, files in found.items():
        # A checkpoint may be there in several forms; the first form whose parts are all there will do.
        for parts in sorted({parts for _, parts in files}):
            paths = sorted(path for path, of in files if of == parts)
            if parts == 1:
                complete[version] = paths[:1]
            elif len(paths) == parts:
                complete[version] = paths
            if version in complete:
                break
    return complete


@dataclass
class _State:
    files: dict[FileKey, DataFile] = field(default_factory=dict)
    metadata: TableMetadata | None = None
    transactions: dict[str, int] = field(default_factory=dict)


def _load_checkpoint(paths: Iterable[StoredPath]) -> _State:
    state = _State()
    pending = list(paths)
    while pending:
        path = pending.pop()
        try:
            actions = list(_checkpoint_actions(path))
        except (OSError, ValueError) as error:
            raise LogDamagedError(f"checkpoint {path.name} cannot be read: {error}") from error
        for name, value in actions:
            if name == "add":
                file = _data_file(value)
                state.files[file.key] = file
            elif name == "metaData":
                state.metadata = _metadata(value)
            elif name == "txn":
                state.transactions[value["appId"]] = int(value["version"])
            elif name == "sidecar":
                pending.append(path.parent / "_sidecars" / value["path"])
    return state


def _checkpoint_actions(path: StoredPath) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.name.endswith(".json"):
        for line in path.read_text().split("\n"):
            if line.strip():
                yield from json.loads(line).items()
        return
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path.open())
    names = set(file.schema_arrow.names)
    for name in ("metaData", "txn", "add", "sidecar"):
        if name not in names:
            continue
        for value in file.read(columns=[name]).column(name).to_pylist(maps_as_pydicts="lossy"):
            if value is not None and any(item is not None for item in value.values()):
                yield name, value


def _data_file(value: Mapping[str, Any]) -> DataFile:
    stats = json.loads(value["stats"]) if value.get("stats") else value.get("stats_parsed") or {}
    rows = stats.get("numRecords")
    vector, deleted = _vector(value)
    return DataFile(
        path=decode_path(value["path"]),
        size=int(value["size"]),
        modified_ms=int(value.get("modificationTime") or 0),
        rows=None if rows is None else int(rows),
        data_change=bool(value.get("dataChange", True)),
        partition_values=value.get("partitionValues") or {},
        vector=vector,
        deleted=deleted,
    )


def _vector(value: Mapping[str, Any]) -> tuple[str, int]:
    """The id of a file's deletion vector, and how many rows it marks."""
    vector = value.get("deletionVector")
    if not vector or vector.get("storageType") is None:
        return "", 0
    offset = "" if vector.get("offset") is None else f"@{vector['offset']}"
    return f"{vector['storageType']}{vector['pathOrInlineDv']}{offset}", int(vector["cardinality"])


def _metadata(value: Mapping[str, Any]) -> TableMetadata:
    return TableMetadata(
        id=value["id"], properties=dict(value.get("configuration") or {}), schema=value["schemaString"]
    )


def decode_path(path: str) -> str:
    """A path of the log is a URI: relative and percent-encoded, or absolute with a scheme."""
    return plain_path(path) if _ABSOLUTE.match(path) else unquote(path)


_PART = 64
"""The number of files in a task. With one task for each file, 50,000 files took 800 MB of memory."""
DECODED_BYTES = 256 << 20
"""The strings of the newest files are decoded, up to so many bytes of files in each table. It takes about
a second; without a bound, `verify` would read the whole of a large table at each run."""

_CHUNK_BYTES = 16 << 20
"""Bytes that are decoded at a time; several files are read at once."""

_COPY_MS = 5_000
"""How much longer than its commit's file a copy of a data file can take."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    size: int | None = None  # bytes; ``None`` when there is no such file, or it is not known
    modified_ms: int = 0
    rows: int | None = None
    problem: str | None = None  # why the file or its footer cannot be read
    decoded: bool = False  # whether the strings were decoded
    undecodable: str | None = None  # the first string column with bytes that are not valid UTF-8


def load_facts(log: TableLog, paths: Iterable[str]) -> dict[str, FileFacts]:
    """Read each file's size, age and footer, and decode the strings of the newest active files."""
    wanted = set(paths)
    decoded = _newest((file for file in log.active().values() if file.path in wanted), DECODED_BYTES)

    def load(some: Sequence[str]) -> list[tuple[str, FileFacts]]:
        return [(path, _facts(log.file_path(path), decode=path in decoded)) for path in some]

    listed = list(wanted)
    parts = [listed[start : start + _PART] for start in range(0, len(listed), _PART)]
    return dict(chain.from_iterable(gather(load, parts)))


def contradictions(
    file: DataFile, facts: FileFacts, *, judge_age: bool, committed_ms: int | None
) -> list[tuple[str, str]]:
    """Pairs of code and text where a file differs from its entry in the log. `committed_ms`: the time of its
    commit."""
    unreadable = ("FILE_UNREADABLE", f"cannot be read: {facts.problem}")
    if facts.size is None:
        missing = ("FILE_MISSING", "is in the log, but not on disk")
        return [missing if facts.problem is None else unreadable]
    found = []
    if facts.size != file.size:
        found.append(("FILE_SIZE_DIFFERS", f"has {facts.size:,} bytes; the log states {file.size:,}"))
    if facts.problem is not None:
        found.append(unreadable)
    elif file.rows is not None and facts.rows != file.rows:
        found.append(("FILE_ROWS_DIFFER", f"has {facts.rows:,} rows; the log states {file.rows:,}"))
    if facts.undecodable is not None:
        text = (
            f"has bytes that are not valid UTF-8 in the string column {facts.undecodable}: "
            "Spark reads it, other engines do not"
        )
        found.append(("FILE_NOT_UTF8", text))
    # A writer notes the age when it has closed the file, so the file can be older and never younger.
    # Clocks and file systems that count in whole seconds are allowed one.
    tolerance_ms = 1000 if file.modified_ms % 1000 == 0 else 2
    allowed = [file.modified_ms + tolerance_ms]
    if committed_ms is not None:
        # A copy that is made right after a commit gives the data and the commit's file about the same time.
        allowed.append(committed_ms + _COPY_MS)
    if judge_age and facts.modified_ms > max(allowed):
        late = (facts.modified_ms - file.modified_ms) / 1000
        found.append(("FILE_REPLACED", f"was modified {late:,.1f} s after it was committed"))
    return found


def _newest(files: Iterable[DataFile], limit: int) -> set[str]:
    """The newest files with at most `limit` bytes together; at least one."""
    newest = sorted(files, key=lambda file: file.modified_ms)[::-1]
    sums = accumulate(file.size for file in newest)
    return {
        file.path
        for number, (file, total) in enumerate(zip(newest, sums, strict=True))
        if number == 0 or total <= limit
    }


def _facts(path: StoredPath, *, decode: bool) -> FileFacts:
    try:
        stored = path.look()
    except OSError as error:
        return FileFacts(problem=first_line(error))
    if stored is None:
        return FileFacts()
    import pyarrow.parquet as pq

    found = FileFacts(size=stored.size, modified_ms=stored.modified_ms)
    try:
        with path.open() as source, pq.ParquetFile(source) as file:
            undecodable = _find_undecodable(file) if decode else None
            rows = file.metadata.num_rows
    except (OSError, ValueError) as error:
        return replace(found, problem=first_line(error))
    return replace(found, rows=rows, decoded=decode, undecodable=undecodable)


def _find_undecodable(file: Any) -> str | None:
    """The first string column with bytes that are not valid UTF-8; Spark writes what a query casts."""
    import pyarrow as pa

    footer = file.metadata
    columns = [footer.schema.column(index) for index in range(footer.num_columns)]
    strings = [column.path for column in columns if column.logical_type.type == "STRING"]
    size = sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
    rows = max(1, _CHUNK_BYTES * footer.num_rows // (size + 1))
    for name in strings:
        for batch in file.iter_batches(batch_size=rows, columns=[name], use_threads=False):
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid:
                return str(name)
    return None
