"""`headrace init`: a pipeline to start from."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, LocalFolder, verb


@verb(examples=("headrace init shop", "headrace init ./pipelines/orders"), project=False)
@click.argument("folder", default=".", metavar="[DIR]", type=LocalFolder(file_okay=False))
def command(invocation: Invocation, folder: Path) -> Result:
    """Write a new pipeline: a spec, three small tables, a test, and a workflow that runs it.

    Existing files are never overwritten.
    """
    from headrace.project.template import TOPIC, pipeline_name, write_template

    written = write_template(folder)
    steps = [] if folder == Path() else [f"cd {folder}"]
    steps += [
        f"headrace broker topics create {TOPIC} --partitions 4",
        f"headrace produce {TOPIC} --sample --limit 1000",
        "headrace plan",
        "headrace run",
        "headrace read gold",
    ]
    text = "\n".join(["Wrote", *(f"  {file}" for file in written), "Next", *(f"  {step}" for step in steps)])
    data = {"pipeline": pipeline_name(folder), "files": [str(file) for file in written], "next": steps}
    return Result(data=data, text=text)
