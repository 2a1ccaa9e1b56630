"""`headrace lineage`: the columns before and after a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, complete_dataset, verb
from headrace.model.texts import counted
from headrace.project.last_results import load_result

if TYPE_CHECKING:
    from headrace.lineage.graph import Edge, Lineage

_STYLES = {"identity": "green", "transformation": "green", "aggregation": "green"}
_DEEPEST = 40


@verb(
    examples=(
        "headrace lineage",
        "headrace lineage revenue",
        "headrace lineage revenue.total",
        "headrace lineage orders.value.amount --json",
    )
)
@click.argument("dataset", required=False, shell_complete=complete_dataset, metavar="[DATASET[.COLUMN]]")
def lineage(invocation: Invocation, dataset: str | None) -> Result:
    """Show the inputs of each column, and the columns that use it.

    Without an argument, lists the datasets with their inputs. With a dataset, shows the columns from which
    each of its columns is computed, and how. With a column, shows its whole path: down to the topics and
    files, and up to the last dataset that uses it. A topic or another source can be given like a dataset.

    Shows what the last `headrace plan` on this machine, or the last run, has recorded; starts no Spark.
    """
    from headrace.lineage.recorded import load_lineage

    with invocation.output.progress("Reading the event log"):
        settings = invocation.stored()
        found = load_lineage(settings, load_result(settings, settings.name, "plan"))
    if dataset is None:
        return Result(data=found.to_json(), text=lambda: _overview(found))
    id, column = found.find(dataset, settings)
    return Result(
        data=found.to_json(id, column),
        text=lambda: _of_dataset(found, id) if column is None else _of_column(found, id, column),
    )


def _head(found: Lineage) -> str:
    at = found.at[:19].replace("T", " ")
    return f"{found.pipeline} · recorded by a {found.recorded} at {at} UTC"


def _grid(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _overview(found: Lineage) -> Group:
    table = _grid("dataset", "kind", "columns", "reads")
    for one in found.datasets.values():
        if one.kind not in ("source", "table"):
            columns = "not known" if one.id in found.unknown else f"{len(one.columns)}"
            reads = ", ".join(map(found.short, one.reads)) or "-"
            table.add_row(Text(found.short(one.id), "bold"), one.kind.replace("_", " "), columns, reads)
    return Group(Text(_head(found)), Text(""), table)


def _of_dataset(found: Lineage, id: str) -> Group:
    dataset = found.datasets[id]
    parts: list[Text | Table] = [
        Text(_head(found)),
        Text(f"{found.short(id)}  {dataset.kind.replace('_', ' ')}", "bold"),
    ]
    if id in found.unknown:
        parts.append(Text("The lineage of a query of this dataset is not known.", "yellow"))
    edges = found.into(id)
    if dataset.kind not in ("source", "table"):
        table = _grid("column", "from", "how")
        for column in dataset.columns:
            _add(table, found, column, [one for one in edges if one.column == column])
        if rows := [one for one in edges if one.column is None]:
            _add(table, found, "(which rows)", rows)
        parts += [Text(""), table]
    if dataset.through:
        parts.append(
            Text(f"through the temporary views {', '.join(map(found.short, dataset.through))}", "dim")
        )
    if readers := found.out_of(id):
        table = _grid("column", "used by", "how")
        for column in dict.fromkeys(one.source_column for one in readers):
            chosen = [one for one in readers if one.source_column == column]
            for number, one in enumerate(chosen):
                table.add_row("" if number else column, _target(found, one), _how(one))
        parts += [Text(""), table]
    if users := [one.id for one in found.datasets.values() if id in one.through]:
        parts.append(Text(f"read by {', '.join(map(found.short, users))}"))
    return Group(*parts)


def _add(table: Table, found: Lineage, column: str, edges: Sequence[Edge]) -> None:
    for number, one in enumerate(edges):
        source = f"{found.short(one.source)}.{one.source_column}"
        table.add_row(Text("" if number else column, "bold"), source, _how(one))
    if not edges:
        table.add_row(Text(column, "bold"), Text("no column", "dim"), Text("-", "dim"))


def _how(one: Edge) -> Text:
    text = one.way.replace("_", " ") + (", masked" if one.masked else "")
    return Text(text, _STYLES.get(one.way, "dim"))


def _target(found: Lineage, one: Edge) -> str:
    return f"{found.short(one.dataset)}.{one.column}" if one.column else f"{found.short(one.dataset)} (rows)"


def _of_column(found: Lineage, id: str, column: str) -> Group:
    table = _grid("comes from", "how")
    for text, how in _paths(found, id, column, "", set(), up=True):
        table.add_row(text, how)
    if not table.row_count and found.datasets[id].kind not in ("source", "table"):
        table.add_row("no column: it is a constant, or a count of rows", "-")
    for one in found.into(id):
        if one.column is None:
            source = f"{found.short(one.source)}.{one.source_column}"
            table.add_row(source, Text(f"{_how(one)} of the rows", "dim"))
    parts: list[Text | Table] = [Text(_head(found)), Text(f"{found.short(id)}.{column}", "bold")]
    parts += [Text(""), table] if table.row_count else []
    used = _grid("is used by", "how")
    for text, how in _paths(found, id, column, "", set(), up=False):
        used.add_row(text, how)
    parts += [Text(""), used if used.row_count else Text("no dataset uses it")]
    affected = {one.dataset for one in found.downstream(id, column)}
    if len(affected) > 1:
        parts.append(Text(f"{counted(len(affected), 'dataset')} depend on it", "dim"))
    return Group(*parts)


def _paths(
    found: Lineage, id: str, column: str, indent: str, seen: set[tuple[str, str]], *, up: bool
) -> Iterator[tuple[str, Text]]:
    """The lines of a tree of columns. A column that was shown already is not followed again."""
    for one in found.into(id, column) if up else found.out_of(id, column):
        text = f"{found.short(one.source)}.{one.source_column}" if up else _target(found, one)
        following = (one.source, one.source_column) if up else (one.dataset, one.column or "")
        again = following in seen and bool(found.into(*following) if up else found.out_of(*following))
        yield f"{indent}{text}{' (see above)' if again else ''}", _how(one)
        if not again and following[1] and len(indent) < _DEEPEST:
            seen.add(following)
            yield from _paths(found, *following, f"{indent}  ", seen, up=up)
