"""`headrace produce` and `consume`: records into a topic, and out of it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.kafka import ReachedKafka, not_found, reach_kafka
from headrace.cli.output import FORMAT_VERSION, Output, Result
from headrace.cli.verb import POSITIVE, WHOLE, Invocation, option, refuse, require_moment, verb
from headrace.errors import OffsetUnknownError, TopicNotFoundError
from headrace.model.texts import counted
from headrace.runtime.broker import Broker
from headrace.runtime.broker_record import find_in_shared
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.consumer import Start, TopicReader, TopicRecord

if TYPE_CHECKING:
    from headrace.project.producing import Produced

SAMPLE_SCHEMA = "id LONG, date DATE, name STRING, sales DECIMAL(6, 2)"
"""The sales of the pipeline that `headrace init` writes."""

_SAMPLES = 1000
_NOTE_S = 5.0


@verb(
    examples=(
        "headrace produce orders --file events.jsonl --key customer",
        "headrace produce sales --sample --rate 1000",
        'headrace produce orders --sample --schema "id LONG, customer STRING, amount DOUBLE" --limit 50',
        "headrace produce lines --file - --format text < access.log",
    )
)
@click.argument("topic")
@option(
    "--file PATH",
    "A file of JSON lines, or CSV with a header; - reads standard input.",
    click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
)
@option("--sample", "Generate records: sales, or rows of --schema.")
@option("--schema COLUMNS", "With --sample: the columns, as a Spark DDL string.")
@option(
    "--format",
    "The format of the file; default: by its name. text sends each line as it is.",
    click.Choice(["json", "csv", "text"]),
    name="form",
)
@option("--key FIELD", "The field to use as the key of the record.")
@option("--rate N", "Records per second.", click.FloatRange(0, min_open=True))
@option(
    "--limit,--count N",
    f"The maximum number of records; --sample: {_SAMPLES:,}, or unlimited with --rate.",
    POSITIVE,
)
def produce(
    invocation: Invocation,
    topic: str,
    file: Path | None,
    sample: bool,
    schema: str | None,
    form: Any,
    key: str | None,
    rate: float | None,
    limit: int | None,
) -> Result:
    """Write records to a topic; the broker acknowledges each one.

    Writes to the Kafka cluster of the pipeline. Outside of a pipeline it writes to the shared embedded
    broker, or to the cluster of --set kafka.bootstrap.servers=HOST:PORT. An embedded broker creates a missing
    topic.

    Each line of a file is one record. JSON is checked and sent as it is. A CSV row becomes a JSON object:
    numbers, true and false are written without quotes, and an empty cell becomes null. Empty lines are
    skipped. An invalid line ends the command, which prints the line and how many records were delivered
    before. Ctrl-C stops after the records that are being sent.
    """
    both = "" if file is None else ", not both"
    refuse(
        ((file is None) is not sample, f"use either --file PATH or --sample{both}"),
        (schema is not None and not sample, "--schema can only be used with --sample"),
        (form is not None and sample, "--format can only be used with --file"),
        (form == "text" and key is not None, "--key needs JSON or CSV; lines of text have no fields"),
    )
    from headrace.project.producing import produce
    from headrace.sources.kafka.producer import open_records
    from headrace.sources.kafka.sample_data import build_samples

    if sample:
        # Report a wrong schema or key before anything is started.
        next(build_samples(schema or SAMPLE_SCHEMA, first=1, key=key))
        lines = None
        if limit is None and rate is None:
            limit = _SAMPLES
    else:
        assert file is not None
        lines = open_records(None if str(file) == "-" else file, sys.stdin.buffer, form, key)
    with lines or nullcontext():
        if lines is not None and str(file) != "-":
            # A wrong file or key is found before the topic is created.
            lines.check_first()
        kafka = reach_kafka(invocation)
        created, held = _open_topic(topic, kafka, invocation.output)
        records = iter(lines or build_samples(schema or SAMPLE_SCHEMA, first=held + 1, key=key))
        produced = produce(
            itertools.islice(records, limit),
            kafka.connection,
            topic,
            name="sample" if lines is None else lines.name,
            has_header=lines is not None and lines.has_header,
            rate=rate,
            show=invocation.output.note,
            interval_s=_NOTE_S,
        )
    skipped = 0 if lines is None else lines.skipped
    data = {"topic": topic, "bootstrap_servers": kafka.servers, "created": created, "skipped": skipped}
    return Result(
        data=data | produced.to_json(),
        text=_summary(produced, topic, kafka, skipped),
        exit_code=128 + produced.signal if produced.signal else 0,
    )


def _open_topic(topic: str, kafka: ReachedKafka, output: Output) -> tuple[bool, int]:
    """Make sure that the topic is there: whether it was made, and the offsets that it holds."""
    cluster = KafkaCluster(kafka.connection)
    try:
        return False, sum(cluster.latest([topic])[topic].values())
    except TopicNotFoundError as error:
        helpful = not_found(error, kafka, cluster)
        if not kafka.is_embedded:
            raise helpful from error
        Broker(kafka.connection.broker).create_topic(topic)
        near = f"; {helpful.remedies[0]}" if helpful.remedies[0].startswith("did you mean") else ""
        output.note(f"Created topic {topic} with 1 partition on {kafka.servers}{near}")
        facts, remedies = find_in_shared([topic], kafka.connection.broker)
        for line in (*facts, *remedies):
            output.note(line)
        return True, 0


def _summary(produced: Produced, topic: str, kafka: ReachedKafka, skipped: int) -> str:
    count = produced.delivered.records
    parts = [
        counted(count, "record"),
        f"{produced.delivered.size:,} bytes",
        f"{produced.seconds:.2f} s",
        f"topic {topic} on {kafka.servers}",
        *_places(produced),
    ]
    if produced.unconfirmed:
        parts.append(f"{produced.unconfirmed:,} more were sent but not acknowledged")
    if skipped:
        parts.append(f"{counted(skipped, 'empty line')} skipped")
    return " · ".join(parts)


def _places(produced: Produced) -> Iterator[str]:
    landed = produced.delivered.partitions
    if len(landed) > 8:
        yield f"{len(landed)} partitions"
        return
    for partition, place in sorted(landed.items()):
        offsets = f"offset {place.first}" if place.records == 1 else f"offsets {place.first} to {place.last}"
        yield f"partition {partition}: {offsets}"


_PLACE_WIDTH = 8
_KEY_WIDTH = 12


def read_start(ctx: click.Context, param: click.Parameter, text: str) -> Start:
    """Parse a start: a word, an offset, a time or an age."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdigit():
        return int(text)
    expected = "earliest, latest, an offset (61), a time (2026-11-20T08:14) or an age (-10m)"
    return require_moment(text, expected)


