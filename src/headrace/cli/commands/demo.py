"""`headrace demo`: the main job on a real broker, killed in the middle, and proven."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Output, Result, TextOutput
from headrace.cli.verb import Invocation, LocalFolder, verb

if TYPE_CHECKING:
    from headrace.project.demo.story import Screen


@verb(
    examples=("headrace demo", "headrace demo --records 200000 --rate 8000 --directory /tmp/sales"),
    project=False,
)
@click.option(
    "--records",
    type=click.IntRange(min=100),
    default=60_000,
    show_default=True,
    help="The number of records to produce.",
)
@click.option(
    "--rate", type=click.IntRange(min=10), default=4_000, show_default=True, help="Records per second."
)
@click.option(
    "--directory",
    type=LocalFolder(),
    default=Path("headrace-demo"),
    metavar="PATH",
    help="The folder for the pipeline; default: ./headrace-demo.",
)
def command(invocation: Invocation, records: int, rate: int, directory: Path) -> Result:
    """Run an example, kill it in mid-run, and verify the result.

    Starts a Kafka broker, writes an example pipeline, produces records, and runs the pipeline. Kills
    the run in the middle of a batch and starts it again. Corrects an expectation that has rejected some
    records, replays them, and verifies that no record was lost or duplicated. Then stops the pipeline
    and the broker; the tables are kept.
    """
    from headrace.project.demo.closing import closing_data, closing_text
    from headrace.project.demo.story import Demo, DemoRequest
    from headrace.project.template import pipeline_name, template_files

    request = DemoRequest(directory=directory, records=records, rate=rate)
    result = Demo(request, _screen(invocation.output), template_files(pipeline_name(directory))).run()
    _make_cache_later()
    return Result(
        data=closing_data(result), text=lambda: closing_text(result), exit_code=0 if result.ok else 1
    )


def _screen(output: Output) -> Screen:
    from headrace.project.demo.screens import LineScreen, LiveScreen, SilentScreen

    if not isinstance(output, TextOutput):
        return SilentScreen()
    return LiveScreen(output.console()) if output.is_terminal else LineScreen(output.console())


def _make_cache_later() -> None:
    """The JVM's cache, which a run makes at its end, and which would have taken the demo's cores."""
    from headrace.runtime.aot import make_later
    from headrace.runtime.fetch import ensure_jars
    from headrace.runtime.java import find_java

    make_later(find_java(), ensure_jars("spark"))
