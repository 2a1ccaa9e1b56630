"""The rows that a table has gained and lost between two of its versions, by the actions of its log.

Commits that only move rows (``dataChange: false``) are left out, so a row counts where it was written first,
and is lost where it was last. No change data feed is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headrace.increments.increment import NotIncrementalError
from headrace.runtime.gateway import active_session
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.compaction import session_settings
from headrace.sinks.delta.data_files import DataFile, read_files, table_bytes, with_rows_between
from headrace.sinks.delta.table import delta_log
from headrace.storage.location import Location
from headrace.storage.table_log import action_lines, commit_file, parse_actions
from headrace.storage.table_snapshot import named_files

_MOST_COMMITS = 2_000
_RETENTION = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_WHOLE = frozenset({"RESTORE", "CLONE", "CONVERT"})
"""Operations whose files can be those of other versions or tables."""
_KEPT = ("path", "partitionValues", "size", "tags", "deletionVector")
_ABSENT: Any = object()


@dataclass
class _File:
    """A data file before and after a range of commits: its action, or `_ABSENT`."""

    before: Any = _ABSENT
    after: Any = _ABSENT


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """What has changed in a table between two versions. Each file is the action that adds it; `kept`: files
    that have other deleted rows, before and after. `alters`: whether its columns or properties may differ."""

    table: Location
    version: int  # the newer version
    alters: bool = False
    added: Sequence[Mapping[str, Any]] = ()
    removed: Sequence[Mapping[str, Any]] = ()
    kept: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()
    replaced: frozenset[str] = frozenset()  # the files of the change that a newer version does not have

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.kept)

    @property
    def only_adds(self) -> bool:
        return not (self.removed or self.kept)

    @property
    def size_bytes(self) -> int:
        files = [*self.added, *self.removed, *(one for one, _ in self.kept)]
        return sum(int(one.get("size") or 0) for one in files)

    @property
    def rows(self) -> int:
        """How many rows were gained and lost; at most, where statistics are missing."""
        whole = sum(map(_live_rows, (*self.added, *self.removed)))
        return whole + sum(abs(_deleted(after) - _deleted(before)) for before, after in self.kept)

    def check_files(self) -> None:
        """Check that the files of the older version still exist; `NotIncrementalError` if one does not."""
        names = sorted(self.replaced)
        held = self.table.files.gather(lambda name: (self.table / name).exists(), names)
        if not all(held):
            missing = next(name for name, is_there in zip(names, held, strict=True) if not is_there)
            text = f"{self.table.name} no longer has the file {missing}"
            raise NotIncrementalError("DATA_FILE_MISSING", text)

    def gained(self, session: SparkSession) -> DataFrame | None:
        return self._rows(session, self.added, [(after, before) for before, after in self.kept])

    def lost(self, session: SparkSession) -> DataFrame | None:
        return self._rows(session, self.removed, self.kept)

    def _rows(
        self,
        session: SparkSession,
        files: Sequence[Mapping[str, Any]],
        kept: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    ) -> DataFrame | None:
        whole = [DataFile(number, text) for number, text in enumerate(files, 1)]
        pairs = [(DataFile(0, before), DataFile(0, after)) for before, after in kept]
        parts = with_rows_between(session, self.table, pairs)
        if not whole and not parts:
            return None
        return read_files(
            session, self.table, snapshot_at(session, self.table, self.version), [*whole, *parts]
        )


def snapshot_at(session: SparkSession, table: Location, version: int) -> Any:
    jvm: Any = session._jvm
    none = jvm.scala.Option.empty()
    log = delta_log(session, table)
    newest = log.unsafeVolatileSnapshot()
    return newest if int(newest.version()) == version else log.getSnapshotAt(version, none, none, False)


def rows_at(session: SparkSession, table: Location, version: int) -> DataFrame:
    # The versions that a view needs are kept beyond the retention of their files.
    with session_settings(session, {_RETENTION: "false"}):
        return session.read.format("delta").option("versionAsOf", version).load(str(table))


def columns_differ(session: SparkSession, table: Location, before: int, now: int) -> bool:
    """Whether two versions have other columns, other names for them in their files, or other partitions."""
    with active_session(session):
        held = [snapshot_at(session, table, version).metadata() for version in (before, now)]
        one, other = ((each.schemaString(), each.partitionColumns().mkString(",")) for each in held)
        return one != other


def bytes_of(session: SparkSession, table: Location, version: int) -> int:
    with active_session(session):
        return table_bytes(session, table, version, lambda: snapshot_at(session, table, version))


def find_change(table: Location, first: int, last: int) -> TableChange:
    """What the log of a table says of its changes after version `first`, up to version `last`."""
    name = table.name
    if last < first:
        raise NotIncrementalError("CHANGE_SET_MISSING", f"an older version of {name} was restored")
    if last - first > _MOST_COMMITS:
        raise NotIncrementalError("TOO_MANY_FILE_ACTIONS", f"{name} has {last - first:,} new commits")
    log = _Range(table)
    names = {version: commit_file(table, version).name for version in range(first + 1, last + 1)}
    held = (table / "_delta_log").read_files(list(names.values()))
    for version, file in names.items():
        if file not in held:
            text = f"the log of {name} no longer has version {version}"
            raise NotIncrementalError("CHANGE_SET_MISSING", text)
        log.apply(version, held[file])
    files = log.files.values()
    added = [one.after for one in files if one.before is _ABSENT and one.after is not _ABSENT]
    removed = [one.before for one in files if one.after is _ABSENT and one.before is not _ABSENT]
    both = [one for one in files if one.before is not _ABSENT and one.after is not _ABSENT]
    kept = [(one.before, one.after) for one in both if _vector(one.before) != _vector(one.after)]
    now = {file for action in (*added, *(after for _, after in kept)) for file in named_files(action)}
    return TableChange(
        table=table,
        version=last,
        alters=log.alters,
        added=added,
        removed=removed,
        kept=kept,
        replaced=frozenset(log.gone | now & log.moved),
    )


@dataclass
class _Range:
    """What the commits of a range do. `files`: the data files whose rows count. Names of files: `made` are
    new; `gone` are older ones that are replaced; `moved` are new ones that are replaced."""

    table: Location
    files: dict[str, _File] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    alters: bool = False

    def apply(self, version: int, data: bytes) -> None:
        file, name = commit_file(self.table, version), self.table.name
        gone: dict[str, Mapping[str, Any]] = {}
        come: dict[str, Mapping[str, Any]] = {}
        # Each line is parsed: another writer can format the lines differently.
        for line in action_lines(file, data):
            for kind, action in parse_actions(line, file).items():
                match kind:
                    case "commitInfo" if str(action.get("operation")) in _WHOLE:
                        text = f"version {version} of {name} is a {action['operation']}"
                        raise NotIncrementalError("CHANGE_SET_MISSING", text)
                    case "protocol":
                        text = f"version {version} of {name} changes its table features"
                        raise NotIncrementalError("DELTA_PROTOCOL_CHANGED", text)
                    case "metaData":
                        self.alters = True
                    case "add" | "remove":
                        changed = come if kind == "add" else gone
                        if action.get("dataChange", True):
                            changed[unquote(str(action["path"]))] = action
                        for one in named_files(action):
                            made = self.moved if one in self.made else self.gone
                            (self.made if kind == "add" else made).add(one)
        for path, action in gone.items():
            held = self.files.get(path)
            if held is None:
                if action.get("partitionValues") is None:
                    text = f"version {version} of {name} does not describe the files that it removes"
                    raise NotIncrementalError("CHANGE_SET_MISSING", text)
                # The file that is added again has statistics, which the removal may lack.
                before = {key: action[key] for key in _KEPT if action.get(key) is not None}
                stats = action.get("stats") or come.get(path, {}).get("stats")
                before |= {"modificationTime": 0, "dataChange": True, "stats": stats}
                held = self.files[path] = _File(before=before)
            held.after = _ABSENT
        for path, action in come.items():
            self.files.setdefault(path, _File()).after = action


def _vector(action: Mapping[str, Any]) -> str:
    return json.dumps(action.get("deletionVector"), sort_keys=True)


def _deleted(action: Mapping[str, Any]) -> int:
    return int((action.get("deletionVector") or {}).get("cardinality", 0))


def _live_rows(action: Mapping[str, Any]) -> int:
    return int(json.loads(action.get("stats") or "{}").get("numRecords", 0)) - _deleted(action)
