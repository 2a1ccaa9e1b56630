"""`headrace maintain`: compaction, vacuum, and cleanup of logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.durations import parse_time
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.model.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.project.maintenance import MaintenanceOptions, MaintenanceResult

_STEPS = ("optimize", "vacuum", "log", "checkpoints")


@verb(
    examples=(
        "headrace maintain",
        "headrace maintain --dry-run",
        "headrace maintain orders --only vacuum --retain 14d",
        "headrace maintain --every 1h",
    )
)
@click.argument("tables", nargs=-1, shell_complete=complete_dataset, metavar="[TABLE]..")
@click.option("--only", type=click.Choice(_STEPS), multiple=True, help="Do only this step; can be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the planned steps, with files and bytes; change nothing.")
@click.option(
    "--retain",
    callback=parse_time,
    metavar="TIME",
    help="Keep files that left the table within this time; replaces the table's retention.",
)
@click.option("--allow-short-retention", is_flag=True, help="Allow a retention below 7 days.")
@click.option(
    "--ignore-reader",
    multiple=True,
    metavar="FLOW",
    help="Also delete files and commits that this flow has not read. The flow may then need a full refresh.",
)
@click.option(
    "--every",
    callback=parse_time,
    metavar="TIME",
    help="Repeat at this interval, such as 1h, until stopped.",
)
@click.option(
    "--wait",
    default="5m",
    show_default=True,
    callback=parse_time,
    metavar="TIME",
    help="How long to wait for a running flow to compact its table.",
)
def command(
    invocation: Invocation,
    tables: tuple[str, ...],
    only: tuple[str, ...],
    dry_run: bool,
    retain: float | None,
    allow_short_retention: bool,
    ignore_reader: tuple[str, ...],
    every: float | None,
    wait: float,
) -> Result:
    """Compact and vacuum tables that need it, clean their logs, and remove replaced checkpoints.

    Without TABLE, the command maintains all tables of the storage. The key `maintenance` in the spec sets
    when a step is necessary. The command keeps files and commits that a flow of the storage, a pinned version
    or the ledger still needs. If the flow of a table runs in another process, that process compacts the table
    between two batches; if it ends before that, the command compacts the table itself. The command starts
    Spark only for compaction. With --every, Ctrl-C or SIGTERM ends the command after the current table. The
    exit code is 1 if a table could not be maintained.
    """
    from headrace.project.maintenance import STEPS, MaintenanceOptions

    output = invocation.output

    def show(result: MaintenanceResult) -> None:
        for line in result.lines():
            output.note(line)
        if result.error is not None and not output.is_json:
            output.error(result.error)

    options = MaintenanceOptions(
        steps=only or STEPS,
        dry_run=dry_run,
        retention_s=retain,
        allow_short_retention=allow_short_retention,
        ignore_readers=ignore_reader,
        wait_s=wait,
    )
    if every is not None:
        return _repeat(invocation, tables, options, show, every)
    with invocation.pipeline() as pipeline, output.progress("Maintaining the tables"):
        found = pipeline.maintain(tables, options=options, report=show)
    failed = [one for one in found if one.warning is not None]
    data = {"tables": [one.to_json() for one in found]}
    return Result(data=data, text=_summary(found, dry_run=dry_run), exit_code=1 if failed else 0)


def _repeat(
    invocation: Invocation,
    tables: tuple[str, ...],
    options: MaintenanceOptions,
    show: Callable[[MaintenanceResult], None],
    every_s: float,
) -> Result:
    """Maintain the tables at an interval, until SIGINT or SIGTERM."""
    from headrace.cli.watching import stopping_on_signals
    from headrace.run.stop import StopSignal

    output, stop = invocation.output, StopSignal()
    if every_s <= 0:
        raise click.UsageError("--every must be longer than 0 s")
    with stopping_on_signals(stop) as received:
        while not stop.requested:
            began = time.monotonic()
            # Spark stops after each round: its start takes little of an interval.
            with invocation.pipeline() as pipeline:
                found = pipeline.maintain(tables, options=options, report=show, stop=stop)
            if output.is_json:
                output.line({"tables": [one.to_json() for one in found]})
            elif not stop.requested:
                output.note(_summary(found, dry_run=options.dry_run))
            stop.wait(max(began + every_s - time.monotonic(), 0.0))
    return Result(data=None, text="Stopped.", exit_code=128 + received[0] if received else 0)


def _summary(found: tuple[MaintenanceResult, ...], *, dry_run: bool) -> str:
    if not found:
        return "The storage has no tables yet."
    done = sum(bool(one.steps) for one in found)
    what = "would be maintained; nothing was changed" if dry_run else "needed maintenance"
    return f"{done:,} of {counted(len(found), 'table')} {what}."
