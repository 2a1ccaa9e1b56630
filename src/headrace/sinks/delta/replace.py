"""A materialized view: a Delta table whose rows one commit replaces, so that no reader sees it empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from headrace.model.ranges import SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.commit import append_refresh, commit_refresh, commit_replacement
from headrace.sinks.delta.table import delta_log
from headrace.sinks.delta.transaction import WrittenFiles, prepend, table_properties, write_files
from headrace.sinks.target import BatchWriter, Committed, RefreshStamp, SplitRows
from headrace.storage.location import Location
from headrace.storage.row_counts import count_added_rows, last_refresh
from headrace.storage.table_log import commit_file, is_table, load_commit

_MOST_FILES = 100
"""Each file of a view takes a few JVM calls; with more files, Delta's own writer is faster."""


_MOST_COMMITS = 5
"""How many of the newest commits are searched for the last refresh; later commits change only properties."""

_KEPT = frozenset({"kept", "increment"})
"""Parts of the metadata of a refresh that has kept rows of the view."""
_ADDED = '{"add"'
_FILE_LINES = (_ADDED, '{"remove"')


@dataclass(frozen=True, kw_only=True)
class ReplaceTarget:
    """A Delta table whose rows are replaced by each refresh. `is_streamed`: whether a stream reads the view.
    A refresh that removes and changes no row is then committed as an append of the new rows."""

    path: Location
    quarantine: Location
    partition_cols: tuple[str, ...] = ()  # the columns that lay the files out in folders
    cluster_by: tuple[str, ...] = ()  # the columns that cluster the files of a new table
    is_streamed: bool = False

    @property
    def location(self) -> str:
        return str(self.path)

    def begin(self, session: SparkSession, stamp: RefreshStamp) -> Replacer | None:
        """Begin a refresh; ``None`` if the view is up to date. One that reads other things than tables never
        is."""
        if (
            stamp.inputs
            and not stamp.varies
            and find_stale(self.path, self.quarantine, stamp.definition, stamp.inputs) is None
        ):
            return None
        return Replacer(self, stamp)


@dataclass
class Replacer(BatchWriter):
    _target: ReplaceTarget
    stamp: RefreshStamp
    _rows: SplitRows | None = None
    _counted: int | None = None
    _transaction: Any = None
    _files: WrittenFiles | None = None

    def write(self, rows: SplitRows) -> None:
        self._rows = rows
        target = self._target
        if not target.is_streamed and is_table(target.path):
            session = rows.accepted.sparkSession
            transaction = delta_log(session, target.path).startTransaction()
            files = _replaced_files(rows.accepted, transaction, target)
            if files is not None:
                # A concurrent commit of other rows is then a conflict.
                transaction.readWholeTable()
                written = write_files(transaction, rows.accepted)
                for file in files:
                    written = replace(written, actions=prepend(written.actions, file.remove()))
                self._transaction, self._files = transaction, written
                return
        # Delta's writer computes, writes and commits the rows in one call. Rows that are kept are counted
        # before, for the commit's metadata.
        if target.is_streamed:
            rows.keep()
        self._counted = rows.accepted.count() if rows.is_kept else None

    def commit(self, ranges: tuple[SourceRange, ...] | None = None) -> Committed:
        assert self._rows is not None, "the rows are written first"
        target = self._target
        if self._files is not None:
            counted = self._rows.counts(self._files.rows)
            session = self._rows.accepted.sparkSession
            version = commit_replacement(session, self._transaction, self._files, self.stamp, counted)
            return Committed(version=version, counts=counted)
        counts = None if self._counted is None else self._rows.counts(self._counted)
        added = added_rows(self._rows.accepted, target.path) if target.is_streamed else None
        if added is not None:
            assert counts is not None, "the rows are kept, so they are counted"
            kept = added.sparkSession.read.format("delta").load(str(target.path)).count()
            version = append_refresh(added, target.path, self.stamp, counts=counts, kept=kept)
            return Committed(version=version, counts=counts)
        version = commit_refresh(
            self._rows.accepted,
            target.path,
            self.stamp,
            counts=counts,
            partition_cols=target.partition_cols,
            # An existing table is clustered anew by ALTER TABLE.
            cluster_by=() if is_table(target.path) else target.cluster_by,
        )
        counts = counts or self._rows.counts(count_added_rows(target.path, version))
        return Committed(version=version, counts=counts)


