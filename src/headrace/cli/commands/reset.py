"""`headrace reset`: new checkpoints for chosen flows."""

from __future__ import annotations

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError
from headrace.model.remedies import ChosenStart


@verb(
    examples=(
        "headrace reset orders",
        "headrace reset orders items --yes",
        "headrace reset orders --from orders:0=1700,orders:1=1650 --allow-duplicates",
    )
)
@click.argument("flows", nargs=-1, required=True, metavar="FLOW..")
@click.option(
    "--from",
    "chosen",
    metavar="TOPIC:PARTITION=OFFSET,..",
    help="Start at these offsets, at `earliest` or at `latest`. Partitions that are not listed continue.",
)
@click.option(
    "--allow-duplicates", is_flag=True, help="Allow committed offsets to be read again; record them."
)
@click.option(
    "--accept-loss", is_flag=True, help="Allow offsets that were never read to be skipped; record them."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(
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
    from headrace.cli.watching import spark_starting

    start = _parse_start(chosen, allow_duplicates=allow_duplicates, accept_loss=accept_loss)
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, "Starting Spark, resolving the pipeline"):
            planned = pipeline.plan_reset(flows, start)
        if not yes:
            output.note("\n".join(planned.lines()))
            options = _options(start)
            if not output.confirm("Reset?", remedy=f"headrace reset {' '.join(flows)}{options} --yes"):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        done = pipeline.reset(flows, start)
    text = "\n".join([*done.lines(), "Next: headrace run"])
    return Result(data={"done": True, **done.to_json()}, text=text)


def _parse_start(chosen: str | None, *, allow_duplicates: bool, accept_loss: bool) -> ChosenStart | None:
    if chosen is None:
        if allow_duplicates or accept_loss:
            option = "--allow-duplicates" if allow_duplicates else "--accept-loss"
            raise CommandLineError(
                f"{option} needs --from: without it, a reset reads no offset twice and passes over none",
                remedies=("headrace reset FLOW --from TOPIC:PARTITION=OFFSET",),
                params={"option": option},
            )
        return None
    try:
        return ChosenStart.parse(chosen, allow_duplicates=allow_duplicates, accept_loss=accept_loss)
    except ValueError as error:
        raise CommandLineError(
            f"--from: {error}",
            remedies=("headrace reset FLOW --from orders:0=1700,orders:1=1650",),
            params={"option": "--from", "value": chosen},
        ) from error


def _options(start: ChosenStart | None) -> str:
    return "" if start is None else f" {start.options()}"
