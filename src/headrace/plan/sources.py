"""The streaming sources of a resolved query, as stages name them."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from headrace.errors import (
    FeatureUnsupportedError,
    OptionInvalidError,
    SourceLocation,
    SourceReadTwiceError,
    SourceUnsupportedError,
)
from headrace.model.folders import local_path
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.kafka_options import same_servers
from headrace.plan.logical import Leaf, LogicalPlan
from headrace.plan.options import ADAPTIVE, ERASURES_ONLY, FILE_FORMATS
from headrace.plan.stages import PlannedSource
from headrace.sources.files.read import FORMAT_OPTION
from headrace.sources.kafka.read import ALLOW_NO_TOPICS, LOSS_POLICY
from headrace.sources.kafka.subscription import Subscription, matching, shown
from headrace.storage.layout import Storage


class KnownFolders(Protocol):
    """Knows the folders that stand for datasets."""

    def name_of(self, path: str) -> TableName | None: ...


def planned_sources(
    plan: LogicalPlan, folders: KnownFolders, settings: ProjectSettings, location: SourceLocation
) -> tuple[PlannedSource, ...]:
    """The streaming sources of a query, in Spark's order.

    Args:
        plan: The query.
        folders: Knows which leaves stand for datasets.
        settings: Where datasets lie, and which Kafka cluster the pipeline reads.
        location: The query's place, for leaves that carry none of their own.

    Raises:
        SourceUnsupportedError: A source's positions could not be recorded and proven.
        FeatureUnsupportedError: A Kafka source names a cluster that the protocol cannot watch.
        OptionInvalidError: A Kafka source does not say which topics it reads.
        SourceReadTwiceError: Two separate reads have the same topic, table or folder.
    """
    sources = tuple(_source(leaf, folders, settings.storage, location) for leaf in plan.leaves)
    for source in sources:
        if source.kind == "kafka":
            _refuse_unwatched(source, settings)
    refuse_read_twice(sources)
    return sources


def refuse_read_twice(
    sources: Sequence[PlannedSource], topics: Mapping[int, Iterable[str]] | None = None
) -> None:
    """Refuse a query that reads the same topic, table or folder through two separate reads.

    Args:
        sources: The query's sources.
        topics: The topics that a source's pattern matches now, by index, where the broker was asked.

    Raises:
        SourceReadTwiceError: There are two such reads.
    """
    for earlier, source in itertools.combinations(sources, 2):
        shared = None if earlier.read == source.read else _shared(earlier, source, topics or {})
        if shared is not None:
            raise SourceReadTwiceError(
                f"the query reads {shared} through two separate streaming reads",
                location=source.location,
                facts=[f"the other read is at {earlier.location}"],
                remedies=[
                    "read it once into a variable or a temporary view, and use that twice",
                    "or write two flows into the table:   @hr.append_flow(target=..)",
                ],
                params={"source": shared},
            )


def _shared(one: PlannedSource, two: PlannedSource, topics: Mapping[int, Iterable[str]]) -> str | None:
    """The topic, table or folder that two reads have in common."""
    if one.kind != two.kind:
        return None
    if one.kind != "kafka":
        same = one.table == two.table and _plain(one.path) == _plain(two.path)
        return (
            f"{'the table' if one.kind == 'delta' else 'the folder'} {one.table or _plain(one.path)}"
            if same
            else None
        )
    if one.topic_pattern is not None and one.topic_pattern == two.topic_pattern:
        return f"the pattern `{shown(one.topic_pattern)}`"

    def names(source: PlannedSource, other: PlannedSource) -> set[str]:
        if source.topic_pattern is None:
            return set(source.topics)
        return {*topics.get(source.index, ()), *matching(source.topic_pattern, other.topics)}

    common = sorted(names(one, two) & names(two, one))
    return f"the topic `{common[0]}`" if common else None


def _refuse_unwatched(source: PlannedSource, settings: ProjectSettings) -> None:
    """A topic that is created anew is noticed by its id, which is asked of the profile's cluster."""
    options = {key.lower(): value for key, value in source.options.items()}
    servers = options.get("kafka.bootstrap.servers", "")
    if not servers:
        raise OptionInvalidError(
            f"a stream of Kafka names no broker, and neither does the profile `{settings.profile}`",
            location=source.location,
            remedies=["write kafka: {bootstrap.servers: ..} in the spec, or `embedded` for the own broker"],
            params={"option": "kafka.bootstrap.servers", "profile": settings.profile},
        )
    if not same_servers(servers, settings.kafka.bootstrap_servers):
        raise FeatureUnsupportedError(
            f"a stream reads the Kafka cluster {servers}, which is not the profile's",
            location=source.location,
            remedies=[
                "leave `kafka.bootstrap.servers` out: the reader gets the connection of the profile "
                f"`{settings.profile}`; or name that cluster in headrace.yml"
            ],
            params={"option": "kafka.bootstrap.servers", "servers": servers},
        )


