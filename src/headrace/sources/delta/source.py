"""Delta tables as a source of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from headrace.errors import HeadraceError, SourceLocation, UpstreamMissingError, UpstreamSchemaChangedError
from headrace.model.declarations import StreamingFlow
from headrace.model.lineage import DatasetId, of_path
from headrace.model.names import FEED_COLUMNS, TableName
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position, SourceRange
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession
from headrace.sources.delta.facts import (
    MEANINGS,
    DeltaFacts,
    DeltaPosition,
    TableFiles,
    find_change,
    log_expired,
    rewritten,
    versions_of_files,
)
from headrace.sources.delta.reader import (
    DELTA_MAX_BYTES_PER_TRIGGER,
    ERASURES_ONLY,
    DeltaReader,
    check_table_start,
    reads_feed,
    skips_changes,
    starting_version,
)
from headrace.sources.kind import FailedQuery, Guard, SourceKind
from headrace.sources.limits import Meter, Taken
from headrace.sources.parts import (
    FILE_RECORD,
    FILE_ROW,
    ROW_JSON,
    FilePart,
    FileParts,
    Part,
    as_record,
    file_uri,
    range_of,
)
from headrace.sources.requests import Lag, Past, Seed, Seeding, SourceRead, StreamRead, Systems
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import ListOrigin, SourceFacts
from headrace.storage.layout import locate, shown_path
from headrace.storage.location import Location
from headrace.storage.table_log import (
    LoggedCommit,
    added_bytes,
    commit_file,
    describe_rollback,
    find_missing,
    follow_commits,
    last_checkpoint,
    load_commit,
    mark_version,
    newest_version,
    versions,
)

_MAPPING = "delta.columnMapping.mode"
_WIDENING = "delta.enableTypeWidening"
_CHANGES_COLUMNS = frozenset({"RENAME COLUMN", "DROP COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS"})
_READS_OLD_NAMES = (
    "spark.databricks.delta.streaming.unsafeReadOnIncompatibleColumnMappingSchemaChanges.enabled"
)
"""With this setting, a stream reads older rows with the current columns, as a batch query does."""
_CHECKS_LAST_BATCH = "spark.databricks.delta.streaming.trailingCommitValidation.enabled"
"""At a restart, Spark plans the last batch again. An erasure may have removed its commits from the log."""
_PLAIN_FEED = frozenset(
    {"path", "readchangefeed", "readchangedata", "startingversion", "startingtimestamp", "maxfilespertrigger"}
    | {"maxbytespertrigger"}
)
"""The options, in lower case, with which a change feed has each change."""
_SLOW_S = 1.0
"""A batch that is shorter is not worth a look at how much is left."""
_LEAST_BYTES = 1 << 20
"""Bytes that every batch may take."""
_COUNTED = 500
"""Commits that a lag is counted over; a longer one is not known."""


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Source):
    kind = "delta"
    reads_records = True
    has_metadata = False

    path: str
    table: TableName | None = None
    # Whether the read passes over what others erase from the table, and over nothing else
    erasures_only: bool = False

    @property
    def skips_erasures(self) -> bool:
        return self.erasures_only

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        return not self.reads_feed

    @property
    def reads_feed(self) -> bool:
        """Whether the change data feed of the table is read, and not its rows."""
        return reads_feed(self.options)

    @property
    def limits_feed(self) -> bool:
        limits = ("maxFilesPerTrigger", "maxBytesPerTrigger")
        return self.reads_feed and not self.adaptive and any(self.option(name) is not None for name in limits)

    @property
    def feed_start(self) -> Literal["all", "later"] | None:
        given = {name.lower() for name in self.options if not name.lower().startswith("headrace.")}
        if not self.reads_feed or given - _PLAIN_FEED:
            return None
        version, moment = self.option("startingVersion"), self.option("startingTimestamp")
        return "all" if moment is None and version in (None, "0") else "later"

    @property
    def skips_changes(self) -> bool:
        """Whether the query itself asks to pass over commits that change or remove rows."""
        return not self.erasures_only and skips_changes(self.options)

    @property
    def feed(self) -> TableName | None:
        return self.table if self.reads_feed else None

    @property
    def begins_with_snapshot(self) -> bool:
        starts = ("startingVersion", "startingTimestamp")
        return self.table is None and all(self.option(name) is None for name in starts)

    def describe(self) -> str:
        return f"delta {self.path}" if self.table is None else f"table {self.table}"

    def datasets(
        self, settings: ProjectSettings, identity: Mapping[str, Any] | None = None
    ) -> tuple[DatasetId, ...]:
        return (of_path(self.path, settings.data_folder),)

    def label(self, root: Path) -> str:
        return f"delta {shown_path(self.path, root)}"

    @property
    def table_location(self) -> Location:
        return locate(self.path, source=self.location)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "table": None if self.table is None else str(self.table)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], location: SourceLocation) -> DeltaSource:
        table = value["table"]
        return super().from_json({**value, "table": table and TableName.parse(table, "")}, location)

    def common_input(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        same = isinstance(other, DeltaSource) and (self.table, self.path) == (other.table, other.path)
        return f"the table {self.table or self.path}" if same else None

    def look(self, systems: Systems, past: Past) -> DeltaFacts:
        path = self.table_location
        if not versions(path):
            raise self._missing(past.flow)
        source = self.identity({"table_id": systems.read_table(path).table_id, "path": self.path})
        reads = past.history.last_reads(source, DeltaFacts.keys)
        marks = (read.marks["seen"] for read in reads if read.marks.get("seen") is not None)
        firsts = [DeltaPosition.from_json(read.until).first_commit for read in reads]
        ahead = (commit for first in firsts for commit in follow_commits(path, first))
        gaps = (find_missing(path, first, newest_version(path)) for first in firsts)
        return DeltaFacts(
            source=source,
            location=self.location,
            rolled_back=next(filter(None, (describe_rollback(path, seen) for seen in marks)), None),
            rewritten=None if self.reads_feed else next(filter(self.refuses, ahead), None),
            missing=next((one for one in gaps if one is not None), None) if self.erasures_only else None,
        )

    def refuses(self, commit: LoggedCommit) -> bool:
        """Whether a commit changes rows that the stream may have read, and it cannot pass over the commit."""
        if self.reads_feed or not commit.rewrites:
            return False
        if self.erasures_only:
            return commit.is_ours or not commit.is_erasure
        # A user's own option may pass over changed rows, and never over a full refresh of ours.
        return commit.is_ours and (commit.opens or not self.skips_changes)

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        if is_new:
            path = self.table_location
            check_table_start(
                self.options,
                path,
                name=str(self.table or self.path),
                is_outside=self.table is None,
                properties=systems.read_table(path).properties,
                location=self.location,
            )

    def is_drained(self, facts: SourceFacts, position: Position, checkpoint: Location) -> bool:
        assert isinstance(position, DeltaPosition)
        if position.index != -1:
            return False
        # A stream's position stays before commits that bring it nothing.
        path = self.table_location
        known, first = versions(path), position.version
        if self.erasures_only and known and first < known[0]:
            first = known[0] if load_commit(path, known[0]).passes_from(first) else first
        ahead = list(follow_commits(path, first))
        if self.erasures_only and any(commit.erased_since is not None for commit in ahead):
            # An empty batch moves the position, so that the flow needs nothing from before the erasure.
            return False
        return known[-1:] == (first + len(ahead) - 1,) and all(
            not commit.changes_data
            or (self.erasures_only and not commit.adds_rows)
            or (self.skips_changes and commit.removes_data and not self.refuses(commit))
            for commit in ahead
        )

    def settings(self, position: Position | None, systems: Systems) -> Mapping[str, str]:
        if self.reads_feed:
            # Delta refuses to read a change feed across a change of columns.
            return {}
        path = self.table_location
        known = versions(path)[:1] if self.erasures_only and isinstance(position, DeltaPosition) else ()
        found = {}
        if known and isinstance(position, DeltaPosition) and known[0] > position.last_version:
            found[_CHECKS_LAST_BATCH] = "false"
        properties = systems.read_table(path).properties
        if properties.get(_MAPPING, "none") == "none" and properties.get(_WIDENING) != "true":
            return found
        ahead = follow_commits(path, position.version) if isinstance(position, DeltaPosition) else None
        # An erasure may have removed the commits of the last batch from the log, with their columns.
        is_whole = ahead is not None and known in ((), (0,))
        if is_whole and all(commit.operation not in _CHANGES_COLUMNS for commit in ahead or ()):
            return found
        return {**found, _READS_OLD_NAMES: "true"}

    def meter(self, systems: Systems) -> DeltaMeter | None:
        return DeltaMeter() if self.adaptive else None

    def read_range(self, read: SourceRead, one: SourceRange | None, checkpoint: Location) -> DataFrame:
        if one is None:
            return read.session.read.format("delta").load(self.path).limit(0)
        if isinstance(one.until, FileParts):
            found: TableFiles = one.until.parts[0].files
            return found.read(one.until)
        return TableFiles.between(read.session, self.path, self.options, one, checkpoint).read()

    def read_records(self, read: SourceRead, records: DataFrame) -> DataFrame:
        """Rows that were kept as JSON. A row that does not fit the table's columns raises an error."""
        schema = read.session.read.format("delta").load(self.path).schema
        value = F.col("value").cast("string")
        # The table may have renamed or dropped columns since: their values would be lost without a report.
        known = F.array(*map(F.lit, [*schema.fieldNames(), *FEED_COLUMNS]))
        unknown = F.array_except(F.json_object_keys(value), known)
        problem = F.concat(F.lit(f"{self.path} has no column "), F.array_join(unknown, ", "))
        row = F.from_json(value, schema, {**ROW_JSON, "mode": "FAILFAST"})
        checked = F.when(F.size(unknown) > 0, F.raise_error(problem)).otherwise(row)
        return records.select(checked.alias("row")).select("row.*")

    def owns(self) -> Column:
        folder = file_uri(f"file:{self.path}" if self.path.startswith("/") else self.path)
        return F.col("value").isNotNull() & F.col("path").startswith(f"{folder}/")

    def first_commit(self, one: SourceRange, session: SparkSession) -> int | None:
        """The first version that a range reads as a commit; ``None`` while it reads a snapshot."""
        if isinstance(one.start, DeltaPosition):
            return one.start.first_commit
        assert isinstance(one.until, DeltaPosition)
        if one.until.is_snapshot:
            return None
        if (moment := self.option("startingTimestamp")) is not None:
            return starting_version(session, self.table_location, moment)
        given = self.option("startingVersion") or ""
        return int(given) if given.isdigit() else None

    def _missing(self, flow: StreamingFlow) -> UpstreamMissingError:
        name = self.path if self.table is None else self.table.short
        return UpstreamMissingError(
            f"flow {flow.name} reads {name}, whose table does not exist",
            location=flow.location,
            facts=("nothing was read or written",),
            remedies=("run the pipeline that creates the table, or correct the path",)
            if self.table is None
            else (f"run both:   headrace run {name} {flow.target.short}",),
            params={"flow": flow.name, "table": self.path if self.table is None else str(self.table)},
        )


