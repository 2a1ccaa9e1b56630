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
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end of the retention, and delete the old files and log entries that have the rows.",
)
def command(invocation: Invocation, table: str, where: str, yes: bool, wait: bool) -> Result:
    """Delete rows from a table, from its quarantine, and from the tables that read it.

    The command first shows how many rows match in each table, and asks for confirmation. Rows of a downstream
    table are deleted if the table has all columns of the condition; other downstream tables are only listed.
    The next run computes materialized views again. Streams that read the tables continue, and
    `headrace verify` still proves the tables. The command is refused while a flow of one of the tables runs.
    Old files and the logs of the tables keep the rows until their retention ends; the command prints what is
    left, and when `headrace maintain` can delete it. With --wait, the command waits and deletes it.
    """
    from headrace.cli.watching import spark_starting

    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_erasure(table, where)
        if not planned.rows and not wait:
            lines = [*planned.lines(), "No row matches; nothing was changed."]
            return Result(data={"done": False, **planned.to_json()}, text="\n".join(lines))
        if not yes:
            output.note("\n".join(planned.lines()))
            remedy = f"headrace erase {table} --where {shlex.quote(where)} --yes"
            if not output.confirm("Erase?", remedy=remedy):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        with output.progress("Deleting the rows"):
            done = pipeline.erase(planned)
        if wait and done.rest:
            output.note("\n".join(done.final_lines()))
            with output.progress("Waiting until the old files and log entries are deleted"):
                done = pipeline.finish_erasure(done)
    lines = [*(f"erased  {line}" for line in map(str, done.steps)), *done.notes, *done.final_lines()]
    return Result(data={"done": True, **done.to_json()}, text="\n".join(lines))
