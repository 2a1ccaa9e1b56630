"""A storage written by hand, and a broker that holds what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs as fs
import pytest
from deltalake import DeltaTable
from lake import Lake

from headrace.errors import BrokerUnreachableError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.ranges import RecordMark
from headrace.storage.layout import Storage
from headrace.verify.kafka import offsets
from headrace.verify.kafka.offsets import HeldOffsets, KafkaAccess, Topic
from headrace.verify.proof import verify_pipeline
from headrace.verify.report import DatasetProof, GradeReport, Proof
from headrace.verify.source_range import Partition, Spans
from headrace.verify.stored import LOCAL, LocalDisks, StoredPath


@dataclass
class HeldTopic:
    """A topic of the broker: the offsets that hold a committed record."""

    id: str = "topic-1"
    offsets: dict[int, set[int]] = field(default_factory=dict)
    low: dict[int, int] = field(default_factory=dict)
    high: dict[int, int] = field(default_factory=dict)
    compacted: bool | None = False
    marks: Mapping[tuple[int, int], RecordMark] = field(default_factory=dict)


class HandBroker:
    """Stands for the broker: what it holds, and what it was asked."""

    def __init__(self) -> None:
        self.topics: dict[str, HeldTopic] = {}
        self.asked: dict[Partition, Spans] = {}
        self.silent = True
        self.connections: dict[str, KafkaConnection] = {}

    def holds(
        self,
        offsets: Mapping[int, Iterable[int]],
        *,
        topic: str = "sales",
        low: Mapping[int, int] | None = None,
        high: Mapping[int, int] | None = None,
        **settings: Any,
    ) -> None:
        self.silent = False
        held = {partition: set(some) for partition, some in offsets.items()}
        ends = {partition: max(some, default=-1) + 1 for partition, some in held.items()}
        starts = dict.fromkeys(held, 0) | dict(low or {})
        self.topics[topic] = HeldTopic(offsets=held, low=starts, high=ends | dict(high or {}), **settings)

    def load_topics(
        self, connection: KafkaConnection, names: Iterable[str], timeout_s: float, explain: object
    ) -> dict[str, Topic | None]:
        self.connections[connection.bootstrap_servers] = connection
        if self.silent:
            raise BrokerUnreachableError("no Kafka broker answers at nowhere")
        return {
            name: None
            if (held := self.topics.get(name)) is None
            else Topic(held.id, held.low, held.high, held.compacted)
            for name in names
        }

    def load_offsets(
        self,
        connection: KafkaConnection,
        asked: Mapping[Partition, Spans],
        stall_s: float,
        explain: object,
        *,
        watched: Mapping[Partition, Set[int]],
        take: object = None,
    ) -> HeldOffsets:
        self.asked = dict(asked)
        found = {}
        marks: dict[Partition, dict[int, RecordMark]] = {}
        for (topic, partition), spans in asked.items():
            wanted = {offset for low, high in spans.pairs() for offset in range(low, high)}
            held = sorted(wanted & self.topics[topic].offsets[partition])
            found[topic, partition] = Spans.of_offsets(np.array(held, dtype=np.int64))
            now = self.topics[topic].marks
            marks[topic, partition] = {
                offset: now.get((partition, offset), RecordMark(0))
                for offset in held
                if offset in watched.get((topic, partition), ())
            }
        return HeldOffsets(found, marks)


At = Callable[[Path], StoredPath]


@pytest.fixture(params=["file", "memory"])
def at(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> At:
    """Finds what a test has written: on the disk, and in a storage without folders, to which it is copied."""

    class Copied(LocalDisks):
        def __init__(self) -> None:
            self._memory = fs._MockFileSystem(datetime.fromtimestamp(0, UTC))
            self._memory.create_dir(str(tmp_path))
            fs.copy_files(str(tmp_path), str(tmp_path), fs.LocalFileSystem(), self._memory)

        def files(self, host: str) -> fs.FileSystem:
            return self._memory

    def open_original(path: StoredPath, version: int | None = None) -> DeltaTable:
        # `deltalake` cannot read what `pyarrow` holds in memory.
        return DeltaTable(path.path, version=version)

    if request.param == "memory":
        monkeypatch.setattr(StoredPath, "open_table", open_original)
        return lambda path: StoredPath.at(f"memory://{path}", {**LOCAL, "memory": Copied()})
    return lambda path: StoredPath.at(f"file://{path}")


@pytest.fixture
def lake(tmp_path: Path, at: At) -> Lake:
    lake = Lake(tmp_path / "lake")
    root = replace(lake.settings.storage.root, path=f"{at(tmp_path).scheme}://{tmp_path}/lake")
    lake.settings = replace(lake.settings, storage=Storage(root))
    lake.systems = lambda: at(tmp_path).systems
    return lake


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> HandBroker:
    broker = HandBroker()
    monkeypatch.setattr(offsets, "load_topics", broker.load_topics)
    monkeypatch.setattr(offsets, "load_offsets", broker.load_offsets)
    return broker


class Verifier:
    """Runs `verify`, and finds what a test asks about."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def __call__(self, others: Sequence[KafkaConnection] = (), **settings: Any) -> Proof:
        kafka = KafkaAccess(own=self.lake.nowhere, others=others)
        return verify_pipeline(
            self.lake.settings, access={"kafka": kafka}, systems=self.lake.systems(), **settings
        )

    def dataset(self, name: str = "bronze", **settings: Any) -> DatasetProof:
        return next(one for one in self(**settings).datasets if one.dataset.name == name)

    def grade(self, grade: str, name: str = "bronze", **settings: Any) -> GradeReport:
        (flow,) = self.dataset(name, **settings).flows
        return next(report for report in flow.grades if report.grade == grade)

    def codes(self, grade: str, name: str = "bronze") -> list[str]:
        return [finding.code for finding in self.grade(grade, name).findings]


@pytest.fixture
def verify(lake: Lake, broker: HandBroker) -> Verifier:
    return Verifier(lake)
