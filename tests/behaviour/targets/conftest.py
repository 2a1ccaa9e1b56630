"""The targets that the suite runs over. A new one needs a harness and one line in `HARNESSES`."""

from __future__ import annotations

import itertools
import json
import uuid
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from headrace.contracts.changes import ChangeColumns, as_changes
from headrace.model.counts import BatchCounts
from headrace.model.declarations import ExpectationCount
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.runtime.broker import Broker
from headrace.sinks.delta.append import AppendTarget
from headrace.sinks.delta.folding import SharedTable
from headrace.sinks.delta.merge import MergeTarget
from headrace.sinks.delta.replace import ReplaceTarget
from headrace.sinks.delta.table import read_state
from headrace.sinks.delta.tombstones import Tombstones
from headrace.sinks.outside.kafka.sink import KafkaSink
from headrace.sinks.outside.postgres.sink import PostgresSink
from headrace.sinks.outside.stateful import StatefulSink
from headrace.sinks.target import (
    BatchStamp,
    BatchWriter,
    Committed,
    FlowTarget,
    Followed,
    OpenedGeneration,
    RefreshStamp,
    SinkSpec,
    SplitRows,
    Target,
    TargetState,
)
from headrace.sources.kafka.position import KafkaOffsets
from headrace.state.facts import Open
from headrace.storage.layout import locate
from postgres_server import Database
from sqlite_sink import SqliteSink
from topic_reader import read_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = "headrace-ours"

Row = tuple[int, str]


def failing(rows: int, failed: int) -> ExpectationCount:
    """The count of an expectation that some rows fail."""
    return ExpectationCount(
        name="has an id", dataset="orders", action="quarantine", passed=rows - failed, failed=failed
    )


