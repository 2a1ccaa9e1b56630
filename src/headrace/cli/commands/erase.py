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
    """Delete rows of a table, of its quarantine, and of the tables that read it.

    Shows first how many rows each table has, and asks for confirmation. Tables downstream are erased if
    they have all columns of the condition; others are named. Views are computed again by the next run.
    Streams that read the tables continue, and the proof still holds. The command is refused while a flow
    of one of the tables runs. Older versions of the tables have the rows until a vacuum; the command
    prints when, and the statements.
    """
    from headrace.cli.watching import spark_starting

    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, pipeline.settings, "Starting Spark, resolving the pipeline"):
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
