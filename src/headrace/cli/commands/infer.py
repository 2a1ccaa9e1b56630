"""`headrace infer`: the schema of a topic's records, as a file of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError, SpecNotFoundError, TopicNotFoundError

if TYPE_CHECKING:
    from headrace.contracts.inference import Inference
    from headrace.project.inferring import InferredSchema


@verb(
    examples=(
        "headrace infer orders",
        "headrace infer orders --sample 100000",
        "headrace infer customers --latest-by-key",
        "headrace infer orders --update",
    )
)
@click.argument("source", metavar="TOPIC")
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Read about N records, from stretches that are spread evenly; default: all records.",
)
@click.option("--latest-by-key", is_flag=True, help="Read only the latest record of each key.")
@click.option("--update", is_flag=True, help="Merge new fields and types into the existing schema file.")
def command(
    invocation: Invocation, source: str, sample: int | None, latest_by_key: bool, update: bool
) -> Result:
    """Infer the schema of JSON records, and write it to schemas/TOPIC.json.

    Starts no Spark. Integers are LONG, beyond 64 bits DECIMAL; a field with integers and other numbers
    is DOUBLE. A field is DATE or TIMESTAMP only if all its values are. A field with values of several
    types is STRING, and is reported with an example of each type. Corrupt records are left out and
    counted. The file is in the pipeline's folder, or in the current folder outside of a pipeline.

    An existing file is not changed without --update, which adds new fields, and widens a type only if
    the records need it.
    """
    from headrace.contracts.schema_files import FOLDER
    from headrace.project.inferring import Stopwatch, compare, save

    if sample is not None and latest_by_key:
        raise CommandLineError(
            "--sample and --latest-by-key cannot be used together",
            remedies=["headrace infer --help"],
            params={"options": ["--sample", "--latest-by-key"]},
        )
    shown = f"{FOLDER}/{source}.json"
    file = _root(invocation) / shown
    watch = Stopwatch()
    inference = _read_topic(invocation, source, sample, latest_by_key)
    found = compare(source, inference, file, shown, watch.seconds)
    written = save(found, file, shown, update=update)
    data = found.to_json() | {"file": shown, "written": written}
    return Result(data=data, text="\n".join(_lines(found, shown, written)))


def _read_topic(invocation: Invocation, topic: str, sample: int | None, latest_by_key: bool) -> Inference:
    from headrace.cli.kafka import not_found, reach_kafka
    from headrace.project.inferring import infer_topic
    from headrace.sources.kafka.cluster import KafkaCluster

    kafka = reach_kafka(invocation)
    try:
        with invocation.output.progress(f"Reading {topic}"):
            return infer_topic(kafka.connection, topic, sample=sample, latest_by_key=latest_by_key)
    except TopicNotFoundError as error:
        raise not_found(error, kafka, KafkaCluster(kafka.connection)) from error


def _root(invocation: Invocation) -> Path:
    """The pipeline's folder, or the current one outside of a pipeline."""
    try:
        return invocation.settings().root
    except SpecNotFoundError:
        if invocation.project is not None:
            raise
        return Path.cwd()


def _lines(found: InferredSchema, shown: str, written: bool) -> Iterator[str]:
    from headrace.project.inferring import at_text, change_lines, field_lines

    read = found.inference
    yield _headline(found)
    names = field_lines(found.schema)
    width = max(len(name) for name, _ in names)
    yield from (f"  {name:<{width}}  {kind}" for name, kind in names)
    if conflicts := found.conflicts:
        yield "Conflicts"
        for one in conflicts:
            yield f"  {one.path}: {one.problem} -> {one.became}"
            for kind, count, at, value in one.examples:
                yield f"    {kind:<7}  {count:>9,} x  {at_text(at)}  {value}"
    if empty := found.empty:
        yield "Fields without a value"
        yield from (f"  {one.path}: {one.problem} -> {one.became}" for one in empty)
    if read.corrupt:
        yield "Corrupt records, left out"
        yield from (f"  {at_text(one.at)}  {one.problem}: {one.excerpt}" for one in read.corrupt_records)
    if found.changes:
        yield f"Changes of {shown}"
        yield from (f"  {line}" for line in change_lines(found.changes))
    yield f"DDL: {found.ddl}"
    yield f"Wrote {shown}" if written else f"{shown} has all of these fields and types; it was not changed"
    yield f'Use it: hr.read_kafka("{found.source}", format="json", schema="{shown}")'


def _headline(found: InferredSchema) -> str:
    read = found.inference
    parts = [f"{found.source}: {read.records:,} {'record' if read.records == 1 else 'records'}"]
    if read.tombstones:
        parts.append(f"{read.tombstones:,} without a value")
    if read.corrupt:
        parts.append(f"{read.corrupt:,} corrupt")
    return ", ".join(parts) + f" ({found.seconds:.1f} s)"
