"""How a pipeline stands now: from what is on disk and in the broker, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import BrokerUnreachableError, HeadraceError, TopicNotFoundError
from headrace.model.connections import KafkaConnection
from headrace.model.folders import FileFolder, FoundFile, local_path
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.flow_state import FlowState, LastFailure, load_troubles
from headrace.observe.recent_commits import RecentCommits, at_of, load_tail
from headrace.observe.status import DatasetStatus, FlowStatus, ViewStatus
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.state.file_log import folder_of, load_seen
from headrace.state.identity import generations, load_identity
from headrace.state.lease import Driver, find_driver
from headrace.state.ledger import Ledger
from headrace.storage.layout import Storage
from headrace.storage.location import Location

_ANSWER_S = 1.0
"""How long the broker may take: a status that waits for the lag says nothing at all."""

_CHECKPOINT = "headrace.checkpoint."
_READERS = 8


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """How a pipeline stands.

    Args:
        broker: Its address; ``None`` where no flow reads Kafka.
        silence: Why the broker could not be asked.
        refusal: Why it will not be asked in vain again: a login or a right is wrong.
    """

    pipeline: str
    storage: Location
    datasets: tuple[DatasetStatus, ...]
    at: datetime
    broker: str | None = None
    silence: str | None = None
    refusal: HeadraceError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "storage": str(self.storage),
            "at": self.at.isoformat(timespec="milliseconds"),
            "broker": {
                "bootstrap_servers": self.broker,
                "problem": self.silence,
                "error": None if self.refusal is None else self.refusal.to_dict(),
            },
            "datasets": [one.to_json(self.at) for one in self.datasets],
        }


def take_snapshot(settings: ProjectSettings, connection: KafkaConnection) -> Snapshot:
    """Look at the storage and the broker.

    Args:
        settings: The pipeline; its files are not run.
        connection: How to reach the broker.
    """
    storage = settings.storage
    names = sorted(
        TableName(log.parent.parent.name, log.parent.name) for log in storage.tables.glob("*/*/_delta_log")
    )
    with ThreadPoolExecutor(_READERS) as pool:
        loaded = dict(zip(names, pool.map(lambda name: _load(storage.table(name)), names), strict=True))
    tails = {
        name: found
        for name, found in loaded.items()
        if isinstance(found, str) or found.properties.get("headrace.pipeline") == settings.name
    }
    looks = _Looks(storage, tails, load_troubles(storage), connection)
    found = [*map(looks.dataset, tails), *looks.never_made()]
    datasets = tuple(sorted(found, key=lambda one: (one.view is not None, one.dataset)))
    return Snapshot(
        pipeline=settings.name,
        storage=storage.root,
        datasets=datasets,
        at=datetime.now(UTC),
        broker=connection.bootstrap_servers or None,
        silence=looks.silence,
        refusal=looks.refusal,
    )


class _Looks:
    """Puts the parts together; the broker is asked once for all flows."""

    def __init__(
        self,
        storage: Storage,
        tails: Mapping[TableName, RecentCommits | str],
        troubles: Mapping[str, LastFailure],
        connection: KafkaConnection,
    ) -> None:
        self._storage = storage
        self._tails = tails
        self._troubles = troubles
        self._now = datetime.now(UTC)
        self._elsewhere: dict[Path, RecentCommits | str] = {}
        self._said = {
            (name, checkpoint): self._last_words(name, flow, checkpoint, tail)
            for name, tail in tails.items()
            if isinstance(tail, RecentCommits)
            for flow, checkpoint in _flows(tail)
        }
        topics = {topic for words in self._said.values() for topic in _topics(words)}
        self.refusal: HeadraceError | None = None
        self._latest: Mapping[str, Mapping[int, int]] | None = None
        try:
            self._latest, self.silence = _ask(connection, topics)
        except HeadraceError as error:
            self.refusal, self.silence = error, f"[{error.code}] {error.summary}"

    def dataset(self, name: TableName) -> DatasetStatus:
        tail = self._tails[name]
        if isinstance(tail, str):
            return DatasetStatus(dataset=name, kind="unknown", problem=tail)
        kind = tail.properties.get("headrace.kind", "streaming_table")
        return DatasetStatus(
            dataset=name,
            kind=kind,
            version=tail.version,
            rows=tail.rows,
            files=tail.files,
            size_bytes=tail.size_bytes,
            changed=tail.changed,
            flows=(
                *(self._flow(name, tail, flow, checkpoint) for flow, checkpoint in _flows(tail)),
                *self._never_opened(name, [flow for flow, _ in _flows(tail)]),
            ),
            view=self._view(name, tail) if kind == "materialized_view" else None,
        )

    def never_made(self) -> Iterator[DatasetStatus]:
        """What the newest update has failed to make."""
        failed = {trouble.dataset: key for key, trouble in self._troubles.items() if trouble.is_latest}
        for name, key in failed.items():
            if name in self._tails:
                continue
            if key == str(name):
                view = ViewStatus(state="failed", error=self._troubles[key].error)
                yield DatasetStatus(dataset=name, kind="materialized_view", view=view)
            else:
                flows = tuple(self._never_opened(name))
                yield DatasetStatus(dataset=name, kind="streaming_table", flows=flows)

    def _never_opened(self, name: TableName, opened: Collection[str] = ()) -> Iterator[FlowStatus]:
        """The flows of a table that have failed in the newest update, before they had a checkpoint."""
        for flow, trouble in sorted(self._troubles.items()):
            if trouble.dataset == name and flow not in (*opened, str(name)) and trouble.is_latest:
                driver = find_driver(self._storage.lease(name, flow))
                state = _state(driver, trouble, None)
                yield FlowStatus(flow=flow, state=state, checkpoint=None, driver=driver, error=trouble.error)

    def _flow(self, name: TableName, tail: RecentCommits, flow: str, checkpoint: str) -> FlowStatus:
        commit = tail.last_batch(checkpoint)
        words = self._said[name, checkpoint]
        driver = find_driver(self._storage.lease(name, flow))
        trouble = self._troubles.get(flow)
        batch = None if words is None else _last(words)
        planned = _planned(self._storage.flow_checkpoints(name, flow))
        waiting = self._waiting_files(name, flow, words)
        return FlowStatus(
            flow=flow,
            state=_state(driver, trouble, batch),
            checkpoint=checkpoint,
            batch=batch,
            version=commit.version if commit is not None else None if words is None else _version(words),
            committed=None if commit is None else at_of(commit),
            pending=planned if planned is not None and planned > (-1 if batch is None else batch) else None,
            lag=None if words is None else self._lag(words, waiting),
            lag_bytes=None if waiting is None else sum(file.size for file in waiting),
            rate=tail.rate(checkpoint, self._now) if driver is not None else None,
            late=Ledger(self._storage.ledger(name, flow), name, flow).late_rows(checkpoint),
            driver=driver,
            error=None if trouble is None or (driver is not None and trouble.final) else trouble.error,
        )

    def _view(self, name: TableName, tail: RecentCommits) -> ViewStatus:
        commit = tail.last_refresh()
        trouble = self._troubles.get(str(name))
        error = None if trouble is None else trouble.error
        if commit is None or commit.metadata is None:
            return ViewStatus(state="failed" if error else "new", error=error)
        inputs = {key: int(value["version"]) for key, value in commit.metadata["inputs"].items()}
        ids = {key: value.get("table_id") for key, value in commit.metadata["inputs"].items()}
        late = []
        for key, version in inputs.items():
            found = self._tails.get(TableName.parse(key, name.schema))
            if isinstance(found, RecentCommits) and (
                found.changed_after(version) or found.table_id != ids[key]
            ):
                late.append(key)
        return ViewStatus(
            state="failed" if error else "stale" if late else "fresh",
            version=commit.version,
            refreshed=at_of(commit),
            inputs=inputs,
            late=tuple(late),
            driver=find_driver(self._storage.lease(name, "view")),
            error=error,
        )

    def _last_words(
        self, name: TableName, flow: str, checkpoint: str, tail: RecentCommits
    ) -> Mapping[str, Any] | None:
        """What the last batch says of itself: from the newest commits, else from the ledger."""
        commit = tail.last_batch(checkpoint)
        if commit is not None:
            return commit.metadata
        try:
            folds = Ledger(self._storage.ledger(name, flow), name, flow).folds()
        except HeadraceError:
            return None
        for fold in reversed(folds):
            for entry in reversed(fold["batches"]):
                if entry.get("checkpoint") == checkpoint and ("batch" in entry or "batches" in entry):
                    return dict(entry)
        return None

    def _lag_elsewhere(self, source: Mapping[str, Any]) -> int | None:
        """Behind a table of another pipeline, or of nobody's."""
        path = Path(source["identity"].get("path", ""))
        if path not in self._elsewhere:
            self._elsewhere[path] = _load(path) if (path / "_delta_log").is_dir() else "not there"
        tail = self._elsewhere[path]
        if isinstance(tail, str) or tail.table_id != source["identity"].get("table_id"):
            return None
        return tail.rows_since(int(source["until"]["reservoirVersion"]), foreign=True)

    def _waiting_files(
        self, name: TableName, flow: str, words: Mapping[str, Any] | None
    ) -> list[FoundFile] | None:
        """The files that a flow has not read yet; ``None`` where it reads none, or nobody can tell."""
        read_from = () if words is None else words["sources"]
        sources = [one for one in read_from if one["kind"] == "files"]
        newest = generations(self._storage.flow_checkpoints(name, flow))
        if not sources or not newest:
            return None
        waiting = []
        try:
            folders = {one.index: folder_of(one) for one in load_identity(newest[-1]).sources}
            for source in sources:
                folder = FileFolder.of_identity(source["identity"])
                seen = load_seen(newest[-1], folders[source["index"]])
                until = source["until"]["logOffset"]
                read = {local_path(uri) for uri, entry in seen.items() if entry <= until}
                if folder.is_sinks:
                    return None
                waiting += [file for file in folder.files() if file.path not in read]
        except (HeadraceError, OSError, KeyError):
            return None
        return waiting

    def _lag(self, words: Mapping[str, Any], waiting: Sequence[FoundFile] | None) -> int | None:
        others = [source for source in words["sources"] if source["kind"] != "files"]
        lags = [self._lag_of(source) for source in others]
        if len(others) < len(words["sources"]):
            lags.append(None if waiting is None else len(waiting))
        known = [lag for lag in lags if lag is not None]
        return sum(known) if known and len(known) == len(lags) else None

    def _lag_of(self, source: Mapping[str, Any]) -> int | None:
        if source["kind"] == "kafka":
            topics = source["until"]
            if self._latest is None or any(topic not in self._latest for topic in topics):
                return None
            assigned = source["identity"].get("partitions", {})
            return sum(
                max(0, end - int(topics[topic].get(str(partition), 0)))
                for topic in topics
                for partition, end in self._latest[topic].items()
                if partition in assigned.get(topic, self._latest[topic])
            )
        if source["kind"] == "delta":
            table_id = source["identity"].get("table_id")
            for tail in self._tails.values():
                if isinstance(tail, RecentCommits) and tail.table_id == table_id:
                    return tail.rows_since(int(source["until"]["reservoirVersion"]))
            return self._lag_elsewhere(source)
        return None


