"""`headrace init` and `demo`: a pipeline to start from, and an example that is killed and verified."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, LocalFolder, option, verb


@verb(examples=("headrace init shop", "headrace init --from databricks.yml"), project=False)
@click.argument("folder", default=".", metavar="[DIR]", type=LocalFolder(file_okay=False))
@option(
    "--from PATH",
    "Write a spec for the pipelines of an asset bundle (databricks.yml), or for a folder of files.",
    click.Path(path_type=Path),
    name="source",
)
@option("--target NAME", "With --from: the target of the bundle.")
@option("--storage PATH", "The storage of the new pipeline; default: the folder lake beside its spec.")
def init(
    invocation: Invocation, folder: Path, source: Path | None, target: str | None, storage: str | None
) -> Result:
    """Write a new pipeline: a spec, three small tables, a test, and a workflow that runs it.

    With --from, the command writes only the spec. The spec lists the Databricks tables and paths that the
    files read, each with a local path to correct, and the addresses of their Kafka brokers. For a bundle with
    several pipelines, the command writes one folder for each pipeline.

    Existing files are never overwritten.
    """
    if source is not None:
        return _from(source, folder, target, storage)
    from headrace.project.template.files import TOPIC, pipeline_name, write_template

    written = write_template(folder, storage)
    steps = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    steps += [
        f"headrace broker topics create {TOPIC} --partitions 4",
        f"headrace produce {TOPIC} --sample --limit 1000",
        "headrace plan",
        "headrace run",
        "headrace read gold",
    ]
    return _result(pipeline_name(folder), written, [], steps)


def _from(source: Path, folder: Path, target: str | None, storage: str | None) -> Result:
    from headrace.declare.new_specs import build_specs, describe_ignored
    from headrace.project.template.files import write_new

    specs = build_specs(source, folder, target, storage)
    another = shlex.join(["headrace", "init", f"{folder}-2", "--from", str(source)])
    remedy = f"remove it, or write to another folder:   {another}"
    written = write_new({spec.file: spec.text for spec in specs}, remedy)
    steps = [f"headrace plan --project {shlex.quote(str(spec.file.parent))}" for spec in specs]
    return _result(", ".join(spec.name for spec in specs), written, list(describe_ignored(specs)), steps)


def _result(name: str, written: tuple[Path, ...], notes: list[str], steps: list[str]) -> Result:
    lines = ["Wrote", *(f"  {file}" for file in written), *notes, "Next", *(f"  {step}" for step in steps)]
    data = {"pipeline": name, "paths": [str(file) for file in written], "notes": notes, "next": steps}
    return Result(data=data, text="\n".join(lines))


@verb(
    examples=(
        "headrace demo",
        "headrace demo --records 200000 --rate 8000 --directory /tmp/sales",
        "headrace demo --storage s3://shop-lake/demo",
    ),
    project=False,
)
@option("--records", "The number of records to produce.", click.IntRange(min=100), default=60_000)
@option("--rate", "Records per second.", click.IntRange(min=10), default=4_000)
@option(
    "--directory PATH",
    "The folder for the pipeline; default: ./headrace-demo, or with a number if that exists.",
    LocalFolder(),
)
@option(
    "--storage PATH",
    "The storage of the tables, such as s3://BUCKET/PREFIX; it must be empty. Default: the folder lake of "
    "the pipeline.",
)
def demo(
    invocation: Invocation, records: int, rate: int, directory: Path | None, storage: str | None
) -> Result:
    """Run an example, kill it in mid-run, and verify the result.

    Starts a Kafka broker, writes an example pipeline, produces records, and runs the pipeline. Kills
    the run in the middle of a batch and starts it again. Corrects an expectation that has rejected some
    records, replays them, and verifies that no record was lost or duplicated. Then stops the pipeline
    and the broker; the tables are kept.
    """
    from headrace.project.demo.folder import choose_folder
    from headrace.project.demo.screens import closing_data, closing_text
    from headrace.project.demo.story import Demo, Screen
    from headrace.project.template.files import pipeline_name, template_files
    from headrace.runtime.aot import make_later
    from headrace.runtime.fetch import ensure_jars
    from headrace.runtime.jars import find_java
    from headrace.storage.layout import locate

    root = None if storage is None else locate(storage)
    output, folder = invocation.output, choose_folder(directory)
    files = template_files(pipeline_name(folder), root)
    result = Demo(folder, records, rate, Screen(None if output.is_json else output.stdout), files, root).run()
    # A run makes the JVM's start-up cache at its end, which would have slowed down the demo.
    make_later(find_java(), ensure_jars("spark"))
    return Result(
        data=closing_data(result), text=lambda: closing_text(result), exit_code=0 if result.ok else 1
    )
