"""A Delta table that is read as a stream: as it is now, how a flow can continue with it, positions in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from headrace import errors
from headrace.errors import SourceLocation
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession
from headrace.sources.kind import Meaning
from headrace.sources.parts import FileParts, file_uri, row_number
from headrace.state.facts import FlowFacts, History, NextPosition, ReadBefore, SourceFacts
from headrace.state.starting_positions import require_whole, resume_impossible
from headrace.storage import table_log
from headrace.storage.location import Location

MEANINGS = (
    Meaning(
        message=re.compile("DELTA_MISSING_CHANGE_DATA"),
        error=errors.ChangeFeedMissingError,
        what="{table} has no change data feed for the versions that the query reads",
        remedy="set startingVersion to the version that enabled the change data feed, or to a later one",
    ),
    Meaning(
        message=re.compile(
            r"DELTA_VERSION_NOT_FOUND|DELTA_TIMESTAMP_(GREATER|EARLIER|INVALID)|DELTA_TIME_TRAVEL"
            # Columns of another type since then: such commits cannot be read as they are now.
            r"|DELTA_ILLEGAL_OPTION|DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS"
        ),
        error=errors.StartInvalidError,
        what="{table} cannot be read from the starting version or timestamp of the query",
        remedy="correct startingVersion or startingTimestamp",
    ),
    Meaning(
        message=re.compile(
            r"DELTA_MISSING_FILES_UNEXPECTED_VERSION|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSIONS_NOT_CONTIGUOUS"
            r"|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_STREAMING_TRAILING_COMMIT_MISSING"
        ),
        error=errors.UpstreamLogExpiredError,
        what="{table} no longer has the log of commits that the flow has not read yet",
        facts=("to continue could skip rows; nothing was written",),
    ),
    Meaning(
        message=re.compile(r"DELTA_FILE_NOT_FOUND|_change_data/\S* does not exist"),
        error=errors.UpstreamLogExpiredError,
        what="{table} no longer has files that the flow has not read yet (VACUUM deletes them)",
        facts=("to continue could skip rows; nothing was written",),
    ),
    Meaning(
        message=re.compile(
            r"DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE|DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING"
            r"|DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"
        ),
        error=errors.UpstreamSchemaChangedError,
        what="{table} has renamed or dropped a column, or changed its type",
        facts=("commits before the change cannot be read with the new columns; nothing was written",),
    ),
    Meaning(
        message=re.compile(r"DELTA_SOURCE_TABLE_IGNORE_CHANGES|DELTA_SOURCE_IGNORE_DELETE"),
        error=errors.UpstreamRewrittenError,
        what="{table} has changed rows that the flow had already read",
    ),
)
"""What Delta's messages about a table that is read as a stream mean."""