class DeltaMeter(Meter):
    """Sees whether a batch was cut short by its limit: the bytes that a batch reads are not counted."""

    least = _LEAST_BYTES

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        return DELTA_MAX_BYTES_PER_TRIGGER

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        assert isinstance(one.until, DeltaPosition)
        # Whether the table held more rows than the batch read
        is_cut = one.until.index >= 0 or (
            duration_s >= _SLOW_S and one.until.version < newest_version(locate(one.identity["path"]))
        )
        return Taken(limit if is_cut else 0, duration_s)


class DeltaGuard(Guard):
    """Marks the last commit that was read of each table, and refuses rows that were changed."""

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        for one in ranges:
            yield replace(one, marks=self._marks(one))

    def _marks(self, one: SourceRange) -> dict[str, Any]:
        """The mark of the last version that was read, and the erasures that were passed over."""
        assert isinstance(one.until, DeltaPosition)
        planned = next(source for source in self.run.planned if source.index == one.index)
        assert isinstance(planned, DeltaSource)
        path = locate(one.identity["path"])
        seen, flow = mark_version(path, one.until.last_version), self.run.flow
        if planned.reads_feed:
            return {} if seen is None else {"seen": seen}
        first, last = planned.first_commit(one, self.run.session), one.until.last_version
        commits = () if first is None else follow_commits(path, first, last)
        changed = [commit for commit in commits if commit.rewrites]
        for commit in changed:
            if planned.refuses(commit):
                raise rewritten(flow.name, flow.target.short, str(path), planned.location, commit)
        checks = planned.erasures_only and first is not None
        if checks and (missing := find_missing(path, first or 0, last)) is not None:
            raise log_expired(flow.name, flow.target.short, str(path), planned.location, missing)
        passed = {"passed": [commit.version for commit in changed]} if changed else {}
        return {} if seen is None else {"seen": {**seen, **passed}}


