"""`headrace verify`: the proof."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, complete_dataset, option, refuse, require_moment, verb
from headrace.project.last_results import keep_result
from headrace.project.operations import new_update


def parse_since(ctx: click.Context, param: click.Parameter, text: str | None) -> int | datetime | None:
    """A table version, a moment, or how long ago."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    return require_moment(text, "a version (61), a time (2026-11-20T08:14) or an age (2h)")


def parse_sample(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A number of rows, or a share of them."""
    if text is None or (text.isdecimal() and int(text) > 0):
        return None if text is None else int(text)
    with suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise click.BadParameter(f"{text} is neither a number of rows (1000) nor a share of them (0.01).")


@verb(
    examples=(
        "headrace verify",
        "headrace verify orders --since 2026-11-20 --require records",
        "headrace verify customers --sample 1000",
        "headrace verify --recompute --sample 0.01",
    )
)
@click.argument("datasets", nargs=-1, shell_complete=complete_dataset, metavar="[DATASET]..")
@option(
    "--since VERSION|TIME",
    "Do not check commits older than this: a version of the one table, a time in UTC, or an age (2h).",
    parse_since,
)
@option(
    "--require",
    "Exit code 3 if this grade cannot be judged for a flow.",
    click.Choice(["ranges", "counts", "records"]),
)
@option(
    "--sample N|SHARE",
    "In tables with changes by key, compare N rows with the newest records of their keys in Kafka; in sinks "
    "that follow a table, N keys with the rows of the table. With "
    "--recompute, compare about N rows of each view, or a share of them (0.01).",
    parse_sample,
)
@option(
    "--recompute",
    "Compare the rows of each view with its query over the versions that it was computed from; starts Spark.",
    is_flag=True,
)
def verify(
    invocation: Invocation,
    datasets: tuple[str, ...],
    since: int | datetime | None,
    require: str | None,
    sample: float | None,
    recompute: bool,
) -> Result:
    """Verify that every record was processed exactly once.

    Reads the tables' logs and files, the ledger, the checkpoints and the broker; starts no Spark, except to
    compare views with their queries (--recompute). Checks
    three grades for each flow: each batch starts where the one before it ended (ranges), the rows that left
    the query are in the table's files (counts), and the records read from Kafka are the rows of the table
    (records). The exit code is 0 if no check fails, 1 if a check fails, and 3 if the grade of --require
    cannot be judged.
    """
    needs_name = isinstance(since, int) and len(datasets) != 1
    is_share = sample is not None and sample < 1
    refuse(
        (needs_name, "a version needs the name of its table; or give a time"),
        (is_share and not recompute, "a share of the rows needs --recompute; or give a number of rows"),
    )
    with invocation.pipeline() as pipeline, invocation.output.progress("Verifying"):
        keys = int(sample) if sample is not None and not recompute else None
        proof = pipeline.verify(datasets, since=since, require=require, sample=keys)
        if recompute:
            proof = pipeline.recompute(proof, sample=sample)
        if not datasets and since is None:
            keep_result(pipeline.settings, "proof", proof.to_json())
            if any(rule.on == "proof" for rule in pipeline.settings.alerts.rules):
                from headrace.project.alerting import check_alerts

                check_alerts(pipeline.settings, new_update())
    from headrace.verify.report import proof_lines

    lines = proof_lines(proof, pipeline.settings.database, invocation.output.width)
    return Result(data=proof.to_json(), text="\n".join(map(_styled, lines)), exit_code=proof.exit_code)


def _styled(line: str) -> str:
    if "✗" in line or line.startswith("Not proven"):
        return click.style(line, fg="red")
    if line.endswith("✓"):
        return line[:-1] + click.style("✓", fg="green")
    return click.style(line, bold=True) if line in ("Proof", "Proven.") else line
