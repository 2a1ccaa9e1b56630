"""`headrace read`: rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import SpecNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group

    from headrace.observe.read import Rows

_LONG = ("string", "binary", "struct", "array", "map", "variant")
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


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

    chosen = [name.strip() for name in columns.split(",") if name.strip()] if columns else []
    with invocation.output.progress("Reading"):
        rows = read_rows(_find(invocation, table), where=where, limit=limit, columns=chosen)
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
    from rich.table import Table
    from rich.text import Text

    from headrace.observe.read import shown

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
    for name, kind in zip(rows.columns, rows.types, strict=True):
        table.add_column(
            Text(name),
            justify="right" if kind.startswith(_NUMBERS) else "left",
            no_wrap=kind not in _LONG,
            overflow="fold",
        )
    for row in rows.rows:
        table.add_row(*(Text(shown(value), style="dim" if value is None else "") for value in row))
    count = f"{len(rows.rows):,} {'row' if len(rows.rows) == 1 else 'rows'} of {rows.table} v{rows.version}"
    more = ", there are more: --limit" if rows.is_cut else ""
    return Group(table, Text(f"{count}{more}", style="dim"))
