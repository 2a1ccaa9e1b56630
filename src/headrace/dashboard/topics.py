"""The topics that a pipeline reads: offsets, lag and rate; newest records, if somebody asks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from headrace.dashboard import sample
from headrace.dashboard.offsets import ANSWER_S
from headrace.dashboard.site import PipelineView, required
from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.sources.kafka.position import KafkaOffsets
from headrace.sources.registry import range_of
from headrace.storage.location import Location
from headrace.storage.table_log import newest_commits

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.model.ranges import SourceRange

_SEARCHED = 60  # the newest commits of a table among which the last batch is searched
_NEWEST = 20  # records


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A flow that reads topics, up to which offsets."""

    dataset: str
    flow: str
    version: int
    offsets: Mapping[str, Mapping[int, int]]
    servers: str | None = None  # the brokers, if they are not those of the profile


@dataclass(frozen=True, kw_only=True)
class PartitionLine:
    number: int
    first: int
    end: int
    rate: float | None  # records per second since the last look
    read: Mapping[str, int]  # by flow

    @property
    def lag(self) -> int | None:
        return max((self.end - offset for offset in self.read.values()), default=None)


@dataclass(frozen=True, kw_only=True)
class TopicLine:
    name: str
    readers: tuple[Reader, ...]
    partitions: tuple[PartitionLine, ...] = ()
    problem: HeadraceError | None = None  # why the broker gave no offsets

    @property
    def records(self) -> int | None:
        return sum(one.end - one.first for one in self.partitions) if self.partitions else None

    @property
    def lag(self) -> int | None:
        lags = [one.lag for one in self.partitions if one.lag is not None]
        return sum(lags) if lags else None

    @property
    def rate(self) -> float | None:
        rates = [one.rate for one in self.partitions if one.rate is not None]
        return sum(rates) if rates else None


def listing(view: PipelineView, request: Request) -> Mapping[str, Any]:
    readers = list(load_readers(view))
    names = dict.fromkeys(topic for one in readers for topic in one.offsets)
    for one in view.definitions:
        for source in one["details"].get("sources", ()):
            names |= dict.fromkeys(source["topics"])
    lines = [load_topic(view, name, readers) for name in sorted(names)]
    return {"topics": lines, "problem": next((one.problem for one in lines if one.problem), None)}


def page(view: PipelineView, request: Request) -> Mapping[str, Any]:
    name = find_topic(view, request)
    return {"topic": load_topic(view, name, list(load_readers(view))), "shows_rows": view.settings.shows_rows}


def find_topic(view: PipelineView, request: Request) -> str:
    """The topic that a request names; one that the pipeline does not read is not shown."""
    name = required(request, "name")
    known = {topic for one in load_readers(view) for topic in one.offsets}
    for one in view.definitions:
        known |= {topic for source in one["details"].get("sources", ()) for topic in source["topics"]}
    if name not in known:
        raise HTTPException(404, "The pipeline reads no topic of this name.")
    return name


def load_readers(view: PipelineView) -> Iterator[Reader]:
    """The flows whose last batch has read topics."""
    for key, status in view.datasets().items():
        for flow in status.flows:
            if flow.checkpoint is None or flow.orphaned:
                continue
            for version, one in last_ranges(view, key, flow.checkpoint):
                if isinstance(one.until, KafkaOffsets):
                    servers = one.identity.get("servers")
                    offsets = one.until.offsets
                    yield Reader(
                        dataset=key, flow=flow.flow, version=version, offsets=offsets, servers=servers
                    )


def last_ranges(
    view: PipelineView, dataset: str, checkpoint: str, batches: int = 1
) -> list[tuple[int, SourceRange]]:
    """The ranges of the newest batches of a flow, each with the version that holds it."""
    table = view.settings.storage.table(TableName.parse(dataset, view.settings.database))
    with suppress(HeadraceError, OSError, ValueError):
        what = ("ranges", checkpoint, batches)
        return view.site.read([table], what, lambda: _find_ranges(table, checkpoint, batches))
    return []


def _find_ranges(table: Location, checkpoint: str, batches: int) -> list[tuple[int, SourceRange]]:
    found: list[tuple[int, SourceRange]] = []
    for commit in newest_commits(table, _SEARCHED * batches):
        metadata = commit.metadata or {}
        if "batch" in metadata and commit.is_ours and metadata.get("checkpoint") == checkpoint:
            found += [(commit.version, range_of(one)) for one in metadata["sources"]]
            batches -= 1
            if not batches:
                break
    return found


def load_topic(view: PipelineView, name: str, readers: list[Reader]) -> TopicLine:
    own = tuple(one for one in readers if name in one.offsets)
    try:
        look = view.site.offsets.look(_connection(view, own), name)
    except HeadraceError as error:
        return TopicLine(name=name, readers=own, problem=view.settings.redactor.error(error))
    partitions = [
        PartitionLine(
            number=number,
            first=look.first[number],
            end=end,
            rate=look.rates.get(number),
            read={one.flow: one.offsets[name][number] for one in own if number in one.offsets[name]},
        )
        for number, end in sorted(look.end.items())
    ]
    return TopicLine(name=name, readers=own, partitions=tuple(partitions))


def _connection(view: PipelineView, readers: tuple[Reader, ...]) -> KafkaConnection:
    from headrace.runtime.broker import resolve_embedded
    from headrace.sources.kafka.clusters import KafkaClusters
    from headrace.sources.requests import Asking

    settings = view.settings

    def reached() -> KafkaConnection:
        return resolve_embedded(settings.kafka) or settings.kafka

    asking = Asking(settings=lambda: settings, timeout_s=ANSWER_S, asks_once=True)
    clusters = KafkaClusters(reached, timeout_s=asking.timeout_s, named=settings.brokers.named)
    return clusters.at(next((one.servers for one in readers if one.servers), None)).connection


def records(view: PipelineView, request: Request) -> Mapping[str, Any]:
    """The newest records of a topic, because somebody has asked."""
    from headrace.sources.kafka.consumer import Span, TopicReader

    sample.allow(view)
    name = find_topic(view, request)
    own = tuple(one for one in load_readers(view) if name in one.offsets)
    connection = _connection(view, own)
    look = view.site.offsets.look(connection, name)
    each = max(_NEWEST // max(len(look.end), 1), 1)
    first = {one: max(end - each, look.first[one]) for one, end in look.end.items()}
    found = list(itertools.islice(TopicReader(connection, name).read(Span(first, look.end)), 4 * _NEWEST))
    found.sort(
        key=lambda one: (one.timestamp is None, one.timestamp, one.partition, one.offset), reverse=True
    )
    columns = ("partition", "offset", "timestamp", "key", "headers", "value")
    cells = [
        [
            str(one.partition),
            str(one.offset),
            *(sample.text(view, value) for value in (one.timestamp, one.key, list(one.headers), one.value)),
        ]
        for one in found[:_NEWEST]
    ]
    return {
        "title": f"Newest records of {name}",
        "columns": [(one, "") for one in columns],
        "rows": cells,
        "is_cut": False,
        "command": f"headrace consume {name} --from -10m",
    }
