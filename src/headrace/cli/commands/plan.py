"""`headrace plan`: what a run would do."""

from __future__ import annotations

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb


@verb(examples=("headrace plan", "headrace plan revenue --offline", "headrace plan --mermaid > pipeline.mmd"))
@click.argument("datasets", nargs=-1, metavar="[DATASET]..")
@click.option("--offline", is_flag=True, help="Leave out what would change in the storage.")
@click.option("--mermaid", is_flag=True, help="The graph alone, as a Mermaid flowchart.")
def command(invocation: Invocation, datasets: tuple[str, ...], offline: bool, mermaid: bool) -> Result:
    """Show what a run would do; writes nothing.

    Runs the pipeline's files, resolves every query against tables that stand in for the real ones,
    and checks all that can be known: what is wrong is named with file and line.
    """
    from headrace.cli.watching import spark_starting
    from headrace.plan.explain import Explanation

    with (
        invocation.pipeline() as pipeline,
        spark_starting(invocation.output, pipeline.settings, "Starting Spark, resolving the pipeline"),
    ):
        explanation = Explanation(pipeline.plan(datasets, offline=offline))
    if mermaid:
        picture = explanation.to_mermaid()
        return Result(data={"mermaid": picture}, text=picture)
    return Result(data=explanation.to_json(), text=explanation.to_text)
