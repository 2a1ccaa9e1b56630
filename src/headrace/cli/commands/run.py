"""`headrace run`: bring the tables up to date."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import click

from headrace.cli.commands.ui import beside_run
from headrace.cli.metrics import serving_metrics
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, complete_dataset, log_options, option, refuse, verb
from headrace.cli.watching import show_outcome, watched
from headrace.errors import ConflictingRefreshOptionsError
from headrace.model.remedies import Remedies
from headrace.project.updating import emit_to

if TYPE_CHECKING:
    from headrace.observe.log import LogSettings


def read_renames(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``OLD=NEW``, each: old names by new ones."""
    renames = {}
    for value in values:
        old, separator, new = value.partition("=")
        if not (old and separator and new):
            raise click.BadParameter(f"{value!r} is not OLD=NEW", ctx, param)
        renames[new] = old
    return renames


def split_names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Names that are separated by commas, as Spark's own command takes them."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


@verb(
    examples=(
        "headrace run",
        "headrace run orders revenue --profile prod",
        "headrace run --continuous",
        "headrace run --full-refresh orders",
    )
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
@option("--continuous", "Keep running and process new records until stopped.")
@option("--ui", "Serve the dashboard during a continuous run, as `headrace ui` does.", name="shows_ui")
@option(
    "--metrics [HOST]:PORT", "Serve metrics for Prometheus during the run, such as :9400.", name="metrics_at"
)
@option(
    "--refresh DATASET,..",
    "Run only these datasets; the same as the argument DATASET.",
    split_names,
    multiple=True,
    hidden=True,
)
@option(
    "--full-refresh DATASET,..",
    "Rebuild these datasets, as `headrace full-refresh --yes` does, and run only these datasets.",
    split_names,
    multiple=True,
)
@option("--full-refresh-all", "Rebuild all datasets first.")
@option(
    "--accept-loss DATASET,..",
    "Rebuild these datasets even if some rows cannot be read again.",
    split_names,
    multiple=True,
)
@option(
    "--rename-flow OLD=NEW",
    "Continue the checkpoint of the former flow OLD in the flow NEW.",
    read_renames,
    multiple=True,
)
@log_options
def run(
    invocation: Invocation,
    datasets: tuple[str, ...],
    continuous: bool,
    shows_ui: bool,
    metrics_at: str | None,
    refresh: tuple[str, ...],
    full_refresh: tuple[str, ...],
    full_refresh_all: bool,
    accept_loss: tuple[str, ...],
    rename_flow: dict[str, str],
    log: LogSettings,
) -> Result:
    """Bring the tables up to date, once or continuously.

    Without --continuous, processes everything that the sources hold now, in dependency order, and ends.
    With names of datasets, runs only these. Ctrl-C stops between two batches; the next run continues there.
    """
    remedies = Remedies(rename_flow=rename_flow)
    chosen = (*datasets, *refresh)
    rebuilds = full_refresh_all or bool(full_refresh)
    if full_refresh_all and (chosen or full_refresh):
        only = f"--full-refresh {full_refresh[0]}" if full_refresh else chosen[0]
        other = "--full-refresh" if full_refresh else "--refresh" if refresh else "DATASET"
        raise ConflictingRefreshOptionsError(
            f"--full-refresh-all rebuilds all datasets, and cannot be combined with {other}",
            remedies=(
                "rebuild all datasets:   headrace run --full-refresh-all",
                f"or only one:   headrace run {only}",
            ),
            params={"conflicting_option": other},
        )
    both = rebuilds and bool(continuous or remedies.flows)
    rebuild = f"--full-refresh {full_refresh[0]}" if full_refresh else "--full-refresh-all"
    remedy = f"rebuild first, then run:   headrace run {rebuild}"
    refuse(
        (both, "a full refresh cannot be combined with --continuous or --rename-flow", remedy),
        (shows_ui and not continuous, "--ui needs --continuous", "the dashboard alone:   headrace ui"),
    )
    with (
        invocation.pipeline() as pipeline,
        beside_run(invocation.output, pipeline.settings) if shows_ui else nullcontext(),
        serving_metrics(invocation.output, pipeline.settings, metrics_at) as count,
        watched(invocation.output, pipeline.settings, "Starting Spark") as (watch, stop, received),
    ):
        emit = partial(emit_to, (count, watch))
        if rebuilds:
            result = pipeline.full_refresh(
                None if full_refresh_all else full_refresh,
                refresh=chosen,
                accept_loss=accept_loss,
                emit=emit,
                stop=stop,
                log=log,
            )
        else:
            result = pipeline.run(
                chosen, continuous=continuous, remedies=remedies, emit=emit, stop=stop, log=log
            )
    return show_outcome(invocation.output, result, received)
