"""`headrace erase`: delete rows of a table and of the tables downstream."""

from __future__ import annotations

import shlex

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb


@verb(
    examples=(
        "headrace erase orders --where \"customer = 'ada'\"",
        'headrace erase customers --where "id IN (17, 18)" --yes',
    )
)
@click.argument("table", shell_complete=complete_dataset, metavar="TABLE")
@click.option("--where", required=True, metavar="SQL", help="Delete the rows that match this condition.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(invocation: Invocation, table: str, where: str, yes: bool) -> Result:
    """Delete rows from a table, from its quarantine, and from the tables that read it.

    The command first shows how many rows match in each table, and asks for confirmation. Rows of a downstream
    table are deleted if the table has all columns of the condition; other downstream tables are only listed.
    The next run computes materialized views again. Streams that read the tables continue, and
    `headrace verify` still proves the tables. The command is refused while a flow of one of the tables runs.
    Older versions of the tables keep the rows until a vacuum; the command prints when a vacuum removes them,
    and the statements.
    """
    from headrace.cli.watching import spark_starting

    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_erasure(table, where)
        if not planned.rows:
            lines = [*planned.lines(), "No row matches; nothing was changed."]
            return Result(data={"done": False, **planned.to_json()}, text="\n".join(lines))
        if not yes:
            output.note("\n".join(planned.lines()))
            remedy = f"headrace erase {table} --where {shlex.quote(where)} --yes"
            if not output.confirm("Erase?", remedy=remedy):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        with output.progress("Deleting the rows"):
            done = pipeline.erase(planned)
    lines = [*(f"erased  {line}" for line in map(str, done.steps)), *done.notes, *done.final_lines()]
    return Result(data={"done": True, **done.to_json()}, text="\n".join(lines))
