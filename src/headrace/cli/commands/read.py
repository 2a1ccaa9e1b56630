"""`headrace read`: rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.moments import read_moment
from headrace.cli.output import Result
from headrace.cli.rows import split_columns, table_rows
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError
from headrace.model.texts import counted

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Group

    from headrace.observe.read import Rows


@verb(
    examples=(
        "headrace read gold --limit 5",
        "headrace read orders --where \"amount > 1000 AND customer = 'ada'\" --columns id,amount",
        "headrace read orders --version 61",
        "headrace read ./lake/tables/default/gold --timestamp 2026-11-20T08:14 --json",
    )
)
@click.argument("table", shell_complete=complete_dataset, metavar="TABLE|PATH")
@click.option("--where", metavar="SQL", help="Show only rows that match this condition.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="The maximum number of rows."
)
@click.option("--columns", metavar="A,B", help="The columns to show; a dot selects a field of a struct.")
@click.option(
    "--version", type=click.IntRange(0), metavar="N", help="Read this version of the table, not the newest."
)
@click.option(
    "--timestamp",
    callback=read_moment,
    metavar="TIME",
    help="Read the version that was the newest at this time: a time in UTC, or an age such as 2h.",
)
def command(
    invocation: Invocation,
    table: str,
    where: str | None,
    limit: int,
    columns: str | None,
    version: int | None,
    timestamp: datetime | None,
) -> Result:
    """Show rows of a table.

    Reads a dataset of the pipeline, or any folder that is a Delta table. Starts no Spark. The order of
    the rows is not defined. The columns _sequence and _sequences of an AUTO CDC table are shown only if
    --columns names them.
    """
    from headrace.observe.read import Selection, read_rows
    from headrace.project.reading import locate_table

    if version is not None and timestamp is not None:
        raise CommandLineError(
            "--version and --timestamp both name the version to read",
            remedies=["headrace read --help"],
            params={"options": ["--version", "--timestamp"]},
        )
    selection = Selection(
        where=where,
        limit=limit,
        columns=tuple(split_columns(columns)),
        version=version,
        timestamp=timestamp,
    )
    with invocation.output.progress("Reading"):
        rows = read_rows(locate_table(table, invocation.settings), selection)
    return Result(data=rows.to_json(), text=lambda: _rendered(rows, with_sequences=columns is not None))


def _rendered(rows: Rows, *, with_sequences: bool) -> Group:
    from rich.console import Group
    from rich.text import Text

    table, remark = table_rows(rows, with_sequences=with_sequences)
    more = "; use --limit to see more" if rows.is_cut else ""
    count = f"{counted(len(rows.rows), 'row')} of {rows.table} v{rows.version}{remark}{more}"
    return Group(table, Text(count, style="dim"))
