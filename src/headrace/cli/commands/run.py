"""`headrace run`: bring the tables up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.logs import log_options
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from headrace.model.logs import LogFormat, LogLevel


def read_renames(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``OLD=NEW``, each: old names by new ones."""
    renames = {}
    for value in values:
        old, separator, new = value.partition("=")
        if not (old and separator and new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW", ctx, param)
        renames[new] = old
    return renames


@verb(
    examples=(
        "headrace run",
        "headrace run orders revenue --profile prod",
        "headrace run --continuous",
        "headrace run --resume-from-table orders",
    )
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
@click.option("--continuous", is_flag=True, help="Keep running and process new records until stopped.")
@click.option(
    "--resume-from-table",
    "resume",
    multiple=True,
    metavar="FLOW",
    help="Create a new checkpoint for FLOW at the positions that its table records.",
)
@click.option(
    "--new-checkpoint",
    "generation",
    multiple=True,
    metavar="FLOW",
    help="Create a new checkpoint for FLOW: keep the rows, continue known sources, read new sources whole.",
)
@click.option(
    "--rename-flow",
    multiple=True,
    callback=read_renames,
    metavar="OLD=NEW",
    help="Continue the checkpoint of the former flow OLD in the flow NEW.",
)
@log_options
def command(
    invocation: Invocation,
    datasets: tuple[str, ...],
    continuous: bool,
    resume: tuple[str, ...],
    generation: tuple[str, ...],
    rename_flow: dict[str, str],
    log_level: LogLevel | None,
    log_format: LogFormat | None,
) -> Result:
    """Bring the tables up to date, once or continuously.

    Without --continuous, processes everything that the sources hold now, in dependency order, and ends.
    Ctrl-C stops between two batches; the next run continues there.
    """
    from headrace.cli.watching import Watch, show_outcome, stopping
    from headrace.model.remedies import Remedies
    from headrace.observe.log import LogSettings
    from headrace.run.stop import StopSignal

    log = LogSettings.of(log_format, log_level)
    remedies = Remedies(
        resume_from_table=frozenset(resume),
        new_checkpoint=frozenset(generation),
        rename_flow=rename_flow,
    )
    stop = StopSignal()
    with (
        invocation.pipeline() as pipeline,
        Watch(invocation.output, pipeline.settings, "Starting Spark") as watch,
        stopping(stop, watch) as received,
    ):
        result = pipeline.run(
            datasets, continuous=continuous, remedies=remedies, emit=watch, stop=stop, log=log
        )
    return show_outcome(invocation.output, result, received)
