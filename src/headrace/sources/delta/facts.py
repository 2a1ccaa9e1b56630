"""A Delta table that is read as a stream, as it is now, and how a flow can continue with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.errors import (
    SourceLocation,
    SourcesChangedError,
    UpstreamLogExpiredError,
    UpstreamRewrittenError,
)
from headrace.sources.delta.position import DeltaPosition
from headrace.sources.facts import Facts
from headrace.state.facts import FlowFacts, NextPosition, ReadBefore
from headrace.state.history import History, PastRead
from headrace.state.identity import SourceIdentity
from headrace.state.starting_positions import require_whole, resume_impossible
from headrace.storage.table_log import LoggedCommit


@dataclass(frozen=True, kw_only=True)
class DeltaFacts(Facts):
    """A table.

    Args:
        rolled_back: How the table differs from the version that was read, if an older copy was restored.
        rewritten: The first commit that changes rows and that the flow has not read yet.
        missing: The first version that the flow has not read and that the log no longer has.
    """

    location: SourceLocation | None = None
    rolled_back: str | None = None
    rewritten: LoggedCommit | None = None
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

    def _restored(self, flow: FlowFacts, how: str) -> UpstreamRewrittenError:
        return UpstreamRewrittenError(
            f"flow {flow.flow}: an older copy of the table {self.path}, which it reads, was restored",
            location=flow.location,
            facts=(how, "to continue would skip or repeat rows; nothing was read or written"),
            remedies=(f"read everything again:   headrace full-refresh {flow.short_dataset}",),
            params={"flow": flow.flow, "dataset": flow.dataset, "tables": [self.path]},
        )

    def is_same(self, flow: FlowFacts, then: ReadBefore) -> bool:
        if is_table(self.source, then.source):
            return True
        raise SourcesChangedError(
            f"flow {flow.flow}: the table {self.path}, which it reads, was deleted and created again",
            location=flow.location,
            facts=("nothing was read or written",),
            remedies=(f"read everything again:   headrace full-refresh {flow.short_dataset}",),
            params={"flow": flow.flow, "source": self.source.index},
        )

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        reads = reads_of(self.source, history)
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
    flow: str, target: str, table: str, location: SourceLocation, commit: LoggedCommit
) -> UpstreamRewrittenError:
    """The error for a commit of a table that changes rows which a flow has read."""
    name = table.rpartition("/")[2]
    if commit.refreshes_view:
        return _view_changed(flow, target, table, location, commit)
    return UpstreamRewrittenError(
        f"{flow}: {name}, which it reads as a stream, has changed rows that it had already read",
        location=location,
        facts=(
            f"version {commit.version}: {commit.operation} by {commit.engine}",
            "a stream skips commits that only delete rows, but no other changes; nothing was written",
        ),
        remedies=(
            'read the changes of the table:   hr.read_changes("..")',
            f"or read everything again:   headrace full-refresh {target}",
        ),
        params={"name": flow, "table": table, "version": commit.version},
    )


def log_expired(
    flow: str, target: str, table: str, location: SourceLocation, version: int
) -> UpstreamLogExpiredError:
    """The error for a version that a flow has not read yet and that the log no longer has."""
    name = table.rpartition("/")[2]
    return UpstreamLogExpiredError(
        f"{flow}: {name}, which it reads as a stream, no longer has commits that it has not read yet",
        location=location,
        facts=(
            f"the log no longer has version {version}",
            "to continue could skip rows; nothing was written",
        ),
        remedies=(f"read everything again:   headrace full-refresh {target}",),
        params={"name": flow, "table": table, "version": version},
    )


def _view_changed(
    flow: str, target: str, table: str, location: SourceLocation, commit: LoggedCommit
) -> UpstreamRewrittenError:
    name = table.rpartition("/")[2]
    return UpstreamRewrittenError(
        f"{flow} reads the materialized view {name} as a stream, and a refresh changed or removed its rows",
        location=location,
        facts=(
            f"version {commit.version} replaces the rows of the view",
            "a stream reads a materialized view only while its refreshes add rows; nothing was written",
        ),
        remedies=(
            "read the view with spark.read, in a materialized view",
            "or read the tables that the view reads as a stream",
            f"or read everything again:   headrace full-refresh {target}",
        ),
        params={"name": flow, "table": table, "version": commit.version},
    )


def is_table(one: SourceIdentity, two: SourceIdentity) -> bool:
    """Whether both are the same table."""
    return one.kind == two.kind and one.identity.get("table_id") == two.identity.get("table_id")


def reads_of(source: SourceIdentity, history: History) -> tuple[PastRead, ...]:
    """The last reads of a table."""
    return history.last_reads(lambda one: is_table(one, source))
