"""`headrace events`: the event log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from headrace.cli.moments import read_moment
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from headrace.observe.event_reading import EventLevel, LoggedEvent

_COLORS = {"WARN": "yellow", "ERROR": "red", "METRICS": "bright_black"}


@verb(
    examples=(
        "headrace events --since 1h",
        "headrace events --flow orders --follow",
        "headrace events --level warn --json | jq .message",
    )
)
@click.option("--flow", metavar="NAME", help="Only events of this flow, view or table.")
@click.option(
    "--level",
    type=click.Choice(["metrics", "info", "warn", "error"]),
    default="metrics",
    show_default=True,
    help="The lowest level; metrics are the counts of batches.",
)
@click.option(
    "--since",
    callback=read_moment,
    metavar="TIME",
    help="Only events since this time in UTC, or since an age such as 2h.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="The number of newest events."
)
@click.option("--follow", is_flag=True, help="Wait for new events until Ctrl-C.")
def command(
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
    from headrace.observe.event_reading import EventFilter, follow_events, read_events

    output, settings = invocation.output, invocation.settings()
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
    colored = output.is_terminal
    lines = (_as_json(event) if output.is_json else _as_line(event, colored) for event in found)
    output.pour(lines, at_once=follow)
    return Result(data=None)


def _as_line(event: LoggedEvent, colored: bool) -> str:
    at, level = f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:23], f"{event.level:<7}"
    if colored:
        level = click.style(level, fg=_COLORS.get(event.level))
    return f"{at}  {level}  {event.message}"


def _as_json(event: LoggedEvent) -> str:
    return json.dumps(event.to_json(), ensure_ascii=False, default=str)
