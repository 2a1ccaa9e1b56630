"""The rows that a table has gained and lost between two of its versions, by the actions of its log.

Commits that only move rows (``dataChange: false``) are left out, so a row counts where it was written first,
and is lost where it was last. No change data feed is needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.data_files import DataFile, read_files, with_rows_between
from headrace.sinks.delta.table import delta_log
from headrace.storage.location import Location
from headrace.storage.table_log import action_lines, commit_file, parse_actions

_MOST_COMMITS = 2_000
_WHOLE = frozenset({"RESTORE", "CLONE", "CONVERT"})
"""Operations whose files can be those of other versions or tables."""
_MAPPING = "delta.columnMapping.mode"
_KEPT = ("path", "partitionValues", "size", "tags", "deletionVector")
_ABSENT: Any = object()


_GONE = re.compile(
    "FILE_NOT_EXIST|FILE_NOT_FOUND|FileNotFound|DELTA_VERSION|DELTA_TIME_TRAVEL|DELTA_LOG_FILE|DELTA_TRUNCATED"
    "|DELTA_NO_RECREATABLE"
)


class UnknownChangeError(Exception):
    """The changed rows of a table cannot be found; the text says why."""


def is_gone(error: Exception) -> bool:
    """Whether Spark or Delta cannot read a version of a table any more: files or commits of it are gone."""
    return bool(_GONE.search(str(error)))


@dataclass
class _File:
    """A data file before and after a range of commits: its action, or `_ABSENT`."""

    before: Any = _ABSENT
    after: Any = _ABSENT


@dataclass(frozen=True, kw_only=True)
class TableChange:
    """What has changed in a table between two versions. Each file is the action that adds it; `kept`: files
    that have other deleted rows, before and after."""

    table: Location
    version: int  # the newer version
    added: Sequence[Mapping[str, Any]] = ()
    removed: Sequence[Mapping[str, Any]] = ()
    kept: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.kept)

    @property
    def only_adds(self) -> bool:
        return not (self.removed or self.kept)

    @property
    def size_bytes(self) -> int:
        """The size of the files that must be read."""
        files = [*self.added, *self.removed, *(one for one, _ in self.kept)]
        return sum(int(one.get("size") or 0) for one in files)

    @property
    def rows(self) -> int:
        """How many rows were gained and lost; at most, where statistics are missing."""
        whole = sum(map(_live_rows, (*self.added, *self.removed)))
        return whole + sum(abs(_deleted(after) - _deleted(before)) for before, after in self.kept)

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
    return session.read.format("delta").option("versionAsOf", version).load(str(table))


def find_change(table: Location, first: int, last: int) -> TableChange:
    """What has changed in a table after version `first`, up to version `last`.

    Raises:
        UnknownChangeError: The log does not say it.
    """
    if last < first:
        raise UnknownChangeError("an older version was restored")
    if last - first > _MOST_COMMITS:
        raise UnknownChangeError(f"it has {last - first:,} new commits")
    files: dict[str, _File] = {}
    names = {version: commit_file(table, version).name for version in range(first + 1, last + 1)}
    held = (table / "_delta_log").read_files(list(names.values()))
    for version, name in names.items():
        if name not in held:
            raise UnknownChangeError("its log no longer has all commits since then")
        _apply(files, table, version, held[name])
    added = [one.after for one in files.values() if one.before is _ABSENT and one.after is not _ABSENT]
    removed = [one.before for one in files.values() if one.after is _ABSENT and one.before is not _ABSENT]
    kept = [
        (one.before, one.after)
        for one in files.values()
        if one.before is not _ABSENT
        and one.after is not _ABSENT
        and _vector(one.before) != _vector(one.after)
    ]
    return TableChange(table=table, version=last, added=added, removed=removed, kept=kept)


def _apply(files: dict[str, _File], table: Location, version: int, data: bytes) -> None:
    file = commit_file(table, version)
    gone: dict[str, Mapping[str, Any]] = {}
    come: dict[str, Mapping[str, Any]] = {}
    has_columns = False
    for line in action_lines(file, data):
        # Other writers can put spaces between the parts of a line.
        for name, action in () if '"dataChange":false' in line else parse_actions(line, file).items():
            if name == "commitInfo" and action.get("operation") in _WHOLE:
                raise UnknownChangeError(f"version {version} is a {action['operation']}")
            if name == "protocol":
                raise UnknownChangeError(f"version {version} changes its table features")
            if name == "metaData":
                has_columns = True
                if action.get("configuration", {}).get(_MAPPING, "none") != "none":
                    # A column can have been dropped and added again: its values are gone.
                    raise UnknownChangeError(f"version {version} changes columns or properties")
            if name in ("add", "remove") and action.get("dataChange", True):
                (come if name == "add" else gone)[unquote(str(action["path"]))] = action
    if has_columns and gone:
        raise UnknownChangeError(f"version {version} replaces the table and its columns")
    for path, action in gone.items():
        one = files.get(path)
        if one is None:
            if action.get("partitionValues") is None:
                raise UnknownChangeError(f"version {version} does not describe the files that it removes")
            # The file that is added again has statistics, which the removal may lack.
            text = {key: action[key] for key in _KEPT if action.get(key) is not None}
            stats = action.get("stats") or come.get(path, {}).get("stats")
            text |= {"modificationTime": 0, "dataChange": True, "stats": stats}
            one = files[path] = _File(before=text)
        one.after = _ABSENT
    for path, action in come.items():
        files.setdefault(path, _File()).after = action


def _vector(action: Mapping[str, Any]) -> str:
    return json.dumps(action.get("deletionVector"), sort_keys=True)


def _deleted(action: Mapping[str, Any]) -> int:
    return int((action.get("deletionVector") or {}).get("cardinality", 0))


def _live_rows(action: Mapping[str, Any]) -> int:
    return int(json.loads(action.get("stats") or "{}").get("numRecords", 0)) - _deleted(action)
