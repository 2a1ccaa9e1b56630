"""`headrace refresh`: bring selected datasets up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.logs import log_options
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from headrace.model.project import LogFormat, LogLevel


@verb(examples=("headrace refresh revenue", "headrace refresh orders revenue --yes"))
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, required=True, metavar="DATASET..")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@log_options
def command(
    invocation: Invocation,
    datasets: tuple[str, ...],
    yes: bool,
    log_level: LogLevel | None,
    log_format: LogFormat | None,
) -> Result:
    """Bring selected datasets up to date.

    The command first shows what a run of these datasets would do, and asks for confirmation. Tables that
    these datasets read are not updated.
    """
    from headrace.cli.watching import Watch, show_outcome, spark_starting, stopping
    from headrace.observe.log import LogSettings
    from headrace.plan.explain import WIDTH, Explanation
    from headrace.run.stop import StopSignal

    output, stop = invocation.output, StopSignal()
    with invocation.pipeline() as pipeline:
        if not yes:
            with spark_starting(output, "Starting Spark, resolving the pipeline"):
                plan = pipeline.plan(datasets)
            explanation = Explanation(plan)
            if plan.refusals:
                return Result(data=explanation.to_json(), errors=plan.refusals, exit_code=1)
            output.note(explanation.to_text(min(output.width or WIDTH, WIDTH)))
            if not output.confirm("Refresh?", remedy=f"headrace refresh {' '.join(datasets)} --yes"):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        with (
            Watch(output, pipeline.settings, "Starting Spark") as watch,
            stopping(stop, watch) as received,
        ):
            log = LogSettings.of(log_format, log_level)
            result = pipeline.run(datasets, emit=watch, stop=stop, log=log)
    return show_outcome(output, result, received)