def _load(path: Path) -> RecentCommits | str:
    try:
        return load_tail(path)
    except (OSError, ValueError) as error:
        return str(error)


def _flows(tail: RecentCommits) -> list[tuple[str, str]]:
    return sorted(
        (key.removeprefix(_CHECKPOINT), value)
        for key, value in tail.properties.items()
        if key.startswith(_CHECKPOINT) and value
    )


def _state(driver: Driver | None, trouble: LastFailure | None, batch: int | None) -> FlowState:
    if driver is not None:
        return "retrying" if trouble is not None and not trouble.final else "running"
    if trouble is not None and trouble.final:
        return "failed"
    return "new" if batch is None else "stopped"


def _last(words: Mapping[str, Any]) -> int:
    return int(words["batches"][1] if "batches" in words else words["batch"])


def _version(words: Mapping[str, Any]) -> int | None:
    version = words.get("version")
    return version[1] if isinstance(version, Sequence) else version


def _planned(checkpoints: Path) -> int | None:
    """The last batch that Spark has planned with the newest checkpoint."""
    try:
        newest = max((path for path in checkpoints.iterdir() if path.name.isdigit()), default=None)
        if newest is None:
            return None
        return max((int(p.name) for p in (newest / "offsets").iterdir() if p.name.isdigit()), default=None)
    except OSError:
        return None


def _topics(words: Mapping[str, Any] | None) -> set[str]:
    sources = () if words is None else words["sources"]
    return {topic for source in sources if source["kind"] == "kafka" for topic in source["until"]}


def _ask(
    connection: KafkaConnection, topics: set[str]
) -> tuple[Mapping[str, Mapping[int, int]] | None, str | None]:
    """The ends of all topics, or why they cannot be known.

    Raises:
        HeadraceError: The cluster turns this client away.
    """
    if not topics:
        return {}, None
    if connection.is_embedded:
        return None, "the embedded broker is not running; `headrace broker start` starts it"
    try:
        return KafkaCluster(connection, _ANSWER_S).latest(sorted(topics)), None
    except (BrokerUnreachableError, TopicNotFoundError) as error:
        return None, error.summary
