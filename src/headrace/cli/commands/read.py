"""`headrace read`: rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.rows import counted, rows_table, split_columns
from headrace.cli.verb import Invocation, verb
from headrace.errors import SpecNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group

    from headrace.observe.read import Rows


@verb(
    examples=(
        "headrace read gold --limit 5",
        "headrace read orders --where \"amount > 1000 AND customer = 'ada'\" --columns id,amount",
        "headrace read ./lake/tables/default/gold --json",
    )
)
@click.argument("table", metavar="TABLE|PATH")
@click.option("--where", metavar="SQL", help="Only rows for which this holds.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many rows at most.")
@click.option("--columns", metavar="A,B", help="Which columns; a dot leads into a struct.")
def command(invocation: Invocation, table: str, where: str | None, limit: int, columns: str | None) -> Result:
    """Show rows of a table.

    A dataset of the pipeline, or any folder that is a Delta table. Starts no Spark; which rows come
    first is up to the table's files.
    """
    from headrace.observe.read import read_rows

    with invocation.output.progress("Reading"):
        rows = read_rows(_find(invocation, table), where=where, limit=limit, columns=split_columns(columns))
    return Result(data=rows.to_json(), text=lambda: _rendered(rows))


def _find(invocation: Invocation, table: str) -> Path:
    from headrace.observe.read import find_table

    try:
        settings = invocation.settings()
    except SpecNotFoundError:
        if "/" not in table:
            raise
        # A folder needs no pipeline around it.
        return find_table(table, None, "default")
    return find_table(table, settings.storage, settings.database)


def _rendered(rows: Rows) -> Group:
    from rich.console import Group
    from rich.text import Text

    more = ", there are more: --limit" if rows.is_cut else ""
    count = f"{counted(len(rows.rows))} of {rows.table} v{rows.version}{more}"
    return Group(rows_table(rows.columns, rows.types, rows.rows), Text(count, style="dim"))