def _replaced_files(rows: DataFrame, transaction: Any, target: ReplaceTarget) -> list[Any] | None:
    """The files of a view, in the JVM, if Headrace can replace them without Delta's public writer.

    If the newest commit with files is a refresh, it lists all files of the view. Delta's writer would compute
    them with a Spark job over the whole log.
    """
    session = rows.sparkSession
    jvm: Any = session._jvm
    metadata = transaction.metadata()
    if (
        "catalogManaged" in transaction.protocol().toString()
        or rows._jdf.schema().asNullable().json() != metadata.schemaString()
        or table_properties(session, transaction).get("delta.appendOnly") == "true"
        or metadata.partitionColumns().mkString("\n") != "\n".join(target.partition_cols)
    ):
        return None
    lines = _lines_of_files(target.path, int(transaction.snapshot().version()))
    if lines is None:
        return None
    action = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$")
    return [action.fromJson(line) for line in lines]


def _lines_of_files(table: Location, version: int) -> list[str] | None:
    """The files of a view as lines of its log, if the newest commit with files is a refresh of all rows."""
    for number in range(version, max(-1, version - _MOST_COMMITS), -1):
        if not commit_file(table, number).exists():
            return None
        lines = commit_file(table, number).read_lines()
        found = list(islice((line for line in lines if line.startswith(_FILE_LINES)), 2 * _MOST_FILES))
        if found:
            metadata = load_commit(table, number).metadata
            is_refresh = metadata is not None and "view" in metadata and _KEPT.isdisjoint(metadata)
            added = [line for line in found if line.startswith(_ADDED)]
            return added if is_refresh and len(found) < 2 * _MOST_FILES else None
        if not load_commit(table, number).engine.startswith("Apache-Spark"):
            # Another writer can format the lines differently.
            return None
    return None


def added_rows(rows: DataFrame, path: Location) -> DataFrame | None:
    """The rows that a refresh adds to a view; ``None`` if it also changes or removes rows."""
    if not is_table(path):
        return None
    stored = rows.sparkSession.read.format("delta").load(str(path))
    # Delta stores every field and element as nullable.
    if stored.schema.simpleString() != rows.schema.simpleString():
        return None
    if any(kind in rows.schema.simpleString() for kind in ("map<", "variant", "geometry", "geography")):
        return None
    return None if stored.exceptAll(rows).take(1) else rows.exceptAll(stored)


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Why a view's table is not what its query returns now."""

    part: Literal["table", "quarantine", "query", "inputs"]
    inputs: tuple[str, ...] = ()


def find_stale(
    path: Location, quarantine: Location, definition: str, inputs: Mapping[str, Mapping[str, Any]]
) -> Stale | None:
    """Why a view must be computed again; ``None`` if it is up to date."""
    last = last_refresh(path)
    if last is None:
        return Stale(part="table")
    if lacks_quarantine(last, quarantine):
        return Stale(part="quarantine")
    if last.get("definition") != definition:
        return Stale(part="query")
    seen = last.get("inputs") or {}
    changed = {name for name, now in inputs.items() if not now.items() <= seen.get(name, {}).items()}
    changed |= seen.keys() - inputs.keys()
    return Stale(part="inputs", inputs=tuple(sorted(changed))) if changed else None


def lacks_quarantine(last: Mapping[str, Any], quarantine: Location) -> bool:
    """Whether a refresh has rejected rows, and their table does not exist any more."""
    return bool(last.get("quarantined")) and not is_table(quarantine)
