"""`headrace init`: a pipeline to start from."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, LocalFolder, verb


@verb(
    examples=("headrace init shop", "headrace init --from databricks.yml"),
    project=False,
)
@click.argument("folder", default=".", metavar="[DIR]", type=LocalFolder(file_okay=False))
@click.option(
    "--from",
    "source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Write a spec for the pipelines of an asset bundle (databricks.yml), or for a folder of files.",
)
@click.option("--target", metavar="NAME", help="With --from: the target of the bundle.")
def command(invocation: Invocation, folder: Path, source: Path | None, target: str | None) -> Result:
    """Write a new pipeline: a spec, three small tables, a test, and a workflow that runs it.

    With --from, the command writes only the spec. The spec lists the Databricks tables and paths that the
    files read, each with a local path to correct. For a bundle with several pipelines, the command writes one
    folder for each pipeline.

    Existing files are never overwritten.
    """
    if source is not None:
        return _from(source, folder, target)
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
    return _result(pipeline_name(folder), written, [], steps)


def _from(source: Path, folder: Path, target: str | None) -> Result:
    from headrace.declare.bundle import build_specs, describe_ignored
    from headrace.project.template import write_new

    specs = build_specs(source, folder, target)
    written = write_new({spec.file: spec.text for spec in specs})
    steps = [f"headrace plan --project {spec.file.parent}" for spec in specs]
    return _result(", ".join(spec.name for spec in specs), written, list(describe_ignored(specs)), steps)


def _result(name: str, written: tuple[Path, ...], notes: list[str], steps: list[str]) -> Result:
    lines = ["Wrote", *(f"  {file}" for file in written), *notes, "Next", *(f"  {step}" for step in steps)]
    data = {"pipeline": name, "files": [str(file) for file in written], "notes": notes, "next": steps}
    return Result(data=data, text="\n".join(lines))
