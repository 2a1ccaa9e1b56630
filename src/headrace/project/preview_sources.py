"""Replaces the sources of previewed queries: bounded batches of what the sources hold now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlparse

from headrace.errors import HeadraceError, SourceUnsupportedError
from headrace.model.declarations import Dataset
from headrace.model.names import TableName
from headrace.plan.bounded import batch_options, read_kafka_between
from headrace.plan.evaluate import evaluate
from headrace.plan.intercept import suspended
from headrace.plan.modes import Bounded, TableAccess
from headrace.plan.names import quoted, shown
from headrace.plan.stages import Declared, Plan
from headrace.plan.stored import StoredTable, load_stored
from headrace.sources.delta.starting import CHANGE_FEED
from headrace.sources.kafka.cluster import KafkaCluster, Offsets
from headrace.sources.kafka.clusters import KafkaClusters, other_cluster
from headrace.sources.kafka.starting import Start
from headrace.sources.kafka.subscription import Subscription
from headrace.sources.requests import ReadRequest, SourceRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = 100
"""The number of newest files of a folder that are read."""


@dataclass(frozen=True, kw_only=True)
class SourceSeen:
    """What was read of one source.

    Args:
        read: The number of records or files that were read.
        held: The number that the source holds.
        version: The version of a table.
        computed: The reason why a table was computed from its own query, or ``None`` if it was read.
    """

    kind: Literal["kafka", "files", "table"]
    name: str
    read: int | None = None
    held: int | None = None
    version: int | None = None
    computed: str | None = None

    def __str__(self) -> str:
        if self.computed is not None:
            return f"{self.kind} {self.name}: computed from its query; {self.computed}"
        if self.version is not None:
            return f"{self.kind} {self.name}: v{self.version}"
        if self.held is None:
            return f"{self.kind} {self.name}"
        unit = "records" if self.kind == "kafka" else "files"
        return f"{self.kind} {self.name}: {self.read:,} of {self.held:,} {unit}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "read": self.read,
            "held": self.held,
            "version": self.version,
            "computed": self.computed,
        }


class PreviewReader:
    """Builds queries over what their sources hold now.

    Args:
        session: A session for the preview, whose catalog has the existing tables.
        plan: The plan of the whole pipeline.
        clusters: The Kafka clusters, which say which offsets the topics hold.
        records: How many of the newest records of each Kafka source are read.
    """

    def __init__(self, session: SparkSession, plan: Plan, clusters: KafkaClusters, *, records: int) -> None:
        self._session = session
        self._plan = plan
        self._clusters = clusters
        self._records = records
        self._storage = plan.project.storage
        self._datasets = {str(dataset.name).casefold(): dataset for dataset in plan.datasets}
        self._computed: dict[TableName, DataFrame] = {}
        self._computing: list[TableName] = []
        self._seen: dict[str, SourceSeen] = {}

    @property
    def seen(self) -> tuple[SourceSeen, ...]:
        """The sources that were read so far."""
        return tuple(self._seen.values())

    def union(self, queries: Sequence[Declared]) -> DataFrame:
        """The rows of one query, or of all flows of one table."""
        frames = [self._query(query) for query in queries]
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionByName(frame, allowMissingColumns=True)
        return union

    def _query(self, query: Declared) -> DataFrame:
        mode = Bounded(sources=self._source, tables=self._table)
        frame = evaluate(self._session, query, self._plan, mode)
        if frame.isStreaming:
            raise SourceUnsupportedError(
                f"`{query.name}` reads a stream that was built outside of its function",
                location=query.location,
                facts=["a preview can replace only the reads inside of query functions"],
                remedies=["move the read into the function"],
                params={"name": str(query.name)},
            )
        return frame

    # -- tables

    def _table(self, access: TableAccess) -> DataFrame | None:
        dataset = self._datasets.get(str(access.name).casefold())
        name = access.name if dataset is None else dataset.name
        stored = load_stored(self._storage, name)
        reason = None if dataset is None else self._reason_to_compute(dataset, stored)
        if dataset is not None and reason is not None:
            self._note(SourceSeen(kind="table", name=shown(name), computed=reason))
            frame = self._compute(dataset)
            return _as_inserts(frame) if access.changes else frame
        version = None if stored is None else stored.version
        self._note(SourceSeen(kind="table", name=shown(name), version=version))
        if not access.streaming:
            # Spark reads the table from the session's catalog, with its options for time travel.
            return None
        if access.changes:
            return self._changes(self._session.read.table(quoted(name)), quoted(name), access.options)
        return self._session.read.table(quoted(name))

    def _reason_to_compute(self, dataset: Dataset, stored: StoredTable | None) -> str | None:
        if stored is None:
            return "the table does not exist yet"
        there = {field["name"].casefold() for field in stored.schema["fields"]}
        wanted = [field["name"] for field in self._plan.schemas[dataset.name]["fields"]]
        lacking = [name for name in wanted if name.casefold() not in there]
        return f"the table does not have {', '.join(lacking)} yet" if lacking else None

    def _compute(self, dataset: Dataset) -> DataFrame:
        if dataset.name in self._computing:
            # A query that looks up its own table finds nothing before the first run.
            from pyspark.sql.types import StructType

            schema = StructType.fromJson(dict(self._plan.schemas[dataset.name]))
            return self._session.createDataFrame([], schema)
        if dataset.name not in self._computed:
            self._computing.append(dataset.name)
            try:
                self._computed[dataset.name] = self.union(self._plan.queries_of(dataset))
            finally:
                self._computing.pop()
        return self._computed[dataset.name]

    def _changes(self, whole: DataFrame, table: str, options: Mapping[str, str]) -> DataFrame:
        chosen = {key.lower(): value for key, value in options.items()}
        version = chosen.get("startingversion", "latest")
        if version == "latest" and "startingtimestamp" not in chosen:
            # What such a stream gives at its start: the table as it is.
            return _as_inserts(whole)
        reader = self._session.read.option("readChangeFeed", "true")
        for key in ("startingVersion", "startingTimestamp"):
            if key.lower() in chosen:
                reader = reader.option(key, chosen[key.lower()])
        return reader.table(table)

    # -- sources

    def _source(self, read: SourceRead) -> DataFrame | None:
        request = read.request
        if request.format == "kafka":
            return self._kafka(read) if request.streaming else None
        if not (request.streaming and read.paths):
            return None
        if request.format == "delta":
            return self._delta(read)
        return self._files(read)

    def _kafka(self, read: SourceRead) -> DataFrame:
        try:
            cluster = self._clusters.reach(other_cluster(read.request.options, self._plan.project.kafka))
            topics = _topics(read.request, cluster)
            earliest, latest = cluster.earliest(topics), cluster.latest(topics)
            lower = _lower_bound(read.request, cluster, earliest, latest)
        except HeadraceError as error:
            raise error.with_location(read.location) from error.__cause__
        start = newest(lower, latest, self._records)
        self._note(
            SourceSeen(
                kind="kafka", name=",".join(topics), read=_span(start, latest), held=_span(lower, latest)
            )
        )
        return read_kafka_between(read, start, latest)

    def _delta(self, read: SourceRead) -> DataFrame:
        path = read.paths[0]
        self._note(SourceSeen(kind="table", name=path))
        whole = self._session.read.format("delta").load(path)
        if any((read.request.value(name) or "").lower() == "true" for name in CHANGE_FEED):
            return self._changes(whole, f"delta.`{path}`", read.request.options)
        return whole

    def _files(self, read: SourceRead) -> DataFrame:
        def load(paths: list[str], **options: str) -> DataFrame:
            reader = self._session.read.format(read.request.format).options(**batch_options(read.request))
            if read.request.schema is not None:
                reader = reader.schema(read.request.schema)
            return reader.options(**options).load(paths)

        everything = load(list(read.paths))
        with suspended():
            files = sorted(everything.inputFiles(), key=_age, reverse=True)
        chosen = [unquote(file) for file in files[:FILES]]
        self._note(SourceSeen(kind="files", name=", ".join(read.paths), read=len(chosen), held=len(files)))
        if len(chosen) == len(files):
            return everything
        # Spark finds partition columns below the base path only. The chosen paths are not patterns.
        base = {"basePath": read.paths[0]} if _is_folder(read.paths[0]) else {}
        return load(chosen, **base, __globPaths__="false")

    def _note(self, seen: SourceSeen) -> None:
        self._seen.setdefault(f"{seen.kind} {seen.name}", seen)


def newest(first: Offsets, until: Offsets, count: int) -> Offsets:
    """The offsets at which to start, to read the newest records: an equal share of each partition. What a
    small partition does not need of its share goes to the others.

    Example:
        >>> newest({"t": {0: 0, 1: 0}}, {"t": {0: 2, 1: 100}}, 10)
        {'t': {0: 0, 1: 92}}
    """
    sizes = {
        (topic, partition): end - first[topic][partition]
        for topic, partitions in until.items()
        for partition, end in partitions.items()
    }
    start: Offsets = {topic: {} for topic in until}
    left = count
    for number, (topic, partition) in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = -(-left // (len(sizes) - number))
        taken = min(sizes[topic, partition], share)
        start[topic][partition] = until[topic][partition] - taken
        left -= taken
    return {topic: dict(sorted(partitions.items())) for topic, partitions in start.items()}


def _span(first: Offsets, until: Offsets) -> int:
    return sum(
        end - first[topic][partition]
        for topic, partitions in until.items()
        for partition, end in partitions.items()
    )


def _as_inserts(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.withColumns(
        {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(0).cast("long"),
            "_commit_timestamp": F.current_timestamp(),
        }
    )


def _age(file: str) -> tuple[float, str]:
    """The modification time of a local file, else its name."""
    local = urlparse(file)
    try:
        return Path(unquote(local.path)).stat().st_mtime if local.scheme in ("", "file") else 0.0, file
    except OSError:
        return 0.0, file


def _is_folder(path: str) -> bool:
    return not any(sign in path for sign in "*?[{")


def _topics(request: ReadRequest, cluster: KafkaCluster) -> tuple[str, ...]:
    subscription = Subscription.of(request.options)
    if subscription.pattern is None:
        return subscription.topics
    return cluster.matching(subscription.pattern)


def _lower_bound(request: ReadRequest, cluster: KafkaCluster, earliest: Offsets, latest: Offsets) -> Offsets:
    """Where the query would begin. `latest` sets no bound: nothing at all would be seen."""
    start = Start.of(request.options, default="earliest")
    given: Offsets = {}
    match start.at:
        case "offsets":
            given = start.offsets
        case "timestamp":
            moments = {topic: dict.fromkeys(parts, start.timestamp_ms) for topic, parts in earliest.items()}
            given = _since(cluster, moments, latest)
        case "timestamps":
            given = _since(cluster, start.timestamps_ms, latest)
    return {
        topic: {
            partition: min(max(first, given.get(topic, {}).get(partition, first)), latest[topic][partition])
            for partition, first in partitions.items()
        }
        for topic, partitions in earliest.items()
    }


def _since(cluster: KafkaCluster, moments: Offsets, latest: Offsets) -> Offsets:
    """The first offsets since these moments; a partition without a record since then has none."""
    return {
        topic: {p: offset if offset >= 0 else latest[topic][p] for p, offset in parts.items()}
        for topic, parts in cluster.offsets_since(moments).items()
    }
