"""The sources that the suite runs over. A new kind needs a harness and one line in `HARNESSES`."""

from __future__ import annotations

import json
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from disk import Disk
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.model.remedies import Remedies
from headrace.plan.sources import evaluate_ranges
from headrace.project.pipeline import Pipeline
from headrace.run.schedule import RunResult
from headrace.runtime.broker import Broker, admin_client
from headrace.sources.registry import range_of
from headrace.storage.layout import locate
from kinesis_server import KinesisServer
from proof.ledger import TIMEOUT_S, ProducerLedger, create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = """
import headrace as hr
from headrace import spark
from pathlib import Path
from pyspark.sql import functions as F

FAILS = Path({fails!r})

{prelude}
@hr.table
def events():
    records = {read}
    broken = F.raise_error("a test broke the query").cast("long")
    return records.withColumn("id", broken) if FAILS.exists() else records
"""

TWICE = """
@hr.table
def both():
    return {read}.select("id").union({read}.select("id"))
"""


class Harness(ABC):
    """One source under test, and a pipeline that reads it into the table ``events``.

    Args:
        root: The pipeline's folder.
        broker: The session's broker.
        streams: A server of Kinesis.
        spark: The session of all tests.
    """

    read: str
    """The read of the source in the pipeline's code."""

    prelude: ClassVar[str] = ""
    """Code before the tables."""

    waiting: ClassVar[int | None]
    """The lag with two records unread; ``None`` where it is not known."""

    drained: ClassVar[int | None] = 0
    """The lag with no record unread; ``None`` where it is not known."""

    grades: ClassVar[Mapping[str, str]]
    """What `verify` says of the flow, by grade."""

    resumes: ClassVar[bool] = True
    """Whether a new checkpoint can start at a position of the old one."""

    reads_on_after_replay: ClassVar[bool] = True
    """Whether the run that replays a batch also reads the records after that batch."""

    rereads: ClassVar[bool] = False
    """Whether a range can be read again as a batch."""

    compares_reads: ClassVar[bool] = True
    """Whether two reads of the same source are noticed."""

    shares_reads: ClassVar[bool] = False
    """Whether two equal reads are one."""

    first_batch: ClassVar[int] = 0
    """The number of the first batch with records; 1 where the checkpoint of a new flow has its start."""

    missing: ClassVar[str]
    """The code of the error for a source that does not exist."""

    def __init__(self, root: Path, broker: Broker, streams: KinesisServer, spark: SparkSession) -> None:
        self.root = root
        self.streams = streams
        self.spark = spark
        self.broker = broker
        # The session's catalog and the broker are shared, so each pipeline has names of its own.
        self.name = f"source_{uuid.uuid4().hex[:8]}"
        self.make()
        spec = {
            "name": "shop",
            "storage": "./lake",
            "database": self.name,
            "kafka": {"bootstrap.servers": broker.start()},
            "kinesis": streams.settings,
            "libraries": [{"file": "events.py"}],
        }
        (root / "headrace.yml").write_text(json.dumps(spec))
        self.write_code()

    # -- the source

    @abstractmethod
    def make(self) -> None:
        """Make the empty source."""

    @abstractmethod
    def append(self, *ids: int) -> None:
        """Add records."""

    def remove_read(self) -> None:  # noqa: B027
        """Remove the records that were read already, where a source's data can be removed."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the source."""

    # -- the pipeline

    @property
    def fails(self) -> Path:
        """While this file exists, the query fails on every record."""
        return self.root / "fails"

    def write_code(self, more: str = "") -> None:
        read = self.read.replace("{name}", self.name).replace("{root}", str(self.root))
        code = CODE + more
        code = code.replace("{prelude}", self.prelude).replace("{fails!r}", repr(str(self.fails)))
        (self.root / "events.py").write_text(code.replace("{read}", read))

    def run(self, *datasets: str, **remedies: Any) -> RunResult:
        with Pipeline.load(self.root) as pipeline:
            return pipeline.run(datasets, remedies=Remedies(**remedies))

    def run_well(self, **remedies: Any) -> None:
        result = self.run("events", **remedies)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]

    def error(self, **remedies: Any) -> HeadraceError:
        """Run, and return the one error that the run ends with."""
        try:
            (error,) = self.run("events", **remedies).errors
        except HeadraceError as raised:
            return raised
        assert isinstance(error, HeadraceError)
        return error

    def refusal(self) -> HeadraceError:
        """Plan, and return the one error that the plan finds."""
        try:
            with Pipeline.load(self.root) as pipeline:
                (error,) = pipeline.plan().refusals
        except HeadraceError as raised:
            return raised
        return error

    def lag(self) -> int | None:
        with Pipeline.load(self.root) as pipeline:
            (flow,) = (flow for dataset in pipeline.status().datasets for flow in dataset.flows)
        return flow.lag

    # -- what others see

    @cached_property
    def storage(self) -> Disk:
        return Disk(self.root / "lake")

    @property
    def table(self) -> Path:
        return self.storage.table(TableName(self.name, "events"))

    @property
    def checkpoint(self) -> Path:
        """The flow's newest checkpoint."""
        name = TableName(self.name, "events")
        return max(
            one for one in self.storage.flow_checkpoints(name, "events").iterdir() if one.name.isdigit()
        )

    def ids(self) -> list[int]:
        found: list[int] = deltalake.DeltaTable(self.table).to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return sorted(found)

    def batches(self) -> dict[int, Mapping[str, Any]]:
        """The metadata of each batch, from the table's log."""
        commits = deltalake.DeltaTable(self.table).history()
        metadata = [json.loads(commit["userMetadata"]) for commit in commits if "userMetadata" in commit]
        return {one["batch"]: one for one in reversed(metadata) if "input" in one}

    def read_again(self, batch: Mapping[str, Any]) -> list[int]:
        """The rows of the query over the ranges of a batch."""
        with Pipeline.load(self.root) as pipeline:
            plan = pipeline.plan(offline=True)
        ranges = [range_of(one) for one in batch["sources"]]
        with activate(ActivePipeline(plan.project, lambda: self.spark)):
            frame = evaluate_ranges(self.spark, plan.flows[0], plan, ranges, locate(self.checkpoint))
            return sorted(row.id for row in frame.select("id").collect())

    def version(self) -> int:
        return deltalake.DeltaTable(self.table).version()

    def run_after_replay(self) -> None:
        """Run until a batch is replayed and the records after it are read."""
        self.run_well()
        if not self.reads_on_after_replay:
            self.run_well()

    def verdicts(self) -> dict[str, str]:
        """What `verify` says of the flow, by grade."""
        with Pipeline.load(self.root) as pipeline:
            proof = pipeline.verify()
        assert proof.proven, json.dumps(proof.to_json(), indent=1, default=str)
        return {grade.grade: grade.verdict for one in proof.datasets for f in one.flows for grade in f.grades}

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.storage.root / "checkpoints")


