"""`headrace quarantine`: the rejected rows of a dataset."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.cli.output import UNCHANGED, Result
from headrace.cli.verb import POSITIVE, Invocation, VerbGroup, complete_dataset, option, verb
from headrace.cli.watching import spark_starting
from headrace.model.texts import counted

if TYPE_CHECKING:
    from headrace.observe.quarantine import QuarantineSummary, RowFilter
    from headrace.observe.read import Rows

_CHARACTERS = 2000  # the maximum number of a record's characters in the text form of `show`
_STATES = ("pending", "quarantined", "replaying", "replayed", "discarded")


@click.group(
    "quarantine",
    cls=VerbGroup,
    examples=("headrace quarantine list", 'headrace quarantine show orders --reason "positive amount"'),
)
def quarantine() -> None:
    """Show rejected rows, and replay or discard them.

    A row that fails `expect_or_quarantine` is moved to the quarantine of its table, with its reasons and
    its original record.
    """


def _chosen(function: Callable[..., Result]) -> Callable[..., Result]:
    """Adds the options that choose rows; the command gets them as its argument ``chosen``."""

    @wraps(function)
    def with_filter(
        *args: Any,
        reason: str | None,
        flow: str | None,
        where: str | None,
        ids: tuple[str, ...],
        states: tuple[Any, ...] = (),
        **others: Any,
    ) -> Result:
        from headrace.observe.quarantine import RowFilter

        chosen = RowFilter(where=where, reason=reason, flow=flow, ids=ids, states=states)
        return function(*args, chosen=chosen, **others)

    options = (
        option("--reason NAME", "Rows with this reason: an expectation, or a kind."),
        option("--flow NAME", "Rows that this flow rejected."),
        option("--where SQL", "Rows that match this condition."),
        option("--id ID", "The row with this id; repeatable.", name="ids", multiple=True),
    )
    for one in reversed(options):
        with_filter = one(with_filter)
    return with_filter


_state = option(
    "--state", "Rows in this state; repeatable.", click.Choice(_STATES), name="states", multiple=True
)
_dataset = click.argument("dataset", shell_complete=complete_dataset)


@verb(
    group=quarantine,
    name="list",
    examples=("headrace quarantine list", "headrace quarantine list orders --json"),
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
def list_rows(invocation: Invocation, datasets: tuple[str, ...]) -> Result:
    """Count rejected rows by state, flow and reason.

    Rows are pending until the table holds the batch that rejected them. Starts no Spark.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading"):
        found = pipeline.quarantine.list(datasets)
    schema = pipeline.settings.database
    return Result(
        data={"datasets": [one.to_json() for one in found]},
        text=lambda: _listed(found, schema) if found else "No row was rejected.",
    )


