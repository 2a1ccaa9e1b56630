"""The streaming sources of a resolved query, as stages name them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol

from headrace.errors import FeatureUnsupportedError, SourceLocation, SourceUnsupportedError
from headrace.model.folders import local_path
from headrace.model.names import Storage, TableName
from headrace.model.project import ProjectSettings
from headrace.plan.intercept import LOCATION_OPTION
from headrace.plan.logical import Leaf, LogicalPlan
from headrace.plan.options import ADAPTIVE, ERASURES_ONLY, FILE_FORMATS
from headrace.plan.stages import PlannedSource
from headrace.sources.files import FORMAT_OPTION


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
        FeatureUnsupportedError: A Kafka source names its topics or its cluster in a way that
            the protocol cannot watch yet.
    """
    sources = tuple(_source(leaf, folders, settings.storage, location) for leaf in plan.leaves)
    for source in sources:
        if source.kind == "kafka":
            _refuse_unwatched(source, settings)
    return sources


def _refuse_unwatched(source: PlannedSource, settings: ProjectSettings) -> None:
    """A topic that is created anew is noticed by its id, which is asked of the profile's cluster."""
    if source.topic_pattern is not None:
        raise FeatureUnsupportedError(
            f"a stream subscribes to the pattern `{source.topic_pattern}`, which cannot be watched yet",
            location=source.location,
            remedies=["name the topics, separated by commas"],
            params={"option": "subscribePattern"},
        )
    options = {key.lower(): value for key, value in source.options.items()}
    servers = options.get("kafka.bootstrap.servers", "")
    if servers != settings.kafka.bootstrap_servers:
        raise FeatureUnsupportedError(
            f"a stream reads the Kafka cluster {servers}, which is not the profile's",
            location=source.location,
            remedies=[
                "read it with hr.read_kafka, which takes the connection of the profile "
                f"`{settings.profile}`, or name that cluster in headrace.yml"
            ],
            params={"option": "kafka.bootstrap.servers", "servers": servers},
        )


def describe(source: PlannedSource) -> str:
    """A source in words that are the same in every profile."""
    if source.table is not None:
        return f"table {source.table}"
    if source.kind == "kafka":
        return f"kafka {source.topic_pattern or ','.join(sorted(source.topics))}"
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
            kind="delta",
            location=place,
            table=table,
            path=str(storage.table(table)),
            options=options,
            erasures_only=erasures_only,
            adaptive=adaptive,
        )
    if leaf.provider == "kafka":
        topics, pattern = _topics(options)
        return PlannedSource(
            index=leaf.index,
            folder=leaf.folder,
            kind="kafka",
            location=place,
            topics=topics,
            topic_pattern=pattern,
            options=options,
            adaptive=adaptive,
        )
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
            kind="delta" if leaf.provider == "delta" else "files",
            location=place,
            path=path,
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


def _topics(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    chosen = {key.lower(): value for key, value in options.items()}
    if pattern := chosen.get("subscribepattern"):
        return (), pattern
    if assigned := chosen.get("assign"):
        return tuple(json.loads(assigned)), None
    return tuple(topic.strip() for topic in chosen.get("subscribe", "").split(",") if topic.strip()), None


def _location(text: str | None) -> SourceLocation | None:
    found = re.fullmatch(r"(.*):(\d+)", text or "")
    return SourceLocation(found[1], int(found[2])) if found else None
