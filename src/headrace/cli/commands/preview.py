"""`headrace preview`: rows of a query, without writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.output import Result
from headrace.cli.rows import RowsTable, split_columns
from headrace.cli.verb import Invocation, verb
from headrace.model.declarations import Action
from headrace.model.texts import counted
from headrace.project.pipeline import RECORDS

_OUTCOMES: Mapping[Action, str] = {
    "warn": "kept",
    "drop": "dropped",
    "quarantine": "moved to the quarantine table",
    "fail": "a run would stop",
}

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.project.preview import Preview


@verb(
    examples=(
        "headrace preview orders",
        "headrace preview revenue --records 100000 --limit 5",
        'headrace preview orders --where "amount > 1000" --columns id,amount,_source.offset',
    )
)
@click.argument("dataset", shell_complete=complete_dataset, metavar="DATASET|FLOW")
@click.option("--where", metavar="SQL", help="Show only rows that match this condition.")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="The maximum number of rows."
)
@click.option("--columns", metavar="A,B", help="The columns to show; a dot selects a field of a struct.")
@click.option(
    "--records",
    type=click.IntRange(1),
    default=RECORDS,
    show_default=True,
    help="Read this many of the newest records of each Kafka source.",
)
def command(
    invocation: Invocation, dataset: str, where: str | None, limit: int, columns: str | None, records: int
) -> Result:
    """Show rows of a query, computed from what its sources hold now; writes nothing.

    Reads the newest records of each topic, and each table as it is. A table that does not exist yet is
    computed from its own query. Aggregates cover only the rows that were read. Rows that an expectation
    rejects are counted but not shown.
    """
    from headrace.cli.watching import spark_starting

    with (
        invocation.pipeline() as pipeline,
        spark_starting(invocation.output, "Starting Spark, computing rows"),
    ):
        preview = pipeline.preview(
            dataset, where=where, limit=limit, columns=split_columns(columns), records=records
        )
    return Result(data=preview.to_json(), text=lambda: _rendered(preview))


def _rendered(preview: Preview) -> Group:
    from rich.console import Group
    from rich.text import Text

    more = "; use --limit to see more" if preview.is_cut else ""
    lines = [f"{counted(len(preview.rows), 'row')} of {preview.dataset}{more}", *map(str, preview.sources)]
    lines += [
        f"{counted(one.failed, 'row')} of {one.passed + one.failed} {'fails' if one.failed == 1 else 'fail'} "
        f"the expectation `{one.name}`: {_OUTCOMES[one.action]}"
        for one in preview.expectations
        if one.failed
    ]
    for bad in preview.bad_records:
        records = "1 record has" if bad.records == 1 else f"{bad.records:,} records have"
        lines.append(f"{records} no row, {bad.name}: moved to the quarantine table by a run")
        lines += [f"  {example}" for example in bad.examples]
    table = RowsTable(preview.columns, preview.types, preview.rows)
    return Group(table, *(Text(line, style="dim") for line in lines))
