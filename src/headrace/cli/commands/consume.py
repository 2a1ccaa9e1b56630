"""`headrace consume`: the records of a topic."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.moments import parse_moment
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.output import Output
    from headrace.sources.kafka.consumer import Start, TopicRecord

_PLACE_WIDTH = 8
_KEY_WIDTH = 12


def read_start(ctx: click.Context, param: click.Parameter, text: str) -> Start:
    """Parse a start: a word, an offset, a time or an age."""
    match text:
        case "earliest" | "latest":
            return text
    if text.isascii() and text.isdigit():
        return int(text)
    moment = parse_moment(text)
    if moment is None:
        problem = (
            f"{text!r} is not earliest, latest, an offset (61), a time (2026-11-20T08:14) or an age (-10m)"
        )
        raise click.BadParameter(problem, ctx, param)
    return moment


@verb(
    examples=(
        "headrace consume orders --limit 10",
        "headrace consume orders --from -10m --follow",
        "headrace consume orders --partition 0 --from 4711 --json | jq .value",
    )
)
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    callback=read_start,
    metavar="START",
    help="Start at: earliest, latest, an offset, a time in UTC, or an age such as -10m.",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="Read only this partition; can be repeated.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The maximum number of records.")
@click.option("--follow", is_flag=True, help="Wait for new records until Ctrl-C.")
def command(
    invocation: Invocation,
    topic: str,
    start: Start,
    partitions: tuple[int, ...],
    limit: int | None,
    follow: bool,
) -> Result:
    """Print the records of a topic.

    Reads from the Kafka cluster of the pipeline. Outside of a pipeline it reads from the embedded broker, or
    from the cluster of --set kafka.bootstrap.servers=HOST:PORT. Without --follow, it stops at the offsets
    that were the latest when the command started. Prints committed records only, in order within each
    partition, and creates no consumer group.

    A line holds partition/offset, timestamp (UTC), key and value. Bytes that are not valid UTF-8 are
    printed as 0x.. With --json, a value that is a JSON object or array stays JSON; any other is a string.
    """
    from headrace.cli.kafka import not_found, reach_kafka
    from headrace.sources.kafka.cluster import KafkaCluster
    from headrace.sources.kafka.consumer import TopicReader

    output = invocation.output
    kafka = reach_kafka(invocation)
    reader = TopicReader(kafka.connection, topic)
    try:
        with output.progress("BrokerRequests the broker"):
            span = reader.find_span(start, partitions)
    except TopicNotFoundError as error:
        raise not_found(error, kafka, KafkaCluster(kafka.connection)) from error
    if span.is_empty and not follow:
        output.note(f"Topic {topic} has no records after this start.")
    _print(output, itertools.islice(reader.read(span, follow=follow), limit), at_once=follow)
    return Result(data=None)


def _print(output: Output, records: Iterator[TopicRecord], *, at_once: bool) -> None:
    render = _as_json if output.is_json else _as_line
    output.pour(map(render, records), at_once=at_once)


def _as_line(record: TopicRecord) -> str:
    place = f"{record.partition}/{record.offset}"
    at = "-" if record.timestamp is None else f"{record.timestamp:%Y-%m-%d %H:%M:%S.%f}"[:23]
    key, value = _printable(_decoded(record.key)), _printable(_on_one_line(_decoded(record.value)))
    return f"{place:<{_PLACE_WIDTH}}  {at}  {key:<{_KEY_WIDTH}}  {value}"


def _as_json(record: TopicRecord) -> str:
    head = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp is None else record.timestamp.isoformat(),
        "key": _decoded(record.key),
        "headers": [[name, _decoded(value)] for name, value in record.headers],
    }
    text = _decoded(record.value)
    parsed = _parsed(text)
    # As it is: what is parsed and written again can lose digits.
    whole = isinstance(parsed, dict | list) and text is not None
    value = text.translate(_BREAKS) if whole and text is not None else json.dumps(text, ensure_ascii=False)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "value": {value}}}'


_BREAKS = {ord("\n"): " ", ord("\r"): " "}
"""Within JSON they stand between tokens only."""


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
    """Without what would move a terminal's cursor."""
    if text is None:
        return "null"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