@dataclass(frozen=True, kw_only=True)
class DeltaPosition(Position):
    table_id: str
    version: int
    index: int  # the last file of it that was read; negative before the first one
    # Whether the files are those of the snapshot that the stream starts with, and not those that the
    # version added
    is_snapshot: bool = False
    format: int | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DeltaPosition:
        try:
            return cls(
                table_id=str(value["reservoirId"]),
                version=int(value["reservoirVersion"]),
                index=int(value["index"]),
                is_snapshot=bool(value.get("isStartingVersion", False)),
                format=value.get("sourceVersion"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a position in a Delta table: {value!r}") from error

    def to_json(self) -> dict[str, Any]:
        # Spark compares positions as text; this is Delta's order.
        return {
            **({} if self.format is None else {"sourceVersion": self.format}),
            "reservoirId": self.table_id,
            "reservoirVersion": self.version,
            "index": self.index,
            "isStartingVersion": self.is_snapshot,
        }

    @property
    def last_version(self) -> int:
        return self.version - 1 if self.index < 0 else self.version

    @property
    def first_commit(self) -> int:
        """The first version from here on that is read as a commit, and not as a snapshot."""
        return self.version + 1 if self.is_snapshot else self.version


@dataclass(frozen=True)
class TableFiles:
    """The files of a table between two positions of a stream."""

    session: SparkSession
    index: Any  # delta's index of the files, a ``TahoeBatchFileIndex``

    @classmethod
    def between(
        cls,
        session: SparkSession,
        path: str,
        options: Mapping[str, str],
        one: SourceRange,
        checkpoint: Location,
    ) -> TableFiles:
        jvm: Any = session._jvm
        # Delta's own stream decides which files are between the positions. It is not started.
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        given = {name: value for name, value in options.items() if name.lower() != "path"}
        options_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({**given, "path": path})
        stream = jvm.org.apache.spark.sql.delta.sources.DeltaDataSource().createSource(
            session._jsparkSession.sqlContext(), str(checkpoint), none, "delta", options_map
        )
        start = none if one.start is None else jvm.scala.Some(_offset(jvm, one.start))
        frame = stream.getBatch(start, _offset(jvm, one.until))
        return cls(session, frame.queryExecution().analyzed().relation().location())

    @cached_property
    def paths(self) -> list[str]:
        """The files as Spark writes them in ``_metadata.file_path``, in order."""
        return [file_uri(path) for path in self.index.inputFiles()]

    def read(self, parts: FileParts | None = None) -> DataFrame:
        from pyspark.sql import DataFrame

        jvm: Any = self.session._jvm
        files = self.index.addFiles()
        if parts is not None:
            chosen = {*parts.paths}
            kept = [files.apply(n) for n, path in enumerate(self.paths) if path in chosen]
            files = jvm.org.apache.spark.api.python.PythonUtils.toSeq(kept)
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        made = self.index.deltaLog().createDataFrame(self.index.snapshot(), files, False, none)
        frame = DataFrame(made, self.session)
        if parts is None:
            return frame
        # Delta has a row index only for tables with deletion vectors. Other files are read whole.
        index = F.col("_metadata.row_index")
        has_index = "row_index" in frame.select("_metadata.*").columns
        return parts.choose(frame, index if has_index else row_number())


def versions_of_files(table: Location, one: SourceRange) -> dict[str, int]:
    """The version that added each file of a range, by the name of the file; without those of a snapshot."""
    start, until = one.start, one.until
    assert isinstance(until, DeltaPosition)
    if until.is_snapshot:
        return {}
    first = start.first_commit if isinstance(start, DeltaPosition) else until.version
    found: dict[str, int] = {}
    for commit in table_log.follow_commits(table, first, until.last_version):
        for _, action in table_log.read_actions(table_log.commit_file(table, commit.version), "add"):
            found[unquote(action["path"]).rpartition("/")[2]] = commit.version
    return found


def _offset(jvm: Any, position: Position) -> Any:
    """A position as Spark's offset log gives it to a stream."""
    assert isinstance(position, DeltaPosition)
    text = json.dumps(position.to_json())
    return jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset(text)


@dataclass(frozen=True, kw_only=True)
class DeltaFacts(SourceFacts):
    keys = ("table_id",)

    location: SourceLocation | None = None
    # How the table differs from the version that was read, if an older copy was restored
    rolled_back: str | None = None
    # The first commit that changes rows and that the flow has not read yet
    rewritten: table_log.LoggedCommit | None = None
    # The first version that the flow has not read and that the log no longer has
    missing: int | None = None

    @property
    def path(self) -> str:
        return str(self.source.identity["path"])

    def check(self, flow: FlowFacts) -> None:
        if self.rolled_back is not None:
            raise self._restored(flow, self.rolled_back)
        if self.rewritten is not None:
            location = self.location or flow.location
            raise rewritten(flow.flow, flow.short_dataset, self.path, location, self.rewritten)
        if self.missing is not None:
            location = self.location or flow.location
            raise log_expired(flow.flow, flow.short_dataset, self.path, location, self.missing)

    def _restored(self, flow: FlowFacts, how: str) -> errors.UpstreamRewrittenError:
        return errors.UpstreamRewrittenError(
            f"flow {flow.flow}: an older copy of the table {self.path}, which it reads, was restored",
            location=flow.location,
            facts=(how, "to continue would skip or repeat rows; nothing was read or written"),
            remedies=(f"read everything again:   headrace full-refresh {flow.short_dataset}",),
            params={"flow": flow.flow, "dataset": flow.dataset, "tables": [self.path]},
        )

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        if super().is_same(flow, then):
            return True
        raise errors.SourcesChangedError(
            f"flow {flow.flow}: the table {self.path}, which it reads, was deleted and created again",
            location=flow.location,
            facts=("nothing was read or written",),
            remedies=(f"read everything again:   headrace full-refresh {flow.short_dataset}",),
            params={"flow": flow.flow, "source": self.source.index},
        )

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        reads = self.last_reads(history)
        if not reads:
            require_whole(flow, history, self.path)
            return None
        # A position names the version of its own format, too.
        ends = [replace(DeltaPosition.from_json(read.until), format=None) for read in reads]
        if any(end != ends[0] for end in ends):
            why = f"its query has read {self.path} twice, at different versions"
            raise resume_impossible(flow, why)
        return NextPosition(DeltaPosition.from_json(reads[0].until))


def rewritten(
    flow: str, target: str, table: str, location: SourceLocation, commit: table_log.LoggedCommit
) -> errors.UpstreamRewrittenError:
    name = table.rpartition("/")[2]
    summary = f"{flow}: {name}, which it reads as a stream, has changed rows that it had already read"
    facts = (
        f"version {commit.version}: {commit.operation} by {commit.engine}",
        "a stream skips commits that only delete rows, but no other changes; nothing was written",
    )
    *_, folder, schema, _ = ["", "", *table.rsplit("/", 3)]
    of_storage = name if schema == "default" else f"{schema}.{name}"
    changes = f'hr.read_changes("{of_storage if folder == "tables" else table}")'
    refresh = f"headrace full-refresh {target}"
    again = f"read everything again, now and after each such commit:   {refresh}"
    remedies: tuple[str, ...] = (
        f"read its changes; {target} keeps its rows, and gets one more row for each change from version "
        f"{commit.version} on, with _change_type:   {changes}",
        f"or {again}",
    )
    if not commit.has_feed:
        begin = "or read its changes, each with _change_type, beginning with the rows that it has now"
        remedies = (again, f"{begin}:   {changes}", f"and then:   {refresh}")
    if commit.refreshes_view:
        did = "a refresh changed or removed its rows"
        summary = f"{flow} reads the materialized view {name} as a stream, and {did}"
        facts = (
            f"version {commit.version} replaces the rows of the view",
            "a stream reads a materialized view only while its refreshes add rows; nothing was written",
        )
        remedies = (
            "read the view with spark.read, in a materialized view",
            "or read the tables that the view reads as a stream",
            f"or {again}",
        )
    return errors.UpstreamRewrittenError(
        summary,
        location=location,
        facts=facts,
        remedies=remedies,
        params={"name": flow, "table": table, "version": commit.version},
    )


def log_expired(
    flow: str, target: str, table: str, location: SourceLocation, version: int
) -> errors.UpstreamLogExpiredError:
    """The error for a version that a flow has not read yet and that the log no longer has."""
    name = table.rpartition("/")[2]
    return errors.UpstreamLogExpiredError(
        f"{flow}: {name}, which it reads as a stream, no longer has commits that it has not read yet",
        location=location,
        facts=(
            f"the log no longer has version {version}",
            "to continue could skip rows; nothing was written",
        ),
        remedies=(f"read everything again:   headrace full-refresh {target}",),
        params={"name": flow, "table": table, "version": version},
    )


def find_change(table: Location) -> tuple[table_log.LoggedCommit, str] | None:
    """The newest commit that renames or drops columns, or changes their types, and what it has done."""
    later: tuple[int, Mapping[str, tuple[str, Any]]] | None = None
    for version in reversed(table_log.versions(table)):
        for _, action in table_log.read_actions(table_log.commit_file(table, version), "metaData"):
            columns = _columns(json.loads(action["schemaString"]))
            if later is not None and (changes := ", and ".join(_changes(columns, later[1]))):
                return table_log.load_commit(table, later[0]), changes
            later = version, columns
    return None


def _columns(schema: Mapping[str, Any]) -> Mapping[str, tuple[str, Any]]:
    """The names and types of columns, by their names in files."""
    key = "delta.columnMapping.physicalName"
    return {one["metadata"].get(key, one["name"]): (one["name"], one["type"]) for one in schema["fields"]}


def _changes(then: Mapping[str, tuple[str, Any]], now: Mapping[str, tuple[str, Any]]) -> Iterator[str]:
    for key, (name, kind) in then.items():
        if key not in now:
            yield f"dropped its column `{name}`"
        elif now[key][0] != name:
            yield f"renamed its column `{name}` to `{now[key][0]}`"
        elif now[key][1] != kind:
            yield f"changed the type of its column `{name}`"
