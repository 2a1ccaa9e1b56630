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

    from headrace.maintain.pins import Pin, RegisteredReader


@verb(
    examples=(
        "headrace pin orders --version 61 --for 30d",
        "headrace pin --list",
        "headrace pin orders --version 61 --remove",
        "headrace pin orders --reader bi --max-lag 7d",
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
@click.option(
    "--reader",
    metavar="NAME",
    help="Register a reader of another system, or record the version up to which it has read.",
)
@click.option(
    "--max-lag",
    callback=parse_time,
    metavar="TIME",
    help="How long commits and files are kept for the reader, such as 7d. Required for a new reader.",
)
@click.option(
    "--list", "shows", is_flag=True, help="List the pins and the readers of one table or of all tables."
)
@click.option(
    "--remove", is_flag=True, help="Remove the pin of the version, all pins of the table, or the reader."
)
def command(
    invocation: Invocation,
    table: str | None,
    version: int | None,
    seconds: float | None,
    reader: str | None,
    max_lag: float | None,
    shows: bool,
    remove: bool,
) -> Result:
    """Keep a version of a table readable for a time, or register a reader of another system.

    `headrace maintain` keeps the files of a pinned version, and the part of the log that is needed to read
    it. For a registered reader, it keeps the version that the reader has read, and all later versions, up to
    the maximum lag. `VACUUM` in other engines ignores pins and readers.
    """
    if shows and (remove or seconds is not None or version is not None or reader is not None):
        raise click.UsageError("--list takes no other option")
    if remove and seconds is not None:
        raise click.UsageError("--for adds a pin, and --remove removes one: give one of them")
    if table is None and not shows:
        raise click.UsageError("name a table, or list the pins with --list")
    if max_lag is not None and (reader is None or remove):
        raise click.UsageError("--max-lag needs --reader, and cannot be combined with --remove")
    if reader is not None and seconds is not None:
        raise click.UsageError("--for sets the time of a pin; use --max-lag for a reader")
    if not shows and not remove and seconds is None and reader is None:
        raise click.UsageError("say how long with --for, such as --for 30d")
    with invocation.pipeline() as pipeline:
        pins = pipeline.pins
        if shows:
            found, readers = pins.list(table), pins.readers(table)
            data = {
                "pins": [one.to_json() for one in found],
                "readers": [one.to_json() for one in readers],
            }
            return Result(data=data, text=_listed(found, readers))
        assert table is not None
        if reader is not None and remove:
            gone = pins.remove_reader(table, reader)
            text = (
                f"{table}  reader {reader} is no longer registered"
                if gone
                else f"{table} has no reader {reader}"
            )
            return Result(data={"removed": [one.to_json() for one in gone]}, text=text)
        if reader is not None:
            known = pins.add_reader(table, reader, version, max_lag)
            return Result(data={"reader": known.to_json()}, text=_reader_line(known))
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


def _listed(found: Sequence[Pin], readers: Sequence[RegisteredReader]) -> str:
    lines = [
        f"{one.table.short}  version {one.version}  until {one.until:%Y-%m-%d %H:%M} UTC" for one in found
    ]
    return (
        "\n".join([*lines, *map(_reader_line, readers)])
        or "No version is pinned, and no reader is registered."
    )


def _reader_line(one: RegisteredReader) -> str:
    from headrace.model.texts import duration_text

    lag = duration_text(one.max_lag_s)
    return f"{one.table.short}  reader {one.name} has read version {one.version}; maximum lag: {lag}"
