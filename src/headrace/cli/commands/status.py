"""`headrace status`: the state of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from headrace.cli.output import Result
from headrace.cli.verb import WHOLE, Invocation, option, parse_time, refuse, verb
from headrace.cli.watching import show_again
from headrace.model.texts import counted, duration_text, size_text
from headrace.observe.fitting import STATE_STYLES, FittedTable, empty_table
from headrace.observe.troubles import Limits, Trouble, find_troubles

if TYPE_CHECKING:
    from headrace.maintain.health import TableHealth
    from headrace.observe.slow import SlowBatches
    from headrace.observe.snapshot import Snapshot
    from headrace.observe.status import DatasetStatus, FlowStatus
    from headrace.project.pipeline import Pipeline

_NONE = "-"


@verb(
    examples=(
        "headrace status",
        "headrace status --watch",
        "headrace status --profile prod --json",
        "headrace status --tables",
        "headrace status --slow",
        "headrace status --check",
        "headrace status --check --max-lag 10000 --max-age 15m",
    )
)
@option("--tables", "Show the files and logs of the tables, and the maintenance they need.")
@option("--slow", "Show what the slowest percent of the batches consist of.")
@option("--watch", "Show the status again every two seconds, in place, until Ctrl-C.")
@option("--check,--exit-code", "Print one line for each trouble; exit code 1 if there is one.", name="check")
@option("--max-lag RECORDS", "With --check: a flow lags by at most so many records or files.", WHOLE)
@option("--max-age TIME", "With --check: the newest rows of a table are at most so old (15m).", parse_time)
def status(
    invocation: Invocation,
    tables: bool,
    slow: bool,
    watch: bool,
    check: bool,
    max_lag: int | None,
    max_age: float | None,
) -> Result:
    """Show datasets, flows, lag and freshness.

    Reads the storage, and asks the broker for the lag; starts nothing.

    A flow is up to date if it has read all records of its sources, behind if records are left, and stopped
    if a signal such as Ctrl-C has ended its last run. If the broker does not answer, its lag and state are
    unknown. A dataset or flow is orphaned if its declaration was missing in the last run of the whole
    pipeline; its rows are kept. The exit code is 1 if the cluster refuses the login.

    With --slow, the steps of the slowest batches of the last hour are shown beside those of all batches, with
    what else ran meanwhile.

    With --check, the command is a probe, and prints nothing else. Troubles are a flow or view that has
    failed, was skipped or stopped, a process that does not answer, a table that cannot be read, a cluster
    that refuses the login, and what exceeds --max-lag or --max-age. The exit code is 0 without a trouble, 1
    with one, and 3 if the only troubles are limits that cannot be judged, such as a lag of a broker that
    does not answer. Without --max-lag, such a broker does not count. The age of a table or view is the time
    since its rows have last changed, also if nothing new has arrived; sinks have none.
    """
    output, has_limits = invocation.output, max_lag is not None or max_age is not None
    refuse(
        (has_limits and not check, "--max-lag and --max-age are limits of --check", "add --check"),
        (check and (tables or slow or watch), "--check cannot be used with --tables, --slow or --watch"),
        (tables and slow, "--tables and --slow show different things; give one of them"),
        (watch and output.is_json, "--watch is for a terminal; without it, --json prints the status once"),
        (watch and not output.is_terminal, "--watch needs a terminal; standard output is none"),
    )
    look = _tables if tables else _slow if slow else _status
    with invocation.pipeline() as pipeline:
        if watch:
            show_again(output, lambda: look(pipeline))
        with output.progress("Reading the storage"):
            return _status(pipeline, Limits(lag=max_lag, age_s=max_age)) if check else look(pipeline)


def _tables(pipeline: Pipeline) -> Result:
    found = pipeline.table_health()
    return Result(data={"tables": [one.to_json() for one in found]}, text=lambda: health_table(found))


def _slow(pipeline: Pipeline) -> Result:
    found = pipeline.slow_batches()
    return Result(data={"slow": [one.to_json() for one in found]}, text=lambda: slow_table(found))


def _status(pipeline: Pipeline, limits: Limits | None = None) -> Result:
    """The status, or its troubles if there are limits."""
    from headrace.observe.log import newest_log

    with ThreadPoolExecutor(1) as pool:
        readers = pool.submit(pipeline.lagging_readers)
        snapshot = pipeline.status()
    lagging = readers.result()
    schema, log = pipeline.settings.database, newest_log(pipeline.settings)
    late = [one.to_json() for one in lagging]
    data = {**snapshot.to_json(), "lagging_readers": late, "log": None if log is None else str(log)}
    if limits is not None:
        return _checked(snapshot, data, list(find_troubles(snapshot, limits)), schema)
    text = partial(_rendered, snapshot, schema, log, [f"{one.text}:   {one.command}" for one in lagging])
    errors = [] if snapshot.refusal is None else [snapshot.refusal]
    return Result(data=data, text=text, errors=errors, exit_code=len(errors))


def _checked(
    snapshot: Snapshot, data: Mapping[str, Any], found: Sequence[Trouble], default_schema: str
) -> Result:
    lines = [f"{one.name_within(default_schema)}: {one.text}" for one in found]
    number = counted(sum(not one.orphaned for one in snapshot.datasets), "dataset")
    return Result(
        data={**data, "troubles": [one.to_json() for one in found]},
        text="\n".join(lines) or f"No trouble in {number}.",
        exit_code=0 if not found else 3 if all(one.is_unknown for one in found) else 1,
    )


def _rendered(
    snapshot: Snapshot, default_schema: str, log: Path | None, warnings: Sequence[str]
) -> Group | str:
    if not snapshot.datasets:
        return f"{snapshot.pipeline} has no tables in {snapshot.storage} yet. `headrace run` creates them."
    table = empty_table()
    columns = ("flow", "state", "rows in table", "rows/s", "lag", "batch", "last commit")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in (0, 1, 6) else "right", no_wrap=True)
    remarks: list[str] = []
    for dataset in snapshot.datasets:
        for row in _rows(dataset, snapshot.at, default_schema):
            table.add_row(
                Text(row[0], style="bold"), Text(row[1], style=STATE_STYLES.get(row[1], "")), *row[2:]
            )
        remarks += _remarks(dataset, default_schema)
    remarks += warnings
    if snapshot.silence is not None:
        remarks.append(f"lag unknown: {snapshot.silence}")
    elif uncounted := [one.flow for one in _flows(snapshot) if one.state == "unknown" and one.driver is None]:
        remarks.append(
            f"lag unknown: the sources of {', '.join(uncounted)} do not report how many records are left"
        )
    if log is not None:
        remarks.append(f"log of the last update: {log}")
    head = f"{snapshot.pipeline} · {snapshot.storage}"
    parts: list[Text | FittedTable] = [Text(head), Text(""), FittedTable(table)]
    if remarks:
        parts += [Text(""), *(Text(line) for line in remarks)]
    return Group(*parts)


def _rows(dataset: DatasetStatus, now: datetime, default_schema: str) -> Iterator[tuple[str, ...]]:
    name = dataset.dataset.within(default_schema)
    rows = _NONE if dataset.rows is None else f"{dataset.rows:,}"
    if dataset.problem is not None:
        yield (name, "unreadable", *[_NONE] * 5)
        return
    if (view := dataset.view) is not None:
        state = "orphaned" if dataset.orphaned else view.state
        yield (name, state, rows, *[_NONE] * 3, _commit(view.version, view.refreshed, now))
    if dataset.view is None and len(dataset.flows) != 1:
        # The rows are those of all its flows together.
        yield (name, "", rows, *[_NONE] * 4)
        rows = _NONE
    for flow in dataset.flows:
        yield (
            name if flow.flow == dataset.dataset.name else f"{name}/{flow.flow}",
            "orphaned" if flow.orphaned and flow.driver is None else flow.state,
            rows,
            _NONE if flow.rate is None else f"{flow.rate:,.0f}",
            _lag(flow),
            _NONE if flow.batch is None else str(flow.batch),
            _commit(flow.version, flow.committed, now),
        )


def _flows(snapshot: Snapshot) -> Iterator[FlowStatus]:
    for dataset in snapshot.datasets:
        yield from dataset.flows


def _lag(flow: FlowStatus) -> str:
    if flow.lag is None:
        return _NONE if flow.batch is None else "unknown"
    if flow.behind_s is not None:
        return f"{flow.lag:,}+, {duration_text(flow.behind_s)} behind"
    return f"{flow.lag:,}" + ("" if flow.lag_bytes is None else " file" if flow.lag == 1 else " files")


def _commit(version: int | None, at: datetime | None, now: datetime) -> str:
    if version is None:
        return _NONE
    return f"v{version}" + ("" if at is None else f"  {duration_text((now - at).total_seconds())} ago")


def _remarks(dataset: DatasetStatus, default_schema: str) -> Iterator[str]:
    name = dataset.dataset.within(default_schema)
    if dataset.problem is not None:
        yield f"{name}: {dataset.problem}"
    if dataset.orphaned:
        yield f"{name}: no file declares it any more; its rows are kept, and no run updates it"
    if dataset.view is not None and not dataset.orphaned:
        if dataset.view.late:
            yield f"{name}: changed since the last refresh: {', '.join(dataset.view.late)}"
        if dataset.view.error is not None:
            yield f"{name}: [{dataset.view.error.get('code')}] {dataset.view.error.get('summary')}"
        if dataset.view.reason is not None:
            yield f"{name}: skipped: {dataset.view.reason}"
    for flow in dataset.flows:
        if flow.orphaned:
            if not dataset.orphaned:
                yield f"{flow.flow}: no file declares this flow any more; its rows are kept"
            continue
        if flow.reason is not None:
            yield f"{flow.flow}: skipped: {flow.reason}"
        if flow.error is not None:
            yield f"{flow.flow}: [{flow.error.get('code')}] {flow.error.get('summary')}"
            if flow.state == "reconnecting":
                yield from (f"  {fact}" for fact in flow.error.get("facts", [])[:1])
            yield from (f"  help: {remedy}" for remedy in flow.error.get("remedies", [])[:1])
        if flow.state == "unknown" and flow.driver is not None:
            yield f"{flow.flow}: {flow.driver} holds its lease, and no heartbeat of it was seen"
        if flow.late:
            yield f"{flow.flow}: dropped {counted(flow.late, 'late row')} (older than the watermark)"
        if flow.pending is not None and flow.driver is None:
            yield f"{flow.flow}: batch {flow.pending} was planned but not committed; the next run repeats it"


_COLUMNS = (
    *("table", "files", "small", "size", "mean", "partitions", "skew", "commits"),
    *("checkpoint", "deleted", "compacted", "vacuumed", "needed from"),
)


def health_table(found: Sequence[TableHealth]) -> Group | str:
    if not found:
        return "The storage has no tables yet. `headrace run` creates them."
    table = empty_table()
    for index, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for one in found:
        style = "yellow" if one.remarks else "bold red" if one.problem else "bold"
        table.add_row(Text(one.target.title, style=style), *_cells(one, datetime.now(UTC)))
    lines: list[str] = []
    for one in found:
        lines += [] if one.problem is None else [f"{one.target.title}: {one.problem}"]
        for remark in one.remarks:
            command = f":   {remark.command}" if remark.command else ""
            lines.append(f"{one.target.title}: {remark.text}{command}")
    return Group(FittedTable(table), *([Text(""), *map(Text, lines)] if lines else []))


def _cells(one: TableHealth, now: datetime) -> Iterator[str]:
    found = one.condition
    if found is None:
        yield from [_NONE] * (len(_COLUMNS) - 1)
        return
    yield f"{found.files:,}"
    yield f"{one.small:,}"
    yield size_text(found.size_bytes)
    yield size_text(found.size_bytes // found.files) if found.files else _NONE
    yield f"{one.partitions:,}" if found.snapshot.partition_columns else _NONE
    yield _NONE if one.skew is None else f"{one.skew:.1f}"
    yield f"{len(found.snapshot.commits):,}"
    yield f"{counted(one.checkpoint_age, 'commit')} ago" if one.has_checkpoint else "none"
    yield f"{one.deleted_share:.0%}"
    for at in (one.compacted, one.vacuumed):
        yield _NONE if at is None else f"{duration_text((now - at).total_seconds())} ago"
    yield (
        _NONE if one.needed is None else f"v{max(one.needed.version, 0)} {one.needed.kind} {one.needed.name}"
    )


def slow_table(found: Sequence[SlowBatches]) -> Group | str:
    """A table of the steps of the slowest batches of each flow, and what ran beside them."""
    if not found:
        return "The event log has no batches yet. `headrace run` writes it."
    parts: list[RenderableType] = []
    for one in found:
        count = len(one.slowest)
        took = f"the slowest {counted(count, 'batch')} took {duration_text(one.from_ms / 1000)} or more"
        table = empty_table()
        for index, column in enumerate(("step", "median", "slowest", "of the excess")):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
        for step in one.steps:
            share = _NONE if step.share is None else f"{step.share:.0%}"
            table.add_row(step.step, f"{step.median_ms:,.0f} ms", f"{step.slow_ms:,.0f} ms", share)
        beside = [f"{what} in {number}" for what, number in one.beside.items()]
        parts += [
            *([Text("")] if parts else []),
            Text(f"{one.flow}: {counted(one.batches, 'batch')} in the last hour of the log; {took}"),
            FittedTable(table),
            Text(f"beside these {count}: {', '.join(beside) or 'nothing'}; gc pauses {one.pauses_ms:,} ms"),
        ]
    return Group(*parts)