@verb(
    group=quarantine,
    examples=(
        "headrace quarantine show orders --limit 5",
        'headrace quarantine show orders --reason "positive amount" --state quarantined --json',
        "headrace quarantine show orders --where \"source['partition'] = 0\"",
    ),
)
@_dataset
@_chosen
@_state
@option("--limit", "The maximum number of rows.", POSITIVE, default=20)
def show(invocation: Invocation, dataset: str, chosen: RowFilter, limit: int) -> Result:
    """Show rejected rows with their reasons and records.

    The oldest rows come first. Starts no Spark.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading"):
        rows = pipeline.quarantine.show(dataset, chosen, limit=limit)
        binary = frozenset[str]()
        if rows is not None and not invocation.output.is_json:
            binary = pipeline.quarantine.binary_columns(dataset, rows)
    data = {"columns": [], "rows": [], "cut": False} if rows is None else rows.to_json()
    return Result(data=data, text=lambda: _shown(rows, dataset, binary))


@verb(
    group=quarantine,
    examples=(
        "headrace quarantine export orders rejected.parquet",
        "headrace quarantine export orders rejected.jsonl --state quarantined --records",
    ),
)
@_dataset
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@_chosen
@_state
@option("--records", "Write the original records alone, for `headrace produce --file`.")
def export(invocation: Invocation, dataset: str, file: Path, chosen: RowFilter, records: bool) -> Result:
    """Write rejected rows to a .jsonl or .parquet file.

    The file has all columns of the quarantine. With --records, each line is the original record of a row, or
    the row itself if its record was not kept. Correct the file, send it with `headrace produce`, and discard
    the rows. Records that are empty or not valid UTF-8 are skipped and counted; a .parquet file has their
    bytes. Starts no Spark.
    """
    file = file.absolute()
    with invocation.pipeline() as pipeline, invocation.output.progress("Writing"):
        done = pipeline.quarantine.export(dataset, file, chosen, records=records)
    skipped = ""
    if done.skipped:
        skipped = f"; {counted(done.skipped, 'row')} skipped: empty, or not valid UTF-8"
    return Result(
        data={"path": str(done.path), "rows": done.rows, "skipped": done.skipped},
        text=f"Wrote {counted(done.rows, 'row')} to {done.path}{skipped}",
    )


@verb(
    group=quarantine,
    examples=(
        "headrace quarantine replay orders",
        'headrace quarantine replay orders --reason "positive amount" --json',
    ),
)
@_dataset
@_chosen
def replay(invocation: Invocation, dataset: str, chosen: RowFilter) -> Result:
    """Process quarantined rows with the current code, and add them to their table.

    If the original record of a row was kept, the replay runs the flow's query on this record and checks the
    expectations. Otherwise it only checks the expectations on the row. A row that passes is in the table
    exactly once. A row that is rejected again stays in the quarantine with its new reasons. The command is
    refused while a flow of the table runs, and for stateful flows. The exit code is 1 if no row was replayed
    and some rows were rejected again.
    """
    with invocation.pipeline() as pipeline, spark_starting(invocation.output, "Starting Spark, replaying"):
        done = pipeline.quarantine.replay(dataset, chosen)
    return Result(
        data=done.to_json(),
        text="\n".join(done.lines()),
        exit_code=1 if (done.rejected or done.left) and not done.replayed else 0,
    )


@verb(
    group=quarantine,
    examples=(
        'headrace quarantine discard orders --reason "positive amount"',
        "headrace quarantine discard orders --where \"quarantined_at < '2026-11-01'\" --yes",
    ),
)
@_dataset
@_chosen
@option("--yes", "Do not ask for confirmation.")
def discard(invocation: Invocation, dataset: str, chosen: RowFilter, yes: bool) -> Result:
    """Mark quarantined rows as discarded.

    Discarded rows are not replayed. They stay in the quarantine table, and `headrace verify` counts them.
    The command first shows how many rows match, and asks for confirmation. It starts no Spark.
    """
    with invocation.pipeline() as pipeline:
        plan = pipeline.quarantine.plan_discard(dataset, chosen)
        if not plan.rows:
            invocation.output.note("\n".join(plan.lines()))
            return Result(data={"done": False, **plan.to_json()}, text="No quarantined row matches.")
        remedy = "repeat the command with --yes"
        if not (yes or invocation.output.agrees(plan.lines(), "Discard?", remedy)):
            return UNCHANGED
        done = pipeline.quarantine.discard(dataset, chosen)
    return Result(
        data={"done": True, **done.to_json()}, text=f"Discarded {counted(done.rows, 'row')} of {dataset}."
    )


def _listed(found: Sequence[QuarantineSummary], schema: str) -> Group:
    parts: list[Text | Table] = []
    for one in found:
        states = ", ".join(f"{rows:,} {state}" for state, rows in one.states.items()) or "no rejected rows"
        parts.append(Text.assemble((one.dataset.within(schema), "bold"), f"  {states}"))
        if one.oldest is not None and one.newest is not None:
            table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            for _ in range(2):
                table.add_column(overflow="fold")
            table.add_column(justify="right")
            for head, counts in (("flow", one.flows), ("reason", one.reasons)):
                for name, rows in counts.items():
                    table.add_row(Text(f"  {head}", style="dim"), Text(name), Text(f"{rows:,}"))
            parts.append(table)
            times = [f"{at:%Y-%m-%d %H:%M:%S}" for at in (one.oldest, one.newest)]
            parts.append(Text(f"  rejected from {times[0]} to {times[1]} UTC", style="dim"))
    return Group(*parts)


def _shown(rows: Rows | None, dataset: str, binary: Collection[str]) -> Group | str:
    if rows is None or not rows.rows:
        return f"No rejected row of {dataset} matches."
    lines: list[Text] = []
    for row in rows.arrow.to_pylist():
        style = "dim" if row["state"] in ("replayed", "discarded") else "bold"
        lines.append(Text.assemble((row["id"], style), f"  {row['state']}  {'  '.join(_facts(row))}"))
        for one in row["reasons"]:
            kind = [] if one["kind"] == "expectation" else [one["kind"]]
            parts = [str(part) for part in (*kind, one["name"], one["message"]) if part is not None]
            lines.append(Text(f"  {': '.join(parts)}", style="yellow"))
        lines.append(Text(f"  {_record(row, binary)}"))
    more = "; use --limit to see more" if rows.is_cut else ""
    return Group(*lines, Text(f"{counted(len(rows.rows), 'row')} of {dataset}{more}", style="dim"))


def _facts(row: Mapping[str, Any]) -> Iterator[str]:
    from headrace.sources.registry import describe_record

    source = row["source"] or {}
    if place := describe_record(source):
        yield place
    yield f"flow {row['flow']}"
    yield f"{row['quarantined_at']:%Y-%m-%d %H:%M:%S}"


def _record(row: Mapping[str, Any], binary: Collection[str]) -> str:
    from headrace.observe.read import shown
    from headrace.project.quarantine import record_text

    text = record_text(row) if row["row"] is None else str(row["row"])
    if text is None:
        return "(no value)"
    if row["row"] is not None or (row["source"] or {}).get("path"):
        with suppress(ValueError):
            # Spark writes the bytes of binary columns as base64.
            for name, value in dict(json.loads(text)).items():
                if name in binary and isinstance(value, str):
                    key, held = json.dumps(name), shown(base64.b64decode(value))
                    text = text.replace(f"{key}:{json.dumps(value)}", f"{key}:{json.dumps(held)}")
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}.."