def describe(source: PlannedSource) -> str:
    """A source in words that are the same in every profile."""
    if source.table is not None:
        return f"table {source.table}"
    if source.kind == "kafka":
        topics = ",".join(
            f"{topic}{list(source.partitions[topic])}" if topic in source.partitions else topic
            for topic in sorted(source.topics)
        )
        return f"kafka {source.topic_pattern or topics}"
    return f"{source.kind} {source.path}"


def _source(leaf: Leaf, folders: KnownFolders, storage: Storage, location: SourceLocation) -> PlannedSource:
    options = dict(leaf.options)
    marked = options.pop(LOCATION_OPTION, None)
    erasures_only = options.pop(ERASURES_ONLY, None) is not None
    adaptive = options.pop(ADAPTIVE, None) is not None
    place = _location(marked) or location
    path = options.get("path")
    table = folders.name_of(path) if path else None
    if table is not None:
        options.pop("path", None)
        return PlannedSource(
            index=leaf.index,
            folder=leaf.folder,
            read=leaf.read,
            kind="delta",
            location=place,
            table=table,
            path=str(storage.table(table)),
            options=options,
            erasures_only=erasures_only,
            adaptive=adaptive,
        )
    if leaf.provider == "kafka":
        return _kafka_source(leaf, options, place, adaptive=adaptive)
    if leaf.provider in FILE_FORMATS and local_path(str(path)) is None:
        raise FeatureUnsupportedError(
            f"a stream reads the files of {path}, which are not on this machine",
            location=place,
            remedies=["files are read from local folders so far"],
            params={"path": path},
        )
    if leaf.provider == "delta" or leaf.provider in FILE_FORMATS:
        return PlannedSource(
            index=leaf.index,
            folder=leaf.folder,
            read=leaf.read,
            kind="delta" if leaf.provider == "delta" else "files",
            location=place,
            path=absolute_path(path) if path and leaf.provider == "delta" else path,
            format=None if leaf.provider == "delta" else options.pop(FORMAT_OPTION, leaf.provider),
            options=options,
            erasures_only=erasures_only,
            adaptive=adaptive,
        )
    raise SourceUnsupportedError(
        f"a stream reads from `{leaf.provider}`, whose positions Headrace cannot record and prove",
        location=place,
        remedies=[
            "streams read from Kafka, Delta tables and files (json, csv, parquet, orc, text, avro, xml)"
        ],
        params={"format": leaf.provider},
    )


def _plain(path: str | None) -> str | None:
    return None if path is None else os.path.normpath(local_path(path) or path)


def _kafka_source(
    leaf: Leaf, options: dict[str, str], place: SourceLocation, *, adaptive: bool
) -> PlannedSource:
    try:
        subscription = Subscription.of(options)
    except ValueError as error:
        raise OptionInvalidError(
            f"a stream of Kafka {error}", location=place, params={"problem": str(error)}
        ) from error
    lowered = {key.lower(): value.lower() for key, value in options.items()}
    return PlannedSource(
        index=leaf.index,
        folder=leaf.folder,
        read=leaf.read,
        kind="kafka",
        location=place,
        topics=subscription.topics,
        topic_pattern=subscription.pattern,
        partitions=subscription.partitions,
        allow_no_topics=lowered.get(ALLOW_NO_TOPICS.lower()) == "true",
        on_data_loss=_policy(lowered.get(LOSS_POLICY.lower())),
        options=options,
        adaptive=adaptive,
    )


def absolute_path(path: str) -> str:
    """A table's folder, however it was written; what lies on another system stays as it is."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return path
    return os.path.normpath(Path(unquote(parts.path) if parts.scheme else path).absolute())


def _policy(text: str | None) -> OnDataLoss | None:
    match text:
        case "refuse" | "record":
            return text
        case _:
            return None


def _location(text: str | None) -> SourceLocation | None:
    found = re.fullmatch(r"(.*):(\d+)", text or "")
    return SourceLocation(found[1], int(found[2])) if found else None
