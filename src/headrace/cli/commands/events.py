"""`headrace events` and `quality`: the event log, and the counts of expectations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.text import Text

from headrace.cli.output import Result, with_version
from headrace.cli.verb import POSITIVE, Invocation, complete_dataset, option, read_moment, verb
from headrace.model.texts import wrap
from headrace.observe.event_table import EventFilter, EventLevel, LoggedEvent, follow_events, read_events
from headrace.observe.fitting import FittedTable, empty_table

if TYPE_CHECKING:
    from headrace.observe.quality import DatasetQuality, ExpectationQuality, Quality

_COLORS = {"WARN": "yellow", "ERROR": "red", "METRICS": "bright_black"}


@verb(
    examples=(
        "headrace events --since 1h",
        "headrace events --flow orders --follow",
        "headrace events --level warn --json | jq .message",
    )
)
@option("--flow NAME", "Only events of this flow, view or table.")
@option(
    "--level",
    "The lowest level; metrics are the counts of batches.",
    click.Choice(["metrics", "info", "warn", "error"]),
    default="metrics",
)
@option("--since TIME", "Only events since this time in UTC, or since an age such as 2h.", read_moment)
@option("--limit", "The number of newest events.", POSITIVE, default=100)
@option("--follow", "Wait for new events until Ctrl-C.")
def events(
    invocation: Invocation,
    flow: str | None,
    level: EventLevel,
    since: datetime | None,
    limit: int,
    follow: bool,
) -> Result:
    """Print the event log.

    Prints the events of this pipeline, the oldest first. A run writes its events about once a second. With
    --json, each event is one line. Starts no Spark.
    """
    output, settings = invocation.output, invocation.stored()
    chosen = EventFilter(
        pipeline=settings.name, schema=settings.database, flow=flow, level=level, since=since
    )
    if follow:
        found: Iterator[LoggedEvent] = follow_events(settings.storage, chosen, limit)
    else:
        events = read_events(settings.storage, chosen, limit)
        if not events:
            output.note(f"The event log in {settings.storage.root} has no such events.")
        found = iter(events)
    width = output.width
    lines = (
        json.dumps(output.redactor.data(with_version(event.to_json())), ensure_ascii=False, default=str)
        if output.is_json
        else _as_line(event, width)
        for event in found
    )
    output.pour(lines, at_once=follow)
    return Result(data=None)


def _as_line(event: LoggedEvent, width: int | None) -> str:
    """The event as a line; `width`: that of a terminal, where it can have several."""
    at, level = f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:23], f"{event.level:<7}"
    if width is not None:
        level = click.style(level, fg=_COLORS.get(event.level))
    return "\n".join(wrap(event.message, width, f"{at}  {level}  ", "    "))


_BARS = "▁▂▃▄▅▆▇█"
_ACTIONS = {"warn": "kept", "drop": "dropped", "quarantine": "quarantined", "fail": "stop the flow"}


@verb(
    examples=(
        "headrace quality",
        "headrace quality orders --since 24h",
        "headrace quality --json | jq '.datasets[].expectations[] | select(.failed > 0)'",
    )
)
@click.argument("dataset", required=False, shell_complete=complete_dataset, metavar="[DATASET]")
@option(
    "--since TIME",
    "Only batches since this time in UTC, or since an age such as 2h.",
    read_moment,
    default="7d",
)
def quality(invocation: Invocation, dataset: str | None, since: datetime) -> Result:
    """Show the counts of expectations.

    Shows how many rows passed and failed each expectation, and what happened to the failed rows. The bar
    shows the share of failed rows over time, from left to right. Starts no Spark.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading the event log"):
        quality = pipeline.quality(dataset, since=since)
    schema = pipeline.settings.database
    return Result(data=quality.to_json(), text=lambda: _rendered(quality, schema))


def _rendered(quality: Quality, default_schema: str) -> Group | str:
    if quality.start is None or quality.end is None:
        return f"The event log of {quality.pipeline} has no counts of expectations in this time."
    head = f"{quality.pipeline} · {quality.start:%Y-%m-%d %H:%M:%S} to {quality.end:%Y-%m-%d %H:%M:%S} UTC"
    parts: list[Text | FittedTable] = [Text(head)]
    for one in quality.datasets:
        table = empty_table(padding=1)
        for column in ("expectation", "failed rows", "passed", "failed", "%", "failed over time"):
            is_name, is_number = column == "expectation", column in ("passed", "failed", "%")
            table.add_column(
                column, justify="right" if is_number else "left", no_wrap=not is_name, overflow="fold"
            )
        for expectation in (*one.expectations, *one.bad_records):
            table.add_row(*_cells(expectation, one, default_schema))
        total = one.accepted + one.quarantined + one.dropped
        balance = (
            f"{one.dataset.within(default_schema)}  {total:,} rows = {one.accepted:,} accepted"
            f" + {one.quarantined:,} quarantined + {one.dropped:,} dropped"
        )
        parts += [Text(""), Text(balance, style="bold"), FittedTable(table)]
    return Group(*parts)


def _cells(one: ExpectationQuality, dataset: DatasetQuality, default_schema: str) -> Iterator[str]:
    total = one.passed + one.failed
    where = (
        "" if one.dataset == str(dataset.dataset) else f" ({one.dataset.removeprefix(default_schema + '.')})"
    )
    yield one.name + where
    yield _ACTIONS.get(one.action, one.action)
    yield f"{one.passed:,}"
    yield f"{one.failed:,}"
    yield f"{100 * one.failed / total:.2f}" if total else "-"
    yield "".join(_bar(span.failed, span.passed) for span in one.over_time)


def _bar(failed: int, passed: int) -> str:
    """One character for the share of failed rows; a blank where no row was checked."""
    if failed + passed == 0:
        return " "
    share = failed / (failed + passed)
    return _BARS[0] if failed == 0 else _BARS[max(1, min(int(share * len(_BARS)), len(_BARS) - 1))]
