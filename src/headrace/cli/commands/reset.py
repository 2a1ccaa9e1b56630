"""`headrace reset`: new checkpoints for chosen flows."""

from __future__ import annotations

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb


@verb(examples=("headrace reset orders", "headrace reset orders items --yes"))
@click.argument("flows", nargs=-1, required=True, metavar="FLOW..")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(invocation: Invocation, flows: tuple[str, ...], yes: bool) -> Result:
    """Create a new checkpoint for a flow, and keep the rows of its table.

    The new checkpoint continues each source where the earlier ones have ended, as the table and the ledger
    record it. A source that the flow has never read is read from its beginning. The old checkpoint cannot
    commit any more. Shows first where each source continues, and asks for confirmation. Reads no records:
    the next run does.
    """
    from headrace.cli.watching import spark_starting

    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, pipeline.settings, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_reset(flows)
        if not yes:
            output.note("\n".join(planned.lines()))
            if not output.confirm("Reset?", remedy=f"headrace reset {' '.join(flows)} --yes"):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        done = pipeline.reset(flows)
    text = "\n".join([*done.lines(), "Next: headrace run"])
    return Result(data={"done": True, **done.to_json()}, text=text)
