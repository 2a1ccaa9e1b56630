"""`headrace tables`: the tables of the storage, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from headrace.project.tables import TableDescription


@verb(examples=("headrace tables", "headrace tables orders", "headrace tables orders --json"))
@click.argument("table", required=False, shell_complete=complete_dataset, metavar="[TABLE|PATH]")
def command(invocation: Invocation, table: str | None) -> Result:
    """List the tables of the storage, or describe one table.

    A description shows columns, types, comments, keys, layout and properties. `headrace status` shows rows
    and lag. The command starts no Spark.
    """
    from headrace.project.tables import describe_table, list_tables

    with invocation.output.progress("Reading"):
        settings = invocation.settings()
        if table is not None:
            one = describe_table(settings, table)
            return Result(data=one.to_json(), text=lambda: _described(one))
        found = list_tables(settings)
    return Result(
        data=[one.to_json() for one in found],
        text=lambda: _listed(found, settings.database) if found else "The storage has no tables yet.",
    )


def _listed(found: Sequence[TableDescription], schema: str) -> Table:
    from rich.text import Text

    table = _grid("table", "kind", "columns", "comment")
    for one in found:
        name = one.name.name if one.name.schema == schema else str(one.name)
        table.add_row(Text(name, "bold"), one.kind, f"{len(one.columns)}", Text(one.stored.comment or ""))
    return table


def _described(one: TableDescription) -> Group:
    from rich.console import Group
    from rich.text import Text

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
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=bool(names))
    for name in names:
        table.add_column(name)
    return table
