"""Delta tables as a source of a flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SourceLocation, UpstreamMissingError, UpstreamRewrittenError
from headrace.model.declarations import StreamingFlow
from headrace.model.names import TableName
from headrace.model.ranges import Position, SourceRange
from headrace.sources.answers import Lag, Seed
from headrace.sources.delta.facts import DeltaFacts, reads_of
from headrace.sources.delta.position import DeltaPosition
from headrace.sources.delta.reader import DeltaReader
from headrace.sources.delta.starting import ERASURES_ONLY, check_table_start, starting_version
from headrace.sources.guard import Guard
from headrace.sources.kind import SourceKind
from headrace.sources.limits import DELTA_MAX_BYTES_PER_TRIGGER, LEAST_BYTES, Taken
from headrace.sources.meter import Meter
from headrace.sources.source import Source
from headrace.sources.systems import Past, Seeding, StreamRead, Systems
from headrace.state.facts import ListOrigin, SourceFacts
from headrace.state.history import History
from headrace.state.identity import SourceIdentity
from headrace.storage.locate import locate
from headrace.storage.location import Location
from headrace.storage.table_log import (
    LoggedCommit,
    describe_rollback,
    follow_commits,
    mark_version,
    newest_version,
    versions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOW_S = 1.0
"""A batch that is shorter is not worth a look at how much is left."""
_COUNTED = 500
"""Commits that a lag is counted over; a longer one is not known."""


@dataclass(frozen=True, kw_only=True)
class DeltaSource(Source):
    """A streaming read of a table.

    Args:
        path: The table's folder.
        table: The dataset, where the table is one of the storage.
        erasures_only: Whether the read passes over what others erase from the table, and over nothing else.
    """

    kind = "delta"

    path: str
    table: TableName | None = None
    erasures_only: bool = False

    def describe(self) -> str:
        return f"delta {self.path}" if self.table is None else f"table {self.table}"

    def label(self, root: Path) -> str:
        path = Path(self.path)
        return f"delta {f'./{path.relative_to(root)}' if path.is_relative_to(root) else path}"

    @property
    def table_location(self) -> Location:
        """The table's folder.

        Raises:
            StorageUnsupportedError: The path is a URI of a kind of storage that is not supported.
        """
        return locate(self.path, source=self.location)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "table": None if self.table is None else str(self.table)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], location: SourceLocation) -> DeltaSource:
        table = value["table"]
        return super().from_json({**value, "table": table and TableName.parse(table, "")}, location)

    def shares(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        same = isinstance(other, DeltaSource) and (self.table, self.path) == (other.table, other.path)
        return f"the table {self.table or self.path}" if same else None

    def look(self, systems: Systems, past: Past) -> DeltaFacts:
        path = self.table_location
        if not versions(path):
            raise self._missing(past.flow)
        source = self.identity({"table_id": systems.read_table(path).table_id, "path": self.path})
        return DeltaFacts(source=source, rolled_back=_rollback(source, past.history))

    def check_start(self, facts: SourceFacts, systems: Systems, *, is_new: bool) -> None:
        if is_new:
            path = self.table_location
            check_table_start(
                self.options,
                path,
                name=str(self.table or self.path),
                properties=systems.read_table(path).properties,
                location=self.location,
            )

    def is_drained(
        self, facts: SourceFacts, position: Position, checkpoint: Location, systems: Systems
    ) -> bool:
        assert isinstance(position, DeltaPosition)
        if position.index != -1:
            return False
        # A stream's position stays before commits that bring it nothing.
        path = self.table_location
        ahead = list(follow_commits(path, position.version))
        return versions(path)[-1:] == (position.version + len(ahead) - 1,) and all(
            not commit.changes_data or (self.erasures_only and commit.removes_data and commit.is_erasure)
            for commit in ahead
        )

    def meter(self, systems: Systems) -> DeltaMeter | None:
        return DeltaMeter() if self.adaptive else None

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
            f"flow {flow.name} reads {name}, which does not exist yet",
            location=flow.location,
            facts=("nothing was read or written",),
            remedies=("run the pipeline that creates the table, or correct the path",)
            if self.table is None
            else (f"run both:   headrace run {name} {flow.target.short}",),
            params={"flow": flow.name, "table": self.path if self.table is None else str(self.table)},
        )


class DeltaMeter(Meter):
    """Sees whether a batch was cut short by its limit: the bytes that a batch reads are not counted."""

    least = LEAST_BYTES

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        return DELTA_MAX_BYTES_PER_TRIGGER

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        return Taken(limit if _is_cut(one, duration_s) else 0, duration_s)


class DeltaGuard(Guard):
    """Marks the last commit that was read of each table, and refuses rows that were changed."""

    def begin(self, batch: int, ranges: Sequence[SourceRange]) -> Iterator[SourceRange]:
        for one in ranges:
            yield replace(one, marks=self._marks(one))

    def _marks(self, one: SourceRange) -> dict[str, Any]:
        """The mark of the last version that was read, and the erasures that were passed over.

        Raises:
            UpstreamRewrittenError: The table has changed rows in another way.
        """
        assert isinstance(one.until, DeltaPosition)
        planned = next(source for source in self.run.planned if source.index == one.index)
        assert isinstance(planned, DeltaSource)
        path = locate(one.identity["path"])
        seen = mark_version(path, one.until.last_version)
        if seen is None:
            return {}
        first = planned.first_commit(one, self.run.session)
        commits = () if first is None else follow_commits(path, first, one.until.last_version)
        changed = [commit for commit in commits if commit.rewrites]
        # A user's own option may pass over what others change, and never over a full refresh of ours.
        for commit in changed:
            if commit.is_ours or (planned.erasures_only and not commit.is_erasure):
                raise _rewritten(self.run.flow, path, commit)
        passed = {"passed": [commit.version for commit in changed]} if changed else {}
        return {"seen": {**seen, **passed}}


class DeltaKind(SourceKind):
    """Tables."""

    source = DeltaSource
    guard = DeltaGuard
    reader = DeltaReader()

    def opens(self, format: str) -> bool:
        return format == "delta"

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

    def key(self, source: SourceIdentity) -> str:
        return str(source.identity.get("table_id"))

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        """The rows in commits that were not read yet; ``None`` if a commit does not state their number."""
        assert isinstance(one.until, DeltaPosition)
        path = locate(one.identity.get("path", ""))
        commits = list(islice(follow_commits(path, one.until.version), _COUNTED + 1))
        foreign = not path.below(systems.storage.tables)
        if len(commits) > _COUNTED or (foreign and any(c.changes_data and not c.is_ours for c in commits)):
            return None
        return Lag(sum(int((c.metadata or {}).get("accepted", 0)) for c in commits if c.is_ours))

    def seed(
        self, source: SourceIdentity, position: Position, origin: ListOrigin | None, seeding: Seeding
    ) -> Seed:
        assert isinstance(position, DeltaPosition)
        seen = mark_version(locate(source.identity["path"]), position.last_version)
        return Seed(marks={} if seen is None else {"seen": seen})


def _rollback(source: SourceIdentity, history: History) -> str | None:
    """How the table differs from the version that was read; ``None`` if it does not."""
    for read in reads_of(source, history):
        if (seen := read.marks.get("seen")) is not None:
            found = describe_rollback(locate(source.identity["path"]), seen)
            if found is not None:
                return found
    return None


def _is_cut(one: SourceRange, duration_s: float) -> bool:
    """Whether the table held more rows than the batch read."""
    assert isinstance(one.until, DeltaPosition)
    if one.until.index >= 0:
        return True
    if duration_s < _SLOW_S:
        return False
    return one.until.version < newest_version(locate(one.identity["path"]))


def _rewritten(flow: StreamingFlow, table: Location, commit: LoggedCommit) -> UpstreamRewrittenError:
    """The error for a commit of an upstream table that changes rows."""
    return UpstreamRewrittenError(
        f"{flow.name}: {table.name}, which it reads as a stream, has changed rows that it had already read",
        location=flow.location,
        facts=(
            f"version {commit.version}: {commit.operation} by {commit.engine}",
            "a stream skips commits that only delete rows, but no other changes; nothing was written",
        ),
        remedies=(f"read everything again:   headrace full-refresh {flow.target.short}",),
        params={"name": flow.name, "table": str(table), "version": commit.version},
    )
