"""`headrace plan` and `preview`: what a run would do, and rows of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

import click

from headrace.cli.output import EXIT_CHANGES, Result
from headrace.cli.verb import POSITIVE, Invocation, complete_dataset, option, refuse, verb
from headrace.cli.watching import spark_starting
from headrace.model.declarations import Action
from headrace.model.project import PREVIEW_RECORDS
from headrace.model.texts import GLUE, counted
from headrace.plan.drawing import GraphForm
from headrace.project.last_results import keep_result


@verb(
    examples=(
        "headrace plan",
        "headrace plan revenue --offline",
        "headrace plan --exit-code --profile prod",
        "headrace plan --graph svg > pipeline.svg",
    )
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
@option("--offline", "Do not read the storage; omit the list of changes.")
@option(
    "--graph",
    "Print only the graph: a picture, or text for Mermaid or Graphviz.",
    click.Choice(get_args(GraphForm)),
)
@option("--exit-code", "Exit code 4 if a run would change a table, else 0.")
def plan(
    invocation: Invocation, datasets: tuple[str, ...], offline: bool, graph: GraphForm | None, exit_code: bool
) -> Result:
    """Show what a run would do; writes nothing.

    Runs the files of the pipeline, resolves every query against empty tables with the right schemas,
    and reports each error with its file and line.

    Unread records do not count as a change: --exit-code reports whether a run would create, alter or
    recompute a table. What a run would refuse is printed with its remedy; the exit code is then 1.
    """
    from headrace.observe.event_rows import list_definitions
    from headrace.plan.explain import WIDTH, Explanation

    one_of = ("headrace plan --exit-code", "headrace plan --offline")
    refuse((offline and exit_code, "--exit-code needs the list of changes, which --offline omits", *one_of))
    with (
        invocation.pipeline() as pipeline,
        spark_starting(invocation.output, "Starting Spark, resolving the pipeline"),
    ):
        plan = pipeline.plan(datasets, offline=offline)
    explanation = Explanation(plan)
    if not datasets and not offline:
        keep_result(plan.project, "plan", {**explanation.to_json(), "definitions": list_definitions(plan)})
    code = EXIT_CHANGES if exit_code and plan.would_change else 0
    if plan.refusals:
        code = 1
    if graph is not None:
        picture = explanation.draw(graph)
        return Result(
            data={graph: picture}, text=picture.replace(" ", GLUE), errors=plan.refusals, exit_code=code
        )
    data = explanation.to_json()
    width = min(invocation.output.width or WIDTH, WIDTH)
    return Result(data=data, text=lambda: explanation.to_text(width), errors=plan.refusals, exit_code=code)


_OUTCOMES: Mapping[Action, str] = {
    "warn": "kept",
    "drop": "dropped",
    "quarantine": "moved to the quarantine table",
    "fail": "a run would stop",
}

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.project.preview import Preview


@verb(
    examples=(
        "headrace preview orders",
        "headrace preview revenue --records 100000 --limit 5",
        'headrace preview orders --where "amount > 1000" --columns id,amount,_source.offset',
    )
)
@click.argument("dataset", shell_complete=complete_dataset, metavar="DATASET|FLOW")
@option("--where SQL", "Show only rows that match this condition.")
@option("--limit", "The maximum number of rows.", POSITIVE, default=20)
@option("--columns A,B", "The columns to show; a dot selects a field of a struct.")
@option(
    "--records", "Read so many of the newest records of each Kafka source.", POSITIVE, default=PREVIEW_RECORDS
)
def preview(
    invocation: Invocation, dataset: str, where: str | None, limit: int, columns: str | None, records: int
) -> Result:
    """Show rows of a query, computed from what its sources hold now; writes nothing.

    Reads the newest records of each topic, and each table as it is. A table that does not exist yet is
    computed from its own query. Aggregates cover only the rows that were read. Rows that an expectation
    rejects are counted but not shown.
    """
    from headrace.cli.rows import split_columns

    with (
        invocation.pipeline() as pipeline,
        spark_starting(invocation.output, "Starting Spark, computing rows"),
    ):
        preview = pipeline.preview(
            dataset, where=where, limit=limit, columns=split_columns(columns), records=records
        )
    return Result(data=preview.to_json(), text=lambda: _rendered(preview))


def _rendered(preview: Preview) -> Group:
    from rich.console import Group
    from rich.text import Text

    from headrace.cli.rows import RowsTable

    more = "; use --limit to see more" if preview.is_cut else ""
    lines = [f"{counted(len(preview.rows), 'row')} of {preview.dataset}{more}", *map(str, preview.sources)]
    lines += [
        f"{counted(one.failed, 'row')} of {one.passed + one.failed} {'fails' if one.failed == 1 else 'fail'} "
        f"the expectation `{one.name}`: {_OUTCOMES[one.action]}"
        for one in preview.expectations
        if one.failed
    ]
    for bad in preview.bad_records:
        records = "1 record has" if bad.records == 1 else f"{bad.records:,} records have"
        lines.append(f"{records} no row, {bad.name}: moved to the quarantine table by a run")
        lines += [f"  {example}" for example in bad.examples]
    table = RowsTable(preview.columns, preview.types, preview.rows)
    return Group(table, *(Text(line, style="dim") for line in lines))
