"""`headrace full-refresh` and `reset`: rebuild datasets, or restart their flows."""

from __future__ import annotations

from dataclasses import replace

import click

from headrace.cli.output import UNCHANGED, Result
from headrace.cli.verb import Invocation, complete_dataset, log_options, option, verb
from headrace.cli.watching import show_outcome, spark_starting, watched
from headrace.errors import CommandLineError
from headrace.model.remedies import ChosenStart
from headrace.observe.log import LogSettings


@verb(examples=("headrace full-refresh orders", "headrace full-refresh orders --accept-loss orders --yes"))
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, required=True, metavar="DATASET..")
@option(
    "--accept-loss DATASET", "Remove the rows of DATASET even if they cannot be read again.", multiple=True
)
@option("--yes", "Do not ask for confirmation.")
@log_options
def full_refresh(
    invocation: Invocation,
    datasets: tuple[str, ...],
    accept_loss: tuple[str, ...],
    yes: bool,
    log: LogSettings,
) -> Result:
    """Rebuild a dataset from its sources.

    Removes all rows of each table in one commit, and reads the sources again from the beginning. Also
    rebuilds the streams that read the table. The command first shows which rows will be removed, and which
    records cannot be read again, and asks for confirmation. It is refused if the sources no longer hold some
    records, unless --accept-loss names the dataset. It is also refused for a table with the property
    pipelines.reset.allowed = false.
    """
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_refresh(datasets)
        planned.refuse_losses(accept_loss)
        accepted = "".join(f" --accept-loss {one}" for one in accept_loss)
        remedy = f"headrace full-refresh {' '.join(datasets)}{accepted} --yes"
        if not (yes or output.agrees(planned.lines(), "Rebuild?", remedy)):
            return UNCHANGED
        title = "Removing the rows"
        with watched(output, pipeline.settings, title, careful=True) as (watch, stop, received):
            result = pipeline.full_refresh(datasets, accept_loss=accept_loss, emit=watch, stop=stop, log=log)
    shown = show_outcome(output, result, received)
    if shown.exit_code == 0 and planned.left_views:
        shown = replace(shown, text="\n".join(filter(None, [str(shown.text), "Next: headrace run"])))
    return shown


@verb(
    examples=(
        "headrace reset orders",
        "headrace reset orders items --yes",
        "headrace reset orders --from orders:0=1700,orders:1=1650 --allow-duplicates",
    )
)
@click.argument("flows", nargs=-1, required=True, metavar="FLOW..")
@option(
    "--from TOPIC:PARTITION=OFFSET,..",
    "Start at these offsets, at `earliest` or at `latest`. Partitions that are not listed continue.",
    name="chosen",
)
@option("--allow-duplicates", "Allow committed offsets to be read again; record them.")
@option("--accept-loss", "Allow offsets that were never read to be skipped; record them.")
@option("--yes", "Do not ask for confirmation.")
def reset(
    invocation: Invocation,
    flows: tuple[str, ...],
    chosen: str | None,
    allow_duplicates: bool,
    accept_loss: bool,
    yes: bool,
) -> Result:
    """Create a new checkpoint for a flow, and keep the rows of its table.

    The new checkpoint continues each source after its last committed offset, which is recorded in the table
    and the ledger. A source that the flow has never read is read from its beginning. The old checkpoint can
    no longer commit. The command first shows where each source continues, and asks for confirmation. It reads
    no records; the next run reads them.

    With --from, the new checkpoint starts at chosen offsets. `headrace verify` reports offsets that are read
    again as declared duplicates, and skipped offsets as lost.
    """
    start = _parse_start(flows, chosen, allow_duplicates=allow_duplicates, accept_loss=accept_loss)
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_reset(flows, start)
        options = "" if start is None else f" {start.options()}"
        remedy = f"headrace reset {' '.join(flows)}{options} --yes"
        if not (yes or output.agrees(planned.lines(), "Reset?", remedy)):
            return UNCHANGED
        done = pipeline.reset(flows, start)
    # A person has seen the lines above the question.
    text = "\n".join([*(done.lines() if yes else ()), "Next: headrace run"])
    return Result(data={"done": True, **done.to_json()}, text=text)


def _parse_start(
    flows: tuple[str, ...], chosen: str | None, *, allow_duplicates: bool, accept_loss: bool
) -> ChosenStart | None:
    reset_flows = f"headrace reset {' '.join(flows)}"
    if chosen is None:
        if allow_duplicates or accept_loss:
            option, edge = (
                ("--allow-duplicates", "earliest") if allow_duplicates else ("--accept-loss", "latest")
            )
            raise CommandLineError(
                f"{option} needs --from: without it, a reset reads no offset twice and passes over none",
                remedies=(
                    f"continue after the last offset that was read:   {reset_flows}",
                    f"or say where to start:   {reset_flows} --from {edge} {option}",
                ),
                params={"option": option},
            )
        return None
    try:
        return ChosenStart.parse(chosen, allow_duplicates=allow_duplicates, accept_loss=accept_loss)
    except ValueError as error:
        raise CommandLineError(
            f"--from: {error}",
            facts=("offsets are written as in --from orders:0=1700,orders:1=1650",),
            remedies=(f"show the topics, partitions and offsets:   headrace checkpoint show {flows[0]}",),
            params={"option": "--from", "value": chosen},
        ) from error