class KafkaHarness(Harness):
    """A topic of two partitions."""

    read = 'hr.read_kafka("{name}", format="json", schema="id LONG")'
    waiting = 2
    grades: ClassVar = {"ranges": "proven", "counts": "proven", "records": "proven"}
    rereads = True
    missing = "TOPIC_NOT_FOUND"

    def make(self) -> None:
        self.sent = ProducerLedger(self.broker.start())
        create_topic(self.broker.start(), self.name, 2)

    def append(self, *ids: int) -> None:
        self.sent.produce_values(self.name, [(json.dumps({"id": one}).encode(), one % 2) for one in ids])

    def remove_read(self) -> None:
        read = {record.partition: record.offset + 1 for record in self.sent.records}
        admin = admin_client(self.broker.start())
        ends = [TopicPartition(self.name, partition, end) for partition, end in read.items()]
        for future in admin.delete_records(ends).values():
            future.result(TIMEOUT_S)

    def remove(self) -> None:
        admin = admin_client(self.broker.start())
        (future,) = admin.delete_topics([self.name]).values()
        future.result(TIMEOUT_S)


class KinesisHarness(Harness):
    """A stream of two shards."""

    waiting = 2
    grades: ClassVar = {"ranges": "proven", "counts": "proven", "records": "proven"}
    rereads = True
    first_batch = 1
    missing = "STREAM_NOT_FOUND"

    read = 'hr.read_kinesis("{name}", format="json", schema="id LONG")'

    def make(self) -> None:
        self.streams.create(self.name, 2)

    def append(self, *ids: int) -> None:
        self.streams.put(self.name, *((f"key-{one}", json.dumps({"id": one}).encode()) for one in ids))

    def remove_read(self) -> None:
        for shard in self.streams.stream(self.name).shards.values():
            shard.records.clear()

    def remove(self) -> None:
        self.streams.delete(self.name)