class DeltaKind(SourceKind):
    source = DeltaSource
    guard = DeltaGuard
    reader = DeltaReader()
    record = FILE_RECORD
    meanings = MEANINGS
    transient = r"DELTA_SCHEMA_CHANGED(?!_WITH_STARTING_OPTIONS)"
    coordinates = FILE_ROW
    keys = DeltaFacts.keys

    def opens(self, format: str) -> bool:
        return format == "delta"

    def explain_failure(self, failed: FailedQuery) -> HeadraceError | None:
        error = super().explain_failure(failed)
        if not isinstance(error, UpstreamSchemaChangedError):
            return error
        own = [one for one in failed.sources if isinstance(one, DeltaSource)]
        if len(own) != 1 or (found := find_change(own[0].table_location)) is None:
            return error
        commit, what = found
        now = f"remove the rows of {failed.target}, and begin with the rows that the table has now"
        return error.with_(
            summary=f"{failed.name}: {own[0].describe()}, which it reads, has {what}",
            facts=(
                f"version {commit.version}: {commit.operation} by {commit.engine}",
                "earlier changes cannot be read with the new columns; nothing was written",
            ),
            remedies=(
                f"{now}; its earlier changes are not read again:   headrace full-refresh {failed.target}",
            ),
        )

    def build(self, read: StreamRead) -> DeltaSource:
        options = dict(read.options)
        erasures_only = options.pop(ERASURES_ONLY, None) is not None
        path = options.get("path", "")
        if read.table is not None:
            options.pop("path", None)
            path = str(read.settings.storage.table(read.table))
        return DeltaSource(
            **replace(read, options=options).common,
            path=str(locate(path, source=read.location)) if path else path,
            table=read.table,
            erasures_only=erasures_only,
        )

    def position(self, value: Mapping[str, Any]) -> DeltaPosition:
        return DeltaPosition.from_json(value)

    def describe(self, source: SourceIdentity) -> str:
        return f"delta {source.identity.get('path')}"

    def describe_range(self, one: SourceRange) -> tuple[str, ...]:
        assert isinstance(one.until, DeltaPosition)
        (table,), last = super().describe_range(one), one.until.last_version
        first = one.start.version if isinstance(one.start, DeltaPosition) else one.until.first_commit
        versions = f"version {last}" if first >= last else f"versions {first} to {last}"
        return (f"{table}, {versions}",)

    def parts(
        self, one: SourceRange, source: Source, session: SparkSession, checkpoint: Location
    ) -> Sequence[FilePart] | None:
        assert isinstance(source, DeltaSource)
        start = source.option("startingVersion") or ""
        if not source.rereads or (one.start is None and start.lower() == "latest"):
            # The newest version is another one now than when the stream started.
            return None
        assert isinstance(one.until, DeltaPosition)
        last = one.until.last_version
        table = f"table {source.path if source.table is None else source.table.short}"
        added = versions_of_files(source.table_location, one)

        def part(path: str) -> FilePart:
            version = added.get(unquote(path).rpartition("/")[2], last)
            return FilePart(path=path, of=f"{table}, version {version}", source=one.index, files=files)

        files = TableFiles.between(session, source.path, source.options, one, checkpoint)
        return [part(path) for path in files.paths]

    def range_of(self, one: SourceRange, parts: Sequence[Part]) -> SourceRange:
        return range_of(one, parts)

    def as_record(self, frame: DataFrame, record: Part) -> DataFrame:
        return as_record(frame, record, F.to_json(F.struct("*"), ROW_JSON).cast("binary"))

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        """The rows in commits that were not read yet; ``None`` if a commit does not state their number."""
        assert isinstance(one.until, DeltaPosition)
        path = locate(one.identity.get("path", ""))
        first = one.until.version
        if last_checkpoint(path) > first and not commit_file(path, first).exists():
            # An erasure has removed commits that add no rows. Listing a long log is slow.
            first = max(first, *versions(path)[:1])
        commits = list(islice(follow_commits(path, first), _COUNTED + 1))
        foreign = not path.below(systems.storage.tables)
        if len(commits) > _COUNTED or (foreign and any(c.changes_data and not c.is_ours for c in commits)):
            return None
        count = sum(int((c.metadata or {}).get("accepted", 0)) for c in commits if c.is_ours)
        return Lag(count, sum(added_bytes(path, one.version) for one in commits if one.changes_data))

    def seed(
        self, source: SourceIdentity, position: Position, origin: ListOrigin | None, seeding: Seeding
    ) -> Seed:
        assert isinstance(position, DeltaPosition)
        seen = mark_version(locate(source.identity["path"]), position.last_version)
        return Seed(marks={} if seen is None else {"seen": seen})


KIND = DeltaKind()
