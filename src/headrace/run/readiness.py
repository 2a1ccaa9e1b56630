"""When a flow or view may start: what it reads has its columns, and has data or flows that found none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from headrace.errors import HeadraceError, SourceLocation, UpstreamSchemaStaleError, text_of
from headrace.model.declarations import MaterializedView, StreamingTable
from headrace.model.names import TableName
from headrace.plan import columns, stages
from headrace.plan.stored import load_stored
from headrace.storage.location import Location
from headrace.storage.table_log import newest_commits

FeedState = Literal["pending", "retrying", "working", "failed", "skipped"]
"""How far a flow or view is: not started or in its first batch, waiting for its next attempt, running
without an error or ended without one, ended with an error, not started because of another's error."""


@dataclass(frozen=True)
class Feed:
    """A flow or view of this update that writes a table."""

    name: str  # for messages, such as ``flow orders``
    state: FeedState
    failed: tuple[str, ...] = ()  # the flows and views whose errors were the reason to skip it


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A flow or view is not started: a table that it reads was never written, or could not be opened."""

    reason: str
    failed: tuple[str, ...]


Blocked = Exception | Skip
"""Why a flow or view cannot be started: an error of its own, or one of a table that it reads."""

Verdict = Literal["ready", "wait"] | Skip


def judge_inputs(
    inputs: Iterable[TableName],
    feeds: Callable[[TableName], Sequence[Feed]],
    is_written: Callable[[TableName], bool],
) -> Verdict:
    """Whether a flow or view may start. ``ready`` also if no flow of this update writes the table: it is then
    read as it is."""
    waits = False
    for table in inputs:
        found = feeds(table)
        states = {feed.state for feed in found}
        if not found or states == {"working"} or is_written(table):
            continue
        if states <= {"failed", "skipped"}:
            return _skip(table, found)
        waits |= "pending" in states or "working" not in states
    return "wait" if waits else "ready"


def _skip(table: TableName, feeds: Sequence[Feed]) -> Skip:
    failed = [feed.name for feed in feeds if feed.state == "failed"]
    roots = tuple(dict.fromkeys([*failed, *(name for feed in feeds for name in feed.failed)]))
    has = "has no data" if failed else "was skipped"
    return Skip(reason=f"it reads {table.short}, which {has}: {' and '.join(roots)} failed", failed=roots)


def is_written(path: Location) -> bool:
    """Whether a table has a commit of rows since it was created or emptied. Reads only the newest commits."""
    commit = None
    for commit in newest_commits(path):
        opens = (commit.metadata or {}).get("opens")
        if opens is None and (commit.changes_data or (commit.is_ours and commit.metadata is not None)):
            return True
        if opens is not None and opens.get("reason") == "full-refresh":
            return False
    # The oldest commits of a long log are gone: the table is not new.
    return commit is not None and commit.version > 0


def inputs_of(planned: stages.PlannedRefresh, plan: stages.Plan) -> tuple[TableName, ...]:
    """The tables behind a view's query, also through temporary views."""
    views = {one.view.name: one for one in plan.views}
    found: list[TableName] = []
    seen: set[TableName] = set()
    waiting = [read.table for read in planned.reads]
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in views:
            waiting.extend(read.table for read in views[name].reads)
        else:
            found.append(name)
    return tuple(found)


_FIRST = "follow the help of the first error above, then run again:   headrace run"


@dataclass(frozen=True, kw_only=True)
class StaleUpstream:
    """A table without its declared columns, which no query may read yet."""

    why: str  # the reason, as a clause that follows the name of the table
    facts: tuple[str, ...]
    remedy: str  # with the name of the reader's table as {reader}
    lacks: frozenset[str] | None = None  # the missing columns, if no other column differs

    def matters_to(self, schema: columns.Schema) -> bool:
        """Whether a query that returns these columns must wait for the table.

        If columns are only missing, a query that does not return them mostly does not use them. If it does
        use one, Spark reports that the column cannot be resolved.
        """
        if self.lacks is None:
            return True
        return any(field["name"].casefold() in self.lacks for field in columns.fields(schema))