@verb(
    examples=(
        "headrace consume orders --limit 10",
        "headrace consume orders --from -10m --follow",
        "headrace consume orders --partition 0 --from 4711 --json | jq .value",
    )
)
@click.argument("topic")
@option(
    "--from START",
    "Start at: earliest, latest, an offset, a time in UTC, or an age such as -10m.",
    read_start,
    name="start",
    default="earliest",
)
@option(
    "--partition N", "Read only this partition; can be repeated.", WHOLE, name="partitions", multiple=True
)
@option("--limit N", "The maximum number of records.", POSITIVE)
@option("--follow", "Wait for new records until Ctrl-C.")
def consume(
    invocation: Invocation,
    topic: str,
    start: Start,
    partitions: tuple[int, ...],
    limit: int | None,
    follow: bool,
) -> Result:
    """Print the records of a topic.

    Reads from the Kafka cluster of the pipeline. Outside of a pipeline it reads from the shared embedded
    broker, or from the cluster of --set kafka.bootstrap.servers=HOST:PORT. Without --follow, it stops at the
    offsets that were the latest when the command started. Prints committed records only, in order within
    each partition, and creates no consumer group.

    A line holds partition/offset, timestamp (UTC), key and value. Bytes that are not valid UTF-8 are
    printed as 0x.. With --json, a value that is a JSON object or array stays JSON; any other is a string.
    """
    output = invocation.output
    kafka = reach_kafka(invocation)
    reader = TopicReader(kafka.connection, topic)
    try:
        with output.progress("Asking the broker"):
            span = reader.find_span(start, partitions)
    except TopicNotFoundError as error:
        raise not_found(error, kafka, KafkaCluster(kafka.connection)) from error
    except OffsetUnknownError as error:
        limited = "" if limit is None else f" --limit {limit}"
        raise error.with_(remedies=[f"{one}{limited}" for one in error.remedies]) from error
    if span.is_empty and not follow:
        output.note(f"Topic {topic} has no records after this start.")
    render = _as_json if output.is_json else _as_line
    output.pour(map(render, itertools.islice(reader.read(span, follow=follow), limit)), at_once=follow)
    return Result(data=None)


def _as_line(record: TopicRecord) -> str:
    place = f"{record.partition}/{record.offset}"
    at = "-" if record.timestamp is None else f"{record.timestamp:%Y-%m-%d %H:%M:%S.%f}"[:23]
    key, value = _printable(_decoded(record.key)), _printable(_on_one_line(_decoded(record.value)))
    return f"{place:<{_PLACE_WIDTH}}  {at}  {key:<{_KEY_WIDTH}}  {value}"


def _as_json(record: TopicRecord) -> str:
    head = {
        "format_version": FORMAT_VERSION,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp is None else record.timestamp.isoformat(),
        "key": _decoded(record.key),
        "headers": [[name, _decoded(value)] for name, value in record.headers],
    }
    text = _decoded(record.value)
    parsed = _parsed(text)
    # Unchanged: numbers that are parsed and written again can lose digits.
    whole = isinstance(parsed, dict | list) and text is not None
    value = text.translate(_BREAKS) if whole and text is not None else json.dumps(text, ensure_ascii=False)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "value": {value}}}'


_BREAKS = {ord("\n"): " ", ord("\r"): " "}  # in JSON they only occur between tokens


def _decoded(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "0x" + data.hex()


def _on_one_line(text: str | None) -> str | None:
    if text is None or "\n" not in text or not isinstance(_parsed(text), dict | list):
        return text
    return " ".join(line.strip() for line in text.splitlines())


def _parsed(text: str | None) -> Any:
    if text is None or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _printable(text: str | None) -> str:
    """The text without control characters that move the cursor of a terminal."""
    if text is None:
        return "null"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