class Harness(ABC):
    """One target under test, and the eyes of a reader who knows nothing of Headrace.

    Args:
        spark: The session of all tests.
        path: The folder of the target.
    """

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark = spark
        self.path = path

    @property
    @abstractmethod
    def target(self) -> Target[Any]:
        """The target."""

    @abstractmethod
    def stamp(self, batch: int) -> Any:
        """The identity of a batch."""

    @abstractmethod
    def visible(self, *batches: list[Row]) -> list[Row]:
        """The rows that a reader sees after these batches."""

    def begin(self, batch: int) -> BatchWriter | None:
        return self.target.begin(self.spark, self.stamp(batch))

    def write(self, batch: int, *rows: Row, quarantined: int = 0, dropped: int = 0) -> Committed | None:
        """Write and commit a batch; ``None`` if the target holds it already."""
        writer = self.begin(batch)
        if writer is None:
            return None
        with writer, self.split(*rows, quarantined=quarantined, dropped=dropped) as split:
            writer.write(split)
            return writer.commit()

    def split(self, *rows: Row, quarantined: int = 0, dropped: int = 0) -> SplitRows:
        def counts(accepted: int) -> BatchCounts:
            total = accepted + quarantined + dropped
            failed = (failing(total, quarantined),) if quarantined else ()
            return BatchCounts(
                input=total, accepted=accepted, quarantined=quarantined, dropped=dropped, expectations=failed
            )

        return SplitRows(accepted=self.frame(*rows), counts=counts)

    def frame(self, *rows: Row) -> DataFrame:
        return self.spark.createDataFrame(list(rows), "id BIGINT, name STRING")

    @property
    def rows(self) -> list[Row]:
        if not (self.path / "_delta_log").is_dir():
            return []
        # Other readers of deltalake refuse deletion vectors.
        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.path))
        found = table.execute("SELECT id, name FROM t").read_all()
        return sorted(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))

    @property
    def commits(self) -> int:
        return len(list((self.path / "_delta_log").glob("*.json")))

    def metadata(self, version: int) -> dict[str, Any]:
        """What the commit of a version says of its batch."""
        lines = (self.path / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
        (info,) = [one["commitInfo"] for one in map(json.loads, lines) if "commitInfo" in one]
        return dict(json.loads(info["userMetadata"]))


class FlowHarness(Harness, ABC):
    """A target that is fed batch by batch, by a flow with a checkpoint.

    Attributes:
        checkpoint: The id of the checkpoint that batches are written with.
    """

    checkpoint = CHECKPOINT
    keeps_rows = False  # whether a full refresh leaves the rows where they are

    @property
    @abstractmethod
    def target(self) -> FlowTarget: ...

    @property
    def state(self) -> TargetState:
        """What a survey reads of the target."""
        return read_state(self.spark, locate(self.path))

    def stamp(self, batch: int) -> BatchStamp:
        source = SourceRange(
            index=0,
            kind="kafka",
            identity={"topics": {"t": "id-1"}},
            start=KafkaOffsets({"t": {0: batch * 10}}),
            until=KafkaOffsets({"t": {0: batch * 10 + 10}}),
        )
        return BatchStamp(
            pipeline="shop", flow="sales", checkpoint=self.checkpoint, batch=batch, ranges=(source,)
        )

    def open(self, checkpoint: str, opening: Open, **more: Any) -> int:
        """Let a checkpoint feed the target."""
        opened = OpenedGeneration(
            pipeline="shop", flow="sales", checkpoint=checkpoint, generation=2, opening=opening, **more
        )
        return self.target.open_generation(opened)


class AppendHarness(FlowHarness):
    """Append to a Delta table, through Delta's own transaction."""

    reads_target = False

    def __init__(self, spark: SparkSession, path: Path) -> None:
        super().__init__(spark, path)
        name = _new_name()
        spark.sql(f"CREATE TABLE {name} (id BIGINT, name STRING) USING delta LOCATION '{path}'")

    @property
    def target(self) -> FlowTarget:
        return AppendTarget(spark=self.spark, path=locate(self.path), reads_target=self.reads_target)

    def visible(self, *batches: list[Row]) -> list[Row]:
        return sorted(itertools.chain(*batches))


FOLLOWED = Followed(columns=("id",), is_whole=True, has_preimages=False)


class SinkHarness(FlowHarness, ABC):
    """Append to a sink that keeps the state of its flows itself."""

    sink: StatefulSink

    @property
    def target(self) -> FlowTarget:
        return self.sink

    @property
    def state(self) -> TargetState:
        state = self.sink.state()
        assert state is not None
        return state

    def visible(self, *batches: list[Row]) -> list[Row]:
        return sorted(itertools.chain(*batches))


class SqliteHarness(SinkHarness):
    """Append to the sink of the example."""

    sink: SqliteSink

    def __init__(self, spark: SparkSession, path: Path) -> None:
        super().__init__(spark, path)
        schema = {"fields": [{"name": "id"}, {"name": "name"}]}
        spec = SinkSpec(name=TableName("default", "sink"), options={"path": str(path)}, schema=schema)
        self.sink = SqliteSink(replace(spec, follows=FOLLOWED))
        self.sink.create()

    def _select(self, statement: str) -> list[str]:
        with self.sink.connect() as database:
            return [text for (text,) in database.execute(statement)]

    @property
    def rows(self) -> list[Row]:
        found = map(json.loads, self._select("SELECT row FROM rows"))
        return sorted((row["id"], row["name"]) for row in found)

    @property
    def commits(self) -> int:
        return len(self._select("SELECT document FROM commits"))

    def metadata(self, version: int) -> dict[str, Any]:
        return dict(json.loads(self._select("SELECT document FROM commits ORDER BY version")[version]))


class PostgresHarness(SinkHarness):
    """Append to a table of PostgreSQL."""

    def __init__(self, spark: SparkSession, path: Path, database: Database) -> None:
        super().__init__(spark, path)
        columns = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
        given = {"url": database.url, "table": "copied", "create": "true"}
        spec = SinkSpec(name=TableName("default", "sink"), options=given, schema={"fields": columns})
        self.database, self.sink = database, PostgresSink(replace(spec, follows=FOLLOWED))
        self.sink.create()

    @property
    def rows(self) -> list[Row]:
        return sorted((key, name) for key, name in self.database.execute("SELECT id, name FROM copied"))

    @property
    def commits(self) -> int:
        return len(self.database.execute("SELECT 1 FROM headrace_batches"))

    def metadata(self, version: int) -> dict[str, Any]:
        asked = "SELECT document FROM headrace_batches WHERE version = %s"
        ((document,),) = self.database.execute(asked, version)
        return dict(document)


class KafkaHarness(SinkHarness):
    """Send to a Kafka topic, with the state in a topic beside it."""

    keeps_rows = True

    def __init__(self, spark: SparkSession, path: Path, broker: Broker) -> None:
        super().__init__(spark, path)
        self.bootstrap, self.topic = broker.start(), f"target-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic, 3, {})
        spec = SinkSpec(
            name=TableName("default", "sink"),
            options={"topic": self.topic, "format": "json"},
            schema={"fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]},
            connection={"kafka.bootstrap.servers": self.bootstrap},
        )
        self.sink = KafkaSink(replace(spec, follows=FOLLOWED))
        self.sink.create()

    @property
    def rows(self) -> list[Row]:
        found = (json.loads(one.value() or b"") for one in read_topic(self.bootstrap, self.topic))
        return sorted((row["id"], row["name"]) for row in found)

    @property
    def commits(self) -> int:
        return len(self.sink.documents(0, 1_000))

    def metadata(self, version: int) -> dict[str, Any]:
        (document,) = self.sink.documents(version, version)
        return dict(document)


class PublicAppendHarness(AppendHarness):
    """Append to a Delta table, through Delta's public writer."""

    reads_target = True


def _new_name() -> str:
    # This module can be imported under two names in one session.
    return f"target_{uuid.uuid4().hex}"


class MergeHarness(FlowHarness):
    """Apply changes to a Delta table by key; each target is another process."""

    index_memory = 0

    def __init__(self, spark: SparkSession, path: Path) -> None:
        super().__init__(spark, path)
        sequence = "STRUCT<value: BIGINT, partition: BIGINT, source: STRING, position: BIGINT>"
        columns = f"id BIGINT, name STRING, _sequence {sequence}"
        spark.sql(
            f"CREATE TABLE {_new_name()} ({columns}) USING delta LOCATION '{path}' "
            "TBLPROPERTIES (delta.enableDeletionVectors = true)"
        )

    @property
    def target(self) -> FlowTarget:
        return MergeTarget(
            spark=self.spark,
            path=locate(self.path),
            keys=("id",),
            tombstones=Tombstones(path=locate(self.path.with_name("deleted")), keys=("id",)),
            shared=SharedTable(),
            index_memory=self.index_memory,
        )

    def frame(self, *rows: Row) -> DataFrame:
        return as_changes(
            super().frame(*rows), ChangeColumns(keys=("id",), sequence_by="id", deletes="name = 'gone'")
        )

    def visible(self, *batches: list[Row]) -> list[Row]:
        return sorted(itertools.chain(*batches))


class IndexHarness(MergeHarness):
    """The same with an index of the keys."""

    index_memory = 1 << 30


class ReplaceHarness(Harness):
    """Replace the rows of a materialized view; a batch is a new version of its input."""

    @property
    def target(self) -> Target[RefreshStamp]:
        return ReplaceTarget(path=locate(self.path), quarantine=locate(self.path.with_name("rejected")))

    def stamp(self, batch: int) -> RefreshStamp:
        return RefreshStamp(
            pipeline="shop",
            view="default.gold",
            update="u1",
            definition="abc",
            inputs={"default.sales": {"table_id": "t1", "version": batch, "commit": f"mark-{batch}"}},
        )

    def visible(self, *batches: list[Row]) -> list[Row]:
        return sorted(batches[-1]) if batches else []


HARNESSES: dict[str, type[Harness]] = {
    "append": AppendHarness,
    "append, public writer": PublicAppendHarness,
    "merge": MergeHarness,
    "merge, by an index": IndexHarness,
    "replace": ReplaceHarness,
    "sink with a state": SqliteHarness,
    "PostgreSQL": PostgresHarness,
    "Kafka": KafkaHarness,
}


def _make(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Harness:
    kind: Any = HARNESSES[request.param]
    system = {PostgresHarness: "database", KafkaHarness: "broker"}.get(kind)
    more = [] if system is None else [request.getfixturevalue(system)]
    made: Harness = kind(spark, tmp_path / "table", *more)
    return made


@pytest.fixture(params=HARNESSES)
def harness(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Harness:
    """Every target."""
    return _make(request, spark, tmp_path)


@pytest.fixture(params=[name for name, one in HARNESSES.items() if issubclass(one, FlowHarness)])
def flow(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> FlowHarness:
    """Every target of flows with a checkpoint."""
    made = _make(request, spark, tmp_path)
    assert isinstance(made, FlowHarness)
    return made


@pytest.fixture(params=[name for name, one in HARNESSES.items() if issubclass(one, SinkHarness)])
def sink(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> SinkHarness:
    """Every sink that keeps the state of its flows itself."""
    made = _make(request, spark, tmp_path)
    assert isinstance(made, SinkHarness)
    return made


@pytest.fixture(params=["append", "append, public writer", "merge", "merge, by an index"])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> FlowHarness:
    """Every way in which flows with a checkpoint write a Delta table."""
    made = HARNESSES[request.param](spark, tmp_path / "table")
    assert isinstance(made, FlowHarness)
    return made