def find_blocked(
    plan: stages.Plan, refused: Mapping[TableName, Exception], unleased: Mapping[str, Exception] | None = None
) -> dict[str, Blocked]:
    """Why flows and views cannot be started, by name; a flow that is not started can block the readers of its
    table."""
    unfit: dict[TableName, StaleUpstream | Skip] = {
        name: _refused(name, error) for name, error in refused.items()
    }
    unfit |= _left_out(plan)
    found: dict[str, Blocked] = {}
    # A stage comes after the stages of the tables that it reads.
    for stage in plan.stages:
        match stage:
            case stages.RunFlowStage(planned=planned):
                flow = planned.flow
                error: Blocked | None = (
                    (unleased or {}).get(flow.name)
                    or refused.get(flow.target)
                    or _error(
                        f"flow {flow.name}",
                        flow.target,
                        flow.location,
                        reads_of(planned),
                        planned.schema,
                        unfit,
                    )
                )
                if error is None:
                    continue
                found[flow.name] = error
                if plan.flows_of(flow.target) <= found.keys():
                    unfit = {**_not_opened(plan, flow.target, error), **unfit}
            case stages.RefreshViewStage(view=view, planned=refresh):
                name = view.name
                reads = inputs_of(refresh, plan)
                error = _error(name.short, name, view.location, reads, refresh.schema, unfit)
                if error is not None:
                    found[str(name)] = error
                    unfit = {**_not_opened(plan, name, error), **unfit}
            case stages.OpenTableStage():
                pass
            case _:
                assert_never(stage)
    return found


def _left_out(plan: stages.Plan) -> dict[TableName, StaleUpstream]:
    """The tables of the pipeline that this plan does not open, and that differ from what they declare."""
    opened = {stages.target_of(stage) for stage in plan.stages}
    unfit: dict[TableName, StaleUpstream] = {}
    for dataset in plan.datasets:
        if isinstance(dataset, StreamingTable | MaterializedView) and dataset.name not in opened:
            unfit |= _outdated(plan, dataset.name, "this run does not update it")
    return unfit


def _not_opened(plan: stages.Plan, name: TableName, error: Blocked) -> dict[TableName, StaleUpstream]:
    if isinstance(error, Skip):
        cause = f"it was skipped: {error.reason}"
    else:
        cause = f"[{error.code}] {error.summary}" if isinstance(error, HeadraceError) else text_of(error)
    found = _outdated(plan, name, "it was not brought up to date")
    return {name: replace(one, facts=(cause, *one.facts), remedy=_FIRST) for name, one in found.items()}


def reads_of(planned: stages.PlannedFlow) -> tuple[TableName, ...]:
    """The tables that a flow's query reads, streaming or not, also through temporary views."""
    streamed = (source.table for source in planned.sources if source.table is not None)
    return tuple(dict.fromkeys([*streamed, *(read.table for read in planned.reads)]))


def _error(
    label: str,
    target: TableName,
    location: SourceLocation,
    reads: Iterable[TableName],
    schema: columns.Schema,
    unfit: Mapping[TableName, StaleUpstream | Skip],
) -> UpstreamSchemaStaleError | Skip | None:
    for name in reads:
        found = unfit.get(name)
        if isinstance(found, Skip):
            return found
        if found is None or not found.matters_to(schema):
            continue
        return UpstreamSchemaStaleError(
            f"{label} reads {name.short}, which {found.why}",
            location=location,
            facts=(*found.facts, "nothing was read or written"),
            remedies=(found.remedy.replace("{reader}", target.short),),
            params={"table": str(name)},
        )
    return None


def _refused(name: TableName, error: Exception) -> Skip:
    """Why the readers of a table do not start; its own flows report the error."""
    code = error.code if isinstance(error, HeadraceError) else type(error).__name__
    return Skip(reason=f"it reads {name.short}, which could not be opened ({code})", failed=(name.short,))


def _outdated(plan: stages.Plan, name: TableName, how: str) -> dict[TableName, StaleUpstream]:
    """The table, if it exists and its columns differ from the declared ones."""
    stored, declared = load_stored(plan.project.storage, name), plan.schemas.get(name)
    if stored is None or declared is None:
        return {}
    changed = columns.refused_changes(declared, stored.schema)
    added = [path for path, _ in columns.new_fields(declared, stored.schema)]
    if not changed and not added:
        return {}
    facts = [f"{column} is {was} in the table, and declared as {now}" for column, now, was in changed]
    facts += [f"{'.'.join(path)} is declared, but not in the table" for path in added]
    is_streaming = any(isinstance(one, StreamingTable) and one.name == name for one in plan.datasets)
    remedy = f"run both:   headrace run {name.short} {{reader}}"
    if changed and is_streaming:
        remedy = f"rebuild that table, then run again:   headrace full-refresh {name.short}"
    return {
        name: StaleUpstream(
            why=f"does not have its declared columns yet; {how}",
            facts=tuple(facts),
            remedy=remedy,
            lacks=None if changed else frozenset(path[0].casefold() for path in added),
        )
    }
