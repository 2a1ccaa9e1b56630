"""`headrace maintain`, `pin` and `erase`: the care of tables, pinned versions, and deleted rows."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from headrace.cli.output import UNCHANGED, Result
from headrace.cli.verb import WHOLE, Invocation, complete_dataset, option, parse_time, refuse, verb
from headrace.cli.watching import spark_starting, stopping_on_signals
from headrace.model.texts import counted
from headrace.run.stop import StopSignal

if TYPE_CHECKING:
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
@option("--only", "Do only this step; can be repeated.", click.Choice(_STEPS), multiple=True)
@option("--dry-run", "Show the planned steps, with files and bytes; change nothing.")
@option(
    "--retain TIME",
    "Keep files that left the table within this time; replaces the table's retention.",
    parse_time,
)
@option("--allow-short-retention", "Allow a retention below 7 days.")
@option(
    "--ignore-reader FLOW",
    "Also delete files and commits that this flow has not read. The flow may then need a full refresh.",
    multiple=True,
)
@option("--every TIME", "Repeat at this interval, such as 1h, until stopped.", parse_time)
def maintain(
    invocation: Invocation,
    tables: tuple[str, ...],
    only: tuple[str, ...],
    dry_run: bool,
    retain: float | None,
    allow_short_retention: bool,
    ignore_reader: tuple[str, ...],
    every: float | None,
) -> Result:
    """Compact and vacuum tables that need it, clean their logs, and remove replaced checkpoints.

    Without TABLE, the command maintains all tables of the storage. The key `maintenance` in the spec sets
    when a step is necessary. The command keeps files and commits that a flow of the storage, a pinned version
    or the ledger still needs. It does not compact a table whose flow runs in another process: that run does
    it. The command starts Spark only for compaction. With --every, Ctrl-C or SIGTERM ends the command after
    the current table. The exit code is 1 if a table could not be maintained.
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
    output, stop = invocation.output, StopSignal()
    refuse((every_s <= 0, "--every must be longer than 0 s"))
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
    refused = sum(one.warning is not None for one in found)
    what = "needed maintenance"
    if dry_run:
        what = "would be maintained; nothing was changed"
    elif refused:
        what = f"maintained, {refused:,} with a refusal or failure"
    return f"{done:,} of {counted(len(found), 'table')} {what}."


@verb(
    examples=(
        "headrace pin orders --version 61 --for 30d",
        "headrace pin --list",
        "headrace pin orders --version 61 --remove",
    )
)
@click.argument("table", required=False, shell_complete=complete_dataset)
@option("--version N", "The version to pin; default: the newest.", WHOLE)
@option(
    "--for TIME",
    "How long to keep the version, such as 12h or 30d. Required to add a pin.",
    parse_time,
    name="seconds",
)
@option("--list", "List the pins of one table or of all tables.", name="shows")
@option("--remove", "Remove the pin of the version, or all pins of the table.")
def pin(
    invocation: Invocation,
    table: str | None,
    version: int | None,
    seconds: float | None,
    shows: bool,
    remove: bool,
) -> Result:
    """Keep a version of a table readable for a time.

    `headrace maintain` keeps the files of a pinned version, and the part of the log that is needed to read
    it. `VACUUM` in other engines ignores pins.
    """
    adds = seconds is not None
    refuse(
        (shows and (remove or adds or version is not None), "--list takes no other option"),
        (remove and adds, "--for adds a pin, and --remove removes one: give one of them"),
        (table is None and not shows, "name a table, or list the pins with --list"),
        (not (shows or remove or adds), "say how long with --for, such as --for 30d"),
    )
    with invocation.pipeline() as pipeline:
        pins = pipeline.pins
        if shows:
            found = pins.list(table)
            lines = [
                f"{one.table.short}  version {one.version}  until {one.until:%Y-%m-%d %H:%M} UTC"
                for one in found
            ]
            text = "\n".join(lines) or "No version is pinned."
            return Result(data={"pins": [one.to_json() for one in found]}, text=text)
        assert table is not None
        if remove:
            found = pins.remove(table, version)
            text = "\n".join(
                f"{one.table.short}  version {one.version} is not pinned any more" for one in found
            )
            return Result(data={"removed": [one.to_json() for one in found]}, text=text or "No such pin.")
        assert seconds is not None
        pin = pins.add(table, version, seconds)
    text = f"{pin.table.short}  version {pin.version} is pinned until {pin.until:%Y-%m-%d %H:%M} UTC"
    return Result(data={"pinned": pin.to_json()}, text=text)


@verb(
    examples=(
        "headrace erase orders --where \"customer = 'ada'\"",
        'headrace erase customers --where "id IN (17, 18)" --yes',
    )
)
@click.argument("table", shell_complete=complete_dataset, metavar="TABLE")
@option("--where SQL", "Delete the rows that match this condition.", required=True)
@option("--yes", "Do not ask for confirmation.")
@option(
    "--wait",
    "Wait for the end of the retention, and delete the old files and log entries that have the rows.",
)
def erase(invocation: Invocation, table: str, where: str, yes: bool, wait: bool) -> Result:
    """Delete rows from a table, from its quarantine, and from the tables that read it.

    The command first shows how many rows match in each table, and asks for confirmation. Rows of a downstream
    table are deleted if the table has all columns of the condition; other downstream tables are only listed.
    The next run computes materialized views again. Streams that read the tables continue, and
    `headrace verify` still proves the tables. The command is refused while a flow of one of the tables runs,
    or a view that reads them is computed.
    Old files and the logs of the tables keep the rows until their retention ends; the command prints what is
    left, and when `headrace maintain` can delete it. With --wait, the command waits and deletes it;
    the exit code is 1 if the files of a table could not be checked.
    """
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_erasure(table, where)
        if not (planned.rows or planned.unfinished or wait):
            lines = [*planned.lines(), "No row matches; nothing was changed."]
            return Result(data={"done": False, **planned.to_json()}, text="\n".join(lines))
        remedy = f"headrace erase {table} --where {shlex.quote(where)}{' --wait' if wait else ''} --yes"
        if not (yes or output.agrees(planned.lines(), "Erase?", remedy)):
            return UNCHANGED
        with output.progress("Deleting the rows"):
            done = pipeline.erase(planned)
        if wait and done.rest:
            output.note("\n".join(done.final_lines()))
            with output.progress("Waiting until the old files and log entries are deleted"):
                done = pipeline.finish_erasure(done)
    lines = [*(f"erased  {line}" for line in map(str, done.steps)), *done.notes, *done.final_lines()]
    code = 1 if wait and done.unchecked else 0
    return Result(data={"done": True, **done.to_json()}, text="\n".join(lines), exit_code=code)
