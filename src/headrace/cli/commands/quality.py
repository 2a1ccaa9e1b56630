"""`headrace quality`: the counts of expectations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from headrace.cli.completion import complete_dataset
from headrace.cli.moments import read_moment
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Group

    from headrace.model.names import TableName
    from headrace.observe.quality import DatasetQuality, ExpectationQuality, Quality

_BARS = "▁▂▃▄▅▆▇█"
_ACTIONS = {"warn": "kept", "drop": "dropped", "quarantine": "quarantined", "fail": "stop the flow"}


@verb(
    examples=(
        "headrace quality",
        "headrace quality orders --since 24h",
        "headrace quality --json | jq '.datasets[].expectations[] | select(.failed > 0)'",
    )
)
@click.argument("dataset", required=False, shell_complete=complete_dataset, metavar="[DATASET]")
@click.option(
    "--since",
    callback=read_moment,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="Only batches since this time in UTC, or since an age such as 2h.",
)
def command(invocation: Invocation, dataset: str | None, since: datetime) -> Result:
    """Show the counts of expectations.

    Shows how many rows passed and failed each expectation, and what happened to the failed rows. The bar
    shows the share of failed rows over time, from left to right. Starts no Spark.
    """
    with invocation.pipeline() as pipeline, invocation.output.progress("Reading the event log"):
        quality = pipeline.quality(dataset, since=since)
    schema = pipeline.settings.database
    return Result(data=quality.to_json(), text=lambda: _rendered(quality, schema))


def _rendered(quality: Quality, default_schema: str) -> Group | str:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if quality.start is None or quality.end is None:
        return f"The event log of {quality.pipeline} has no counts of expectations in this time."
    head = f"{quality.pipeline} · {quality.start:%Y-%m-%d %H:%M:%S} to {quality.end:%Y-%m-%d %H:%M:%S} UTC"
    parts: list[Text | Table] = [Text(head)]
    for one in quality.datasets:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style="dim")
        for column in ("expectation", "failed rows", "passed", "failed", "%", "failed over time"):
            is_name, is_number = column == "expectation", column in ("passed", "failed", "%")
            table.add_column(
                column, justify="right" if is_number else "left", no_wrap=not is_name, overflow="fold"
            )
        for expectation in (*one.expectations, *one.bad_records):
            table.add_row(*_cells(expectation, one, default_schema))
        parts += [Text(""), Text(_balance(one, default_schema), style="bold"), table]
    return Group(*parts)


def _balance(one: DatasetQuality, default_schema: str) -> str:
    total = one.accepted + one.quarantined + one.dropped
    return (
        f"{_short(one.dataset, default_schema)}  {total:,} rows = {one.accepted:,} accepted"
        f" + {one.quarantined:,} quarantined + {one.dropped:,} dropped"
    )


def _cells(one: ExpectationQuality, dataset: DatasetQuality, default_schema: str) -> Iterator[str]:
    total = one.passed + one.failed
    where = (
        "" if one.dataset == str(dataset.dataset) else f" ({one.dataset.removeprefix(default_schema + '.')})"
    )
    yield one.name + where
    yield _ACTIONS.get(one.action, one.action)
    yield f"{one.passed:,}"
    yield f"{one.failed:,}"
    yield f"{100 * one.failed / total:.2f}" if total else "-"
    yield "".join(_bar(span.failed, span.passed) for span in one.over_time)


def _bar(failed: int, passed: int) -> str:
    """One character for the share of failed rows; a blank where no row was checked."""
    if failed + passed == 0:
        return " "
    share = failed / (failed + passed)
    return _BARS[0] if failed == 0 else _BARS[max(1, min(int(share * len(_BARS)), len(_BARS) - 1))]


def _short(name: TableName, default_schema: str) -> str:
    return name.name if name.schema == default_schema else str(name)
