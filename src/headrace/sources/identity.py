"""What tells a flow's sources from others of the same name, asked of the systems themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import SourceLocation, TopicNotFoundError
from headrace.model.names import Storage, TableName
from headrace.model.ranges import SourceKind
from headrace.sources.cluster import KafkaCluster
from headrace.sources.limits import FILES_MAX_AGE
from headrace.state.identity import SourceIdentity
from headrace.state.opening import KafkaFacts


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
            identity = {"topics": cluster.topic_ids(source.topics)}
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


def kafka_facts(topics: Sequence[str], ids: dict[str, str | None], cluster: KafkaCluster) -> KafkaFacts:
    """What the broker holds of the topics that exist."""
    there = [topic for topic in topics if ids.get(topic) is not None]
    return KafkaFacts(ids=ids, earliest=cluster.earliest(there), latest=cluster.latest(there))


def require_topics(source: SourceIdentity, cluster: KafkaCluster, location: SourceLocation) -> None:
    """Make sure that the topics exist which a new checkpoint is to read.

    Args:
        location: Where the query reads them.

    Raises:
        TopicNotFoundError: One does not.
    """
    try:
        for topic, found in source.identity.get("topics", {}).items():
            if found is None:
                cluster.partitions(topic)
                raise TopicNotFoundError(f"the broker has no topic `{topic}`", params={"topic": topic})
    except TopicNotFoundError as error:
        error.location = location
        raise
