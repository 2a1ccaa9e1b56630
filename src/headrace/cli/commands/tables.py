"""`headrace tables` and `read`: the tables of the storage, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.cli.output import UNCHANGED, Result
from headrace.cli.rows import split_columns, table_rows, with_count
from headrace.cli.verb import POSITIVE, WHOLE, Invocation, complete_dataset, option, read_moment, refuse, verb
from headrace.model.names import TableName
from headrace.model.texts import size_text
from headrace.observe.read import Selection, read_rows

if TYPE_CHECKING:
    from headrace.project.orphans import TableDescription


@verb(
    examples=(
        "headrace tables",
        "headrace tables orders --json",
        "headrace tables --orphaned",
        "headrace tables old_orders --remove",
    )
)
@click.argument("table", required=False, shell_complete=complete_dataset, metavar="[TABLE|PATH]")
@option("--orphaned", "List only tables that no file of the pipeline declares.")
@option("--remove", "Remove an orphaned table, with its checkpoints and its ledger.")
@option("--yes", "Do not ask for confirmation.")
def tables(invocation: Invocation, table: str | None, orphaned: bool, remove: bool, yes: bool) -> Result:
    """List the tables of the storage, or describe one table.

    A description shows columns, types, comments, keys, layout and properties. `headrace status` shows rows
    and lag. The command starts no Spark. A table is orphaned if this pipeline has written it, but its files
    did not declare it in the last run.
    """
    from headrace.project.orphans import describe_table, find_orphaned, list_tables

    if remove:
        if table is None or orphaned:
            raise click.UsageError("--remove needs the name of one table")
        return _remove(invocation, table, yes=yes)
    with invocation.output.progress("Reading"):
        settings = invocation.stored()
        if table is not None:
            one = describe_table(settings, table)
            return Result(data=one.to_json(), text=lambda: _described(one))
        (found, damaged), left = list_tables(settings), find_orphaned(settings)
        if orphaned:
            found = tuple(one for one in found if one.name in left)
    nothing = "The storage has no orphaned tables." if orphaned else "The storage has no tables yet."
    listed = [{**one.to_json(), "orphaned": one.name in left} for one in found]
    return Result(
        data={"tables": listed, "errors": [one.to_dict() for one in damaged]},
        text=lambda: _listed(found, settings.database, left) if found else "" if damaged else nothing,
        errors=damaged,
        exit_code=1 if damaged else 0,
    )


def _remove(invocation: Invocation, table: str, *, yes: bool) -> Result:
    from headrace.project.orphans import load_orphaned

    output, settings = invocation.output, invocation.stored()
    name = settings.table_name(table)
    found = load_orphaned(settings, name)
    lines = [f"{found.files:,} files ({size_text(found.size_bytes)}) would be removed:"]
    lines += [f"  {folder}" for folder in found.folders]
    if not (yes or output.agrees(lines, "Remove?", f"headrace tables {table} --remove --yes")):
        return UNCHANGED
    with invocation.pipeline() as pipeline:
        found = pipeline.remove_table(table)
    text = f"{name.short}  removed: {found.files:,} files ({size_text(found.size_bytes)})"
    return Result(data={"done": True, **found.to_json()}, text=text)


def _listed(found: Sequence[TableDescription], schema: str, left: Sequence[TableName]) -> Table:
    table = _grid("table", "kind", "columns", "comment")
    for one in found:
        kind = f"{one.kind}, orphaned" if one.name in left else one.kind
        table.add_row(
            Text(one.name.within(schema), "bold"), kind, f"{len(one.columns)}", Text(one.stored.comment or "")
        )
    return table


def _described(one: TableDescription) -> Group:
    stored = one.stored
    facts = _grid()
    for name, value in (
        (
            "kind",
            one.kind if one.scd_type is None else f"{one.kind}, changes by key, SCD type {one.scd_type}",
        ),
        ("comment", stored.comment),
        ("keys", ", ".join(one.keys)),
        ("partitioned by", ", ".join(stored.partition_cols)),
        ("clustered by", ", ".join(stored.cluster_by)),
        ("flows", ", ".join(stored.flows)),
        ("pipeline", stored.pipeline),
        ("version", f"{stored.version}"),
        ("folder", str(one.path)),
    ):
        if value:
            facts.add_row(Text(f"  {name}", "dim"), Text(value))
    shown = _grid("column", "type", "", "comment")
    for name, kind, nullable, comment in one.columns:
        shown.add_row(Text(name), Text(kind), "" if nullable else "NOT NULL", Text(comment or ""))
    parts: list[Text | Table] = [Text(str(one.name), "bold"), facts, Text(""), shown]
    if one.properties:
        properties = _grid("property", "value")
        for name, value in one.properties.items():
            properties.add_row(Text(name), Text(value))
        parts += [Text(""), properties]
    return Group(*parts)


def _grid(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=bool(names))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


@verb(
    examples=(
        "headrace read gold --limit 5",
        "headrace read orders --where \"amount > 1000 AND customer = 'ada'\" --columns id,amount",
        "headrace read orders --version 61",
        "headrace read ./lake/tables/default/gold --timestamp 2026-11-20T08:14 --json",
    )
)
@click.argument("table", shell_complete=complete_dataset, metavar="TABLE|PATH")
@option("--where SQL", "Show only rows that match this condition.")
@option("--limit", "The maximum number of rows.", POSITIVE, default=20)
@option("--columns A,B", "The columns to show; a dot selects a field of a struct.")
@option("--version N", "Read this version of the table, not the newest.", WHOLE)
@option(
    "--timestamp TIME",
    "Read the version that was the newest at this time: a time in UTC, or an age such as 2h.",
    read_moment,
)
def read(
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
    from headrace.project.reading import locate_table

    both = version is not None and timestamp is not None
    refuse((both, "--version and --timestamp both name the version to read"))
    selection = Selection(
        where=where, limit=limit, columns=tuple(split_columns(columns)), version=version, timestamp=timestamp
    )
    with invocation.output.progress("Reading"):
        rows = read_rows(locate_table(table, invocation.stored), selection)

    def rendered() -> Group:
        table, remark = table_rows(rows, with_sequences=columns is not None)
        return with_count(table, rows.rows, f" of {rows.table} v{rows.version}{remark}", is_cut=rows.is_cut)

    return Result(data=rows.to_json(), text=rendered)
