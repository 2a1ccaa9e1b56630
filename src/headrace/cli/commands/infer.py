"""`headrace infer`: the schema of a topic or folder, as a file of the pipeline."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.kafka import not_found, reach_kafka
from headrace.cli.output import Result
from headrace.cli.verb import POSITIVE, Invocation, option, read_share, refuse, verb
from headrace.contracts.inference import Inference, find_files, infer_files
from headrace.contracts.schema_types import FOLDER
from headrace.errors import TopicNotFoundError
from headrace.model.texts import counted, duration_text
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.storage.layout import is_uri

if TYPE_CHECKING:
    from headrace.project.inferring import InferredSchema


@verb(
    examples=(
        "headrace infer orders",
        "headrace infer orders --sample 100000",
        "headrace infer orders --tolerate 1%",
        "headrace infer ./landing --update",
    )
)
@click.argument("source", metavar="TOPIC|FOLDER")
@option("--sample N", "Read about N records, in evenly spread groups; default: all records.", POSITIVE)
@option("--tolerate PERCENT", "Leave out types that at most so many of a field's values have.", read_share)
@option("--update", "Merge new fields and types into the existing schema file.")
def infer(
    invocation: Invocation, source: str, sample: int | None, tolerate: float | None, update: bool
) -> Result:
    """Infer the schema of JSON records, and write it to schemas/TOPIC.json.

    An argument with a slash, such as ./landing, is a folder or file: JSON lines, or CSV with a header. The
    schema file is written to the pipeline's folder, or to the current folder outside of a pipeline. Starts
    no Spark.

    Integers become LONG, or DECIMAL beyond 64 bits. A field with integers and other numbers becomes DOUBLE.
    A field becomes DATE or TIMESTAMP only if all its values are dates or timestamps. A field with values of
    several types becomes STRING, and is reported with an example of each type. Corrupt records are skipped
    and counted.

    With --tolerate 1%, a type that at most one in a hundred values of a field has is left out and reported.
    Records with such values are bad records when they are read with the schema.

    An existing file is changed only with --update. An update adds new fields, and widens a type only if a
    value in the records does not fit.
    """
    from headrace.project.inferring import compare, save

    refuse(
        (
            is_uri(source),
            "`headrace infer` reads topics and local files only",
            f"copy some files to this machine:   aws s3 cp --recursive {shlex.quote(source)} ./sample",
            "then:   headrace infer ./sample",
        )
    )
    root = invocation.settings(anywhere=True).root
    began = time.monotonic()
    if "/" in source:
        name, inference, usage = _read_folder(invocation, source, sample, root)
    else:
        name, usage = source, f'hr.read_kafka("{source}", format="json", '
        inference = _read_topic(invocation, source, sample)
    if tolerate is not None:
        inference.tolerate(tolerate)
    shown = f"{FOLDER}/{name}.json"
    found = compare(source, inference, root / shown, shown, time.monotonic() - began)
    written = save(found, root / shown, shown, update=update)
    usage += f'schema="{shown}")'
    data = found.to_json() | {"path": shown, "written": written, "usage": usage}
    return Result(data=data, text="\n".join(_lines(found, shown, written, usage)))


def _read_folder(
    invocation: Invocation, source: str, sample: int | None, root: Path
) -> tuple[str, Inference, str]:
    """The name of the folder, its records, and the call that reads it, as far as its schema."""
    path = Path(source)
    found = find_files(path)
    with invocation.output.progress(f"Reading {source}"):
        inference = infer_files(found, sample)
    folder = path if path.is_dir() else path.parent
    arguments = f'format="{found.format}", ' + ("recursive=True, " if found.recursive else "")
    if found.format == "csv":
        arguments += 'options={"header": "true"}, '
    name = path.resolve().name.partition(".")[0] or "files"
    return name, inference, f'hr.read_files("{os.path.relpath(folder, root)}", {arguments}'


def _read_topic(invocation: Invocation, topic: str, sample: int | None) -> Inference:
    from headrace.project.inferring import infer_topic

    kafka = reach_kafka(invocation)
    try:
        with invocation.output.progress(f"Reading {topic}"):
            return infer_topic(kafka.connection, topic, sample=sample)
    except TopicNotFoundError as error:
        found = not_found(error, kafka, KafkaCluster(kafka.connection))
        if Path(topic).exists():
            folder = f"read the folder of this name:   headrace infer ./{topic}"
            found = found.with_(remedies=[folder, *found.remedies])
        raise found from error


def _lines(found: InferredSchema, shown: str, written: bool, usage: str) -> Iterator[str]:
    from headrace.project.inferring import at_text, change_lines, field_lines

    read = found.inference
    yield _headline(found)
    names = field_lines(found.schema)
    width = max(len(name) for name, _ in names)
    yield from (f"  {name:<{width}}  {kind}" for name, kind in names)
    for title, findings in (("Conflicts", found.conflicts), ("Tolerated", read.tolerated)):
        if findings:
            yield title
        for one in findings:
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
    yield f"Use it: {usage}"


def _headline(found: InferredSchema) -> str:
    read = found.inference
    parts = [f"{found.source}: {counted(read.records, 'record')}"]
    if read.tombstones:
        parts.append(f"{read.tombstones:,} without a value")
    if read.corrupt:
        parts.append(f"{read.corrupt:,} corrupt")
    return ", ".join(parts) + f" ({duration_text(found.seconds)})"