class DeltaHarness(Harness):
    """A Delta table that another program writes."""

    read = 'spark.readStream.format("delta").load("{root}/upstream")'
    waiting = None
    grades: ClassVar = {"ranges": "proven", "counts": "proven", "records": "unjudged"}
    rereads = True
    shares_reads = True
    missing = "TABLE_NOT_FOUND"

    @property
    def upstream(self) -> Path:
        return self.root / "upstream"

    def make(self) -> None:
        deltalake.write_deltalake(self.upstream, pa.table({"id": pa.array([], pa.int64())}))

    def append(self, *ids: int) -> None:
        deltalake.write_deltalake(self.upstream, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")

    def remove_read(self) -> None:
        deltalake.DeltaTable(self.upstream).delete()

    def remove(self) -> None:
        shutil.rmtree(self.upstream)


class FilesHarness(Harness):
    """A folder of JSON files, with one record in each file."""

    read = 'hr.read_files("landing", format="json", schema="id LONG")'
    waiting = 2
    grades: ClassVar = {"ranges": "proven", "counts": "proven", "records": "proven"}
    rereads = True
    missing = "FILES_NOT_FOUND"

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    def make(self) -> None:
        self.landing.mkdir()

    def append(self, *ids: int) -> None:
        for one in ids:
            staged = self.root / "staged"
            staged.write_text(json.dumps({"id": one}) + "\n")
            # Spark's log has such a name percent-encoded.
            staged.rename(self.landing / f"{one} %é.json")

    def remove_read(self) -> None:
        for file in self.landing.iterdir():
            file.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.landing)


class OtherHarness(Harness):
    """A stream of a Python data source that the pipeline registers: the lines of a file."""

    prelude = """
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

class Lines(InputPartition):
    def __init__(self, first, end):
        self.first, self.end = first, end

class Reader(DataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def lines(self):
        with open(self.path) as file:
            return file.read().split()

    def initialOffset(self):
        return {"next": 0}

    def latestOffset(self):
        return {"next": len(self.lines())}

    def partitions(self, start, end):
        return [Lines(start["next"], end["next"])]

    def read(self, partition):
        for line in self.lines()[partition.first:partition.end]:
            yield (int(line),)

class Source(DataSource):
    @classmethod
    def name(cls):
        return "lines"

    def schema(self):
        return "id LONG"

    def streamReader(self, schema):
        return Reader(self.options["file"])

spark.dataSource.register(Source)
"""
    read = 'spark.readStream.format("lines").option("file", "{root}/lines").load()'
    waiting = drained = None
    grades: ClassVar = {"ranges": "proven", "counts": "proven", "records": "unjudged"}
    resumes = False
    reads_on_after_replay = False
    compares_reads = False
    missing = "QUERY_FAILED"

    def make(self) -> None:
        (self.root / "lines").touch()

    def append(self, *ids: int) -> None:
        with (self.root / "lines").open("a") as file:
            file.writelines(f"{one}\n" for one in ids)

    def remove(self) -> None:
        self.read = 'spark.readStream.format("no_such_format").load()'
        self.write_code()


HARNESSES: dict[str, type[Harness]] = {
    "kafka": KafkaHarness,
    "kinesis": KinesisHarness,
    "delta": DeltaHarness,
    "files": FilesHarness,
    "other": OtherHarness,
}


@pytest.fixture(scope="module")
def make_source(
    tmp_path_factory: pytest.TempPathFactory,
    broker: Broker,
    kinesis_server: KinesisServer,
    spark: SparkSession,
) -> Callable[[str], Harness]:
    """Makes a new source of a kind, with a pipeline that reads it."""

    def make(kind: str) -> Harness:
        return HARNESSES[kind](tmp_path_factory.mktemp(kind), broker, kinesis_server, spark)

    return make


@pytest.fixture(params=HARNESSES)
def source(request: pytest.FixtureRequest, make_source: Callable[[str], Harness]) -> Harness:
    """A new source of every kind."""
    return make_source(request.param)
