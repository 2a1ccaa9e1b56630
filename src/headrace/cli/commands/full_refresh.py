"""`headrace full-refresh`: rebuild datasets from their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.logs import log_options
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from headrace.model.project import LogFormat, LogLevel


@verb(examples=("headrace full-refresh orders", "headrace full-refresh orders --accept-loss orders --yes"))
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, required=True, metavar="DATASET..")
@click.option(
    "--accept-loss",
    multiple=True,
    metavar="DATASET",
    help="Remove the rows of DATASET even if they cannot be read again.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@log_options
def command(
    invocation: Invocation,
    datasets: tuple[str, ...],
    accept_loss: tuple[str, ...],
    yes: bool,
    log_level: LogLevel | None,
    log_format: LogFormat | None,
) -> Result:
    """Rebuild a dataset from its sources.

    Removes all rows of each table in one commit, and reads the sources again from the beginning. Also
    rebuilds the streams that read the table. The command first shows which rows will be removed, and which
    records cannot be read again, and asks for confirmation. It is refused if the sources no longer hold some
    records, unless --accept-loss names the dataset. It is also refused for a table with the property
    pipelines.reset.allowed = false.
    """
    from headrace.cli.watching import Watch, show_outcome, spark_starting, stopping
    from headrace.observe.log import LogSettings
    from headrace.run.stop import StopSignal

    log = LogSettings.of(log_format, log_level)
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_refresh(datasets)
        planned.refuse_losses(accept_loss)
        if not yes:
            output.note("\n".join(planned.lines()))
            remedy = f"headrace full-refresh {' '.join(datasets)} --yes"
            if not output.confirm("Rebuild?", remedy=remedy):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        stop = StopSignal()
        with (
            Watch(output, pipeline.settings, "Removing the rows") as watch,
            stopping(stop, watch, careful=True) as received,
        ):
            result = pipeline.full_refresh(datasets, accept_loss=accept_loss, emit=watch, stop=stop, log=log)
    return show_outcome(output, result, received)
