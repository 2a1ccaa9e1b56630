"""`headrace pin`: versions of tables that stay readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.durations import parse_time
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.maintain.pins import Pin


@verb(
    examples=(
        "headrace pin orders --version 61 --for 30d",
        "headrace pin --list",
        "headrace pin orders --version 61 --remove",
    )
)
@click.argument("table", required=False, shell_complete=complete_dataset)
@click.option(
    "--version", type=click.IntRange(0), metavar="N", help="The version to pin; default: the newest."
)
@click.option(
    "--for",
    "seconds",
    callback=parse_time,
    metavar="TIME",
    help="How long to keep the version, such as 12h or 30d. Required to add a pin.",
)
@click.option("--list", "shows", is_flag=True, help="List the pins of one table or of all tables.")
@click.option("--remove", is_flag=True, help="Remove the pin of the version, or all pins of the table.")
def command(
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
    if shows and (remove or seconds is not None or version is not None):
        raise click.UsageError("--list takes no other option")
    if remove and seconds is not None:
        raise click.UsageError("--for adds a pin, and --remove removes one: give one of them")
    if table is None and not shows:
        raise click.UsageError("name a table, or list the pins with --list")
    if not shows and not remove and seconds is None:
        raise click.UsageError("say how long with --for, such as --for 30d")
    with invocation.pipeline() as pipeline:
        pins = pipeline.pins
        if shows:
            found = pins.list(table)
            return Result(data={"pins": [one.to_json() for one in found]}, text=_listed(found))
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


def _listed(found: Sequence[Pin]) -> str:
    lines = (
        f"{one.table.short}  version {one.version}  until {one.until:%Y-%m-%d %H:%M} UTC" for one in found
    )
    return "\n".join(lines) or "No version is pinned."
