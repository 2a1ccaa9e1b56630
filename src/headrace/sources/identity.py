"""What tells a flow's sources from others of the same name, asked of the systems themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import SourceLocation, TopicNotFoundError
from headrace.model.names import TableName
from headrace.model.project import OnDataLoss
from headrace.model.ranges import SourceKind
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.subscription import shown
from headrace.sources.limits import FILES_MAX_AGE
from headrace.state.facts import KafkaFacts
from headrace.state.identity import SourceIdentity
from headrace.storage.layout import Storage


class DescribedSource(Protocol):
    """A streaming source as the plan describes it."""

    @property
    def index(self) -> int: ...
    @property
    def folder(self) -> int | None: ...
    @property
    def kind(self) -> SourceKind: ...
    @property
    def topics(self) -> tuple[str, ...]: ...
    @property
    def topic_pattern(self) -> str | None: ...
    @property
    def partitions(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def allow_no_topics(self) -> bool: ...
    @property
    def on_data_loss(self) -> OnDataLoss | None: ...
    @property
    def table(self) -> TableName | None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def options(self) -> Mapping[str, str]: ...


def identify(
    source: DescribedSource, cluster: KafkaCluster, storage: Storage, table_id: str | None
) -> SourceIdentity:
    """Ask a source's system who it is.

    Args:
        source: The source.
        cluster: The Kafka cluster of a kafka source.
        storage: Where the pipeline's own tables lie.
        table_id: Delta's id of the table behind a delta source.

    Raises:
        TopicNotFoundError: A topic that was never read does not exist.
        BrokerUnreachableError: No broker answered in time.
    """
    identity: dict[str, Any]
    match source.kind:
        case "kafka":
            identity = {"topics": cluster.topic_ids(topics_of(source, cluster))}
            if source.topic_pattern is not None:
                # A topic that is being deleted is listed for a while, and has no id any more.
                there = {topic: found for topic, found in identity["topics"].items() if found is not None}
                identity = {"topics": there, "pattern": source.topic_pattern}
            if source.partitions:
                identity["partitions"] = {t: list(parts) for t, parts in source.partitions.items()}
        case "delta":
            path = storage.table(source.table) if source.table else Path(source.path or "")
            identity = {"table_id": table_id, "path": str(path)}
        case "files":
            identity = files_identity(source)
    return SourceIdentity(
        index=source.index,
        kind=source.kind,
        identity=identity,
        folder=None if source.folder == source.index else source.folder,
    )


def topics_of(source: DescribedSource, cluster: KafkaCluster) -> tuple[str, ...]:
    """The topics that a source reads: those that it names, or those that its pattern matches now."""
    return source.topics if source.topic_pattern is None else cluster.matching(source.topic_pattern)


def files_identity(source: DescribedSource) -> dict[str, Any]:
    """Which files a source reads: where they lie, and what chooses among them."""
    chosen = {key.lower(): value for key, value in source.options.items()}
    identity: dict[str, Any] = {"path": source.path}
    if chosen.get("recursivefilelookup", "").lower() == "true":
        identity["recursive"] = True
    if "pathglobfilter" in chosen:
        identity["glob"] = chosen["pathglobfilter"]
    if chosen.get("maxfileage", FILES_MAX_AGE) != FILES_MAX_AGE:
        identity["max_age"] = chosen["maxfileage"]
    return identity


def kafka_facts(source: DescribedSource, ids: Mapping[str, str | None], cluster: KafkaCluster) -> KafkaFacts:
    """What the broker holds of the topics that exist, in the partitions that are read."""
    there = [topic for topic in ids if ids[topic] is not None]

    def read(offsets: Offsets) -> Offsets:
        return {
            topic: {p: o for p, o in parts.items() if p in source.partitions.get(topic, parts)}
            for topic, parts in offsets.items()
        }

    return KafkaFacts(
        ids=ids,
        earliest=read(cluster.earliest(there)),
        latest=read(cluster.latest(there)),
        on_data_loss=source.on_data_loss,
    )


def require_topics(
    source: DescribedSource, topics: Iterable[str], cluster: KafkaCluster, location: SourceLocation
) -> dict[str, int]:
    """Make sure that what a new checkpoint is to read exists.

    Args:
        source: What is to be read.
        topics: Its topics, as `topics_of` tells them.
        cluster: Where.
        location: Where the query reads them.

    Returns:
        The number of partitions that are read of each topic.

    Raises:
        TopicNotFoundError: A topic or a partition does not exist, or a pattern matches none.
    """
    found: dict[str, int] = {}
    try:
        for topic in topics:
            there = cluster.partitions(topic)
            asked = source.partitions.get(topic, there)
            if lacking := sorted(set(asked) - set(there)):
                raise TopicNotFoundError(
                    f"topic `{topic}` has no partition {lacking[0]}",
                    facts=[f"it has {len(there)}, counted from 0"],
                    remedies=["correct `assign`"],
                    params={"topic": topic, "partition": lacking[0]},
                )
            found[topic] = len(asked)
        if not found and not source.allow_no_topics:
            raise _no_match(source.topic_pattern or "", cluster)
    except TopicNotFoundError as error:
        raise error.with_(location=location) from error.__cause__
    return found


def _no_match(pattern: str, cluster: KafkaCluster) -> TopicNotFoundError:
    import difflib

    known = cluster.topics()
    near = difflib.get_close_matches(re.sub(r"\W+", "", shown(pattern)), known, n=3, cutoff=0.4)
    there = near or known[:3]
    return TopicNotFoundError(
        f"the pattern `{shown(pattern)}` matches no topic",
        facts=[f"there are {', '.join(there)}" + (", .." if len(known) > len(there) else "")]
        if there
        else ["the cluster has no topic yet"],
        remedies=[
            "correct the pattern",
            "allow_no_match=True in read_kafka, or the option headrace.allowNoTopics=true, waits for topics",
        ],
        params={"pattern": pattern, "topics": list(there)},
    )
