"""`headrace full-refresh`: rebuild datasets from their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.logs import log_options
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.model.declarations import MaterializedView

if TYPE_CHECKING:
    from headrace.model.logs import LogFormat, LogLevel
    from headrace.plan.stages import Plan


@verb(examples=("headrace full-refresh orders", "headrace full-refresh orders big_orders --yes"))
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET..")
@click.option("--yes", is_flag=True, help="Do not ask.")
@log_options
def command(
    invocation: Invocation,
    datasets: tuple[str, ...],
    yes: bool,
    log_level: LogLevel | None,
    log_format: LogFormat | None,
) -> Result:
    """Rebuild a dataset from its sources.

    Empties the tables in one commit each, and reads their sources again from the beginning. What a
    source no longer holds does not come back. It shows what it would do, and asks.
    """
    from headrace.cli.watching import Watch, show_outcome, spark_starting, stopping
    from headrace.observe.log import LogSettings
    from headrace.run.stop import StopSignal

    log = LogSettings.of(log_format, log_level)
    output = invocation.output
    with invocation.pipeline() as pipeline:
        with spark_starting(output, pipeline.settings, "Starting Spark, resolving the pipeline"):
            plan = pipeline.plan(offline=True)
        lines = describe(datasets, plan)
        if not yes:
            output.note("\n".join(lines))
            remedy = f"headrace full-refresh {' '.join(datasets)} --yes"
            if not output.confirm("Rebuild?", remedy=remedy):
                return Result(data={"done": False}, text="Nothing was changed.", exit_code=1)
        stop = StopSignal()
        with (
            Watch(output, pipeline.settings, "Emptying the tables") as watch,
            stopping(stop, watch, careful=True) as received,
        ):
            result = pipeline.full_refresh(datasets, emit=watch, stop=stop, log=log)
    return show_outcome(output, result, received)


def describe(datasets: tuple[str, ...], plan: Plan) -> list[str]:
    """What would happen, one line for each dataset.

    Raises:
        DatasetUnknownError: The pipeline declares no such table.
        DownstreamStreamsError: A stream reads one of them, and is not among them.
    """
    from headrace.project.refresh import check_datasets
    from headrace.run.views import inputs_of

    names = check_datasets(datasets, plan)
    lines = []
    for name in names:
        sources = [source for flow in plan.flows if flow.flow.target == name for source in flow.sources]
        if not sources:
            lines.append(f"{name}  is recomputed")
            continue
        read = ", ".join(", ".join(one.topics) or str(one.table or one.path) for one in sources)
        lines.append(f"{name}  loses all its rows in one commit, and reads {read} again from the beginning")
    for view in plan.views:
        if isinstance(view.view, MaterializedView) and view.view.name not in names:
            changed = [str(table) for table in inputs_of(view, plan) if table in names]
            if changed:
                lines.append(f"{view.view.name}  changes with {', '.join(changed)}, at its next refresh")
    return lines
