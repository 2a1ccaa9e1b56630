"""`headrace plan`: what a run would do."""

from __future__ import annotations

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.output import EXIT_CHANGES, Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError


@verb(
    examples=(
        "headrace plan",
        "headrace plan revenue --offline",
        "headrace plan --exit-code --profile prod",
        "headrace plan --mermaid > pipeline.mmd",
    )
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
@click.option("--offline", is_flag=True, help="Do not read the storage; omit the list of changes.")
@click.option("--mermaid", is_flag=True, help="Print only the graph, as a Mermaid flowchart.")
@click.option("--exit-code", is_flag=True, help="Exit code 4 if a run would change a table, else 0.")
def command(
    invocation: Invocation, datasets: tuple[str, ...], offline: bool, mermaid: bool, exit_code: bool
) -> Result:
    """Show what a run would do; writes nothing.

    Runs the files of the pipeline, resolves every query against empty tables with the right schemas,
    and reports each error with its file and line.

    Unread records do not count as a change: --exit-code reports whether a run would create, alter or
    recompute a table. What a run would refuse is printed with its remedy; the exit code is then 1.
    """
    from headrace.cli.watching import spark_starting
    from headrace.plan.explain import WIDTH, Explanation

    if offline and exit_code:
        raise CommandLineError(
            "--exit-code needs the list of changes, which --offline omits",
            remedies=["headrace plan --exit-code", "headrace plan --offline"],
            params={"options": ["--offline", "--exit-code"]},
        )
    with (
        invocation.pipeline() as pipeline,
        spark_starting(invocation.output, "Starting Spark, resolving the pipeline"),
    ):
        plan = pipeline.plan(datasets, offline=offline)
    explanation = Explanation(plan)
    code = EXIT_CHANGES if exit_code and plan.would_change else 0
    if plan.refusals:
        code = 1
    if mermaid:
        picture = explanation.to_mermaid()
        return Result(data={"mermaid": picture}, text=picture, errors=plan.refusals, exit_code=code)
    data = explanation.to_json()
    width = min(invocation.output.width or WIDTH, WIDTH)
    return Result(data=data, text=lambda: explanation.to_text(width), errors=plan.refusals, exit_code=code)
