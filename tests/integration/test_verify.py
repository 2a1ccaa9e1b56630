"""`verify` on what Spark, Delta and Kafka really wrote."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from headrace.errors import ArgumentInvalidError
from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.runtime.broker import Broker
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sources.registry import join_marks
from headrace.state.ledger import Ledger
from headrace.verify.report import DatasetProof, GradeReport, Proof

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """
name: proven
storage: ./lake
database: {database}
kafka: {{bootstrap.servers: "{bootstrap}"}}
libraries: [{{file: tables.py}}]
"""
CODE = """
import headrace as hr
from headrace import spark

@hr.table(table_properties={{"delta.enableDeletionVectors": "true"}})
def bronze():
    return hr.read_kafka("{topic}", max_offsets_per_trigger=150).select("value", "_source")

@hr.table
def silver():
    return spark.readStream.table("bronze").selectExpr("CAST(value AS STRING) AS value", "_source")

@hr.materialized_view
def gold():
    return spark.read.table("silver").groupBy("_source.partition").count()
"""
GROUPS = 6
_numbers = itertools.count(1)


@dataclass
class Proven:
    """A pipeline that has run, and copies of it to break."""

    root: Path
    topic: str
    bootstrap: str
    committed: int

    def copy(self, folder: Path) -> Proven:
        shutil.copytree(self.root, folder, dirs_exist_ok=True)
        return Proven(folder, self.topic, self.bootstrap, self.committed)

    def table(self, name: str = "bronze") -> Path:
        return Pipeline.load(self.root).settings.storage.table(TableName(self.topic, name)).local_path

    def verify(self, **settings: Any) -> Proof:
        return Pipeline.load(self.root).verify(**settings)

    def dataset(self, name: str = "bronze") -> DatasetProof:
        return next(one for one in self.verify().datasets if one.dataset.name == name)

    def records(self, name: str = "bronze") -> GradeReport:
        return self.dataset(name).flows[0].grades[2]


def produce(bootstrap: str, topic: str, first: int, count: int, transaction: str | None = None) -> None:
    """Produce records, each batch in a transaction of its own; ``abort`` is one that never happened."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": bootstrap}
    if transaction is not None:
        settings["transactional.id"] = f"{topic}-writer"
    producer = Producer(settings)
    if transaction is not None:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in range(first, first + count):
        producer.produce(topic, json.dumps({"id": number}).encode(), partition=number % 3)
    assert producer.flush(30) == 0
    if transaction == "commit":
        producer.commit_transaction(30)
    elif transaction == "abort":
        producer.abort_transaction(30)


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory, broker: Broker, bootstrap: str, spark: SparkSession
) -> Proven:
    """Several batches of plain, committed and aborted records, through two tables into a view."""
    topic = f"proven{next(_numbers)}"
    root = tmp_path_factory.mktemp(topic)
    broker.create_topic(topic, 3)
    (root / "headrace.yml").write_text(SPEC.format(bootstrap=bootstrap, database=topic))
    (root / "tables.py").write_text(CODE.format(topic=topic))
    committed = 0
    for number in range(GROUPS):
        transaction = (None, "commit", "abort")[number % 3]
        produce(bootstrap, topic, number * 90, 90, transaction)
        committed += 0 if transaction == "abort" else 90
        if number >= GROUPS - 2:
            assert Pipeline.load(root).run().outcome == "completed"
    return Proven(root, topic, bootstrap, committed)


@pytest.fixture
def proven(original: Proven, tmp_path: Path) -> Iterator[Proven]:
    """A copy that a test may break; copied files keep their age."""
    yield original.copy(tmp_path / "copy")


@pytest.fixture
def sql(spark: SparkSession, proven: Proven) -> Callable[[str], None]:
    """Another job's SQL on bronze: `{}` stands for the table."""

    def execute(statement: str) -> None:
        spark.sql(statement.format(f"delta.`{proven.table()}`")).collect()

    return execute


def test_every_record_of_committed_transactions_is_there_once(proven: Proven) -> None:
    proof = proven.verify(require="ranges")
    assert proof.exit_code == 0, proof.to_json()
    assert proven.records().text == (f"{proven.committed} read from Kafka = {proven.committed} in the table")
    assert proven.verify(datasets=["bronze", "silver"], require="records").exit_code == 0
    with pytest.raises(ArgumentInvalidError, match="record"):
        proven.verify(require="record")
    assert proven.records("silver").verdict == "proven"
    gold = proven.dataset("gold")
    assert gold.view is not None
    assert gold.view.fresh


def test_records_that_no_run_has_read_are_not_missed(proven: Proven) -> None:
    produce(proven.bootstrap, proven.topic, 10_000, 30)
    assert proven.records().verdict == "proven"


class TestOtherJobs:
    def test_an_erasure_by_spark(self, proven: Proven, sql: Callable[[str], None]) -> None:
        sql("DELETE FROM {} WHERE _source.offset = 7")
        dataset = proven.dataset()
        assert proven.verify().proven, proven.verify().to_json()
        assert proven.records().verdict == "proven"
        assert dataset.table.figures["removed"] == 3
        assert any(key[1] for key in _active(proven)), "Delta wrote no deletion vector"

    def test_only_a_declared_erasure_may_rewrite_rows(
        self, proven: Proven, sql: Callable[[str], None], spark: SparkSession
    ) -> None:
        key = "spark.databricks.delta.commitInfo.userMetadata"
        sql(f"SET {key}={json.dumps({'headrace_erasure': True}).replace('{', '{{').replace('}', '}}')}")
        try:
            sql("UPDATE {} SET value = NULL WHERE _source.offset = 7")
        finally:
            spark.conf.unset(key)
        sql(
            "MERGE INTO {} AS t USING (SELECT 8 AS offset) AS s ON t._source.offset = s.offset "
            "WHEN MATCHED THEN DELETE"
        )
        assert proven.verify().proven, proven.verify().to_json()
        assert proven.dataset().notes[0].endswith("declared as an erasure")
        sql("UPDATE {} SET value = NULL WHERE _source.offset = 9")
        assert [finding.code for finding in proven.verify().findings] == ["ROWS_REWRITTEN"]

    def test_compaction_by_spark(self, proven: Proven, sql: Callable[[str], None]) -> None:
        sql("OPTIMIZE {}")
        assert proven.verify().proven, proven.verify().to_json()
        assert proven.dataset().table.figures["removed"] == 0

    def test_a_foreign_append_by_spark(self, proven: Proven, sql: Callable[[str], None]) -> None:
        sql("INSERT INTO {} SELECT value, NULL FROM {0} LIMIT 5".replace("{}", "{0}"))
        dataset = proven.dataset()
        assert proven.verify().proven, proven.verify().to_json()
        assert dataset.table.figures["foreign"] == 5
        assert "(not by this pipeline)" in dataset.notes[0]


def forget_log(spark: SparkSession, table: Path) -> None:
    """What Delta's own clean-up leaves after months: a checkpoint and the newest commit."""
    jvm: Any = spark.sparkContext._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(table))
    none = jvm.scala.Option.empty()
    log.checkpointAndCleanUpDeltaLog(log.update(False, none, none), none)
    for version in sorted((table / "_delta_log").glob("*[0-9].json"))[:-1]:
        version.unlink()


def test_the_ledger_after_log_cleanup(proven: Proven, spark: SparkSession) -> None:
    forget_log(spark, proven.table())
    proof = proven.verify()
    assert proof.proven, proof.to_json()
    flow = proven.dataset().flows[0]
    ranges = flow.grades[0]
    assert "from the ledger only" in ranges.text
    assert flow.batch is not None
    assert ranges.figures["commits"] == flow.batch + 1 > 3
    assert ranges.verdict == "proven"


def test_an_erasure_that_the_log_has_forgotten(
    proven: Proven, spark: SparkSession, sql: Callable[[str], None]
) -> None:
    """The ledger remembers how many rows others removed; which they were, only the log could tell."""
    sql("DELETE FROM {} WHERE _source.offset = 7")
    with Pipeline.load(proven.root) as pipeline:
        storage, name = pipeline.settings.storage, TableName(proven.topic, "bronze")
        Ledger(storage.ledger(name, "bronze"), name, "bronze").fold(
            DeltaCommits(storage.table(name)), _table_id(proven.table()), join_marks
        )
    sql("OPTIMIZE {}")
    forget_log(spark, proven.table())
    dataset = proven.dataset()
    assert dataset.table.verdict == "proven", proven.verify().to_json()
    assert "removed 3 rows, by the ledger" in dataset.notes[0]
    assert proven.records().verdict == "partial"
    assert "3 records missing, and other writers removed 3 rows" in proven.records().reasons[0]
    assert proven.verify(datasets=["bronze"]).exit_code == 0
    sql("DELETE FROM {} WHERE _source.offset = 8")
    sql("ALTER TABLE {} SET TBLPROPERTIES ('anything' = 'newer')")
    forget_log(spark, proven.table())
    report = proven.dataset().table
    assert report.verdict == "partial", "what went unseen by the ledger cannot be judged"
    assert "cannot be counted: their commits are gone" in report.reasons[0]


def _table_id(table: Path) -> str:
    return str(deltalake.DeltaTable(table).metadata().id)


def test_a_parquet_file_replaced_without_a_commit(proven: Proven) -> None:
    """One row removed, another doubled: the rows agree, and neither size nor age would have to tell."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = max(proven.table().glob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    rows = pq.read_table(path)
    gone, doubled = (rows.column("_source")[index].as_py() for index in (5, 6))
    pq.write_table(pa.concat_tables([rows.slice(0, 5), rows.slice(6, 1), rows.slice(6)]), path)
    found = {
        finding.code: (finding.place["partition"], finding.place["ranges"])
        for finding in proven.records().findings
    }
    assert found == {
        "RECORDS_MISSING": (gone["partition"], [[gone["offset"], gone["offset"] + 1]]),
        "RECORDS_TWICE": (doubled["partition"], [[doubled["offset"], doubled["offset"] + 1]]),
    }
    assert proven.verify().exit_code == 1


def test_tables_that_were_removed_or_replaced(proven: Proven, sql: Callable[[str], None]) -> None:
    shutil.rmtree(proven.table("gold"))
    shutil.rmtree(proven.table("silver") / "_delta_log")
    shutil.rmtree(proven.table())
    sql("CREATE TABLE {} USING delta AS SELECT 1 AS id")
    found = {str(one.dataset): [f.code for f in one.findings] for one in proven.verify().datasets}
    codes = {"bronze": "TABLE_REPLACED", "silver": "TABLE_MISSING", "gold": "TABLE_MISSING"}
    assert found == {f"{proven.topic}.{name}": [code] for name, code in codes.items()}


def test_a_table_that_was_rolled_back(proven: Proven) -> None:
    newest = max((proven.table() / "_delta_log").glob("*.json"))
    newest.unlink()
    newest.with_suffix(".crc").unlink()
    codes = {finding.code for finding in proven.verify().findings}
    assert {"TABLE_BEHIND_CHECKPOINT", "LEDGER_DIFFERS"} <= codes


def test_records_that_the_broker_has_expired_lower_the_grade(proven: Proven) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": proven.bootstrap})
    for future in admin.delete_records([TopicPartition(proven.topic, 1, 40)]).values():
        future.result(30)
    report = proven.records()
    assert report.verdict == "partial"
    assert f"{proven.topic}/1 (before offset 40)" in report.reasons[0]
    assert proven.verify().exit_code == 0
    assert proven.verify(datasets=["bronze"], require="records").exit_code == 3


def test_several_spans_of_a_partition_are_read_from_the_broker(proven: Proven) -> None:
    from headrace.model.kafka_settings import KafkaConnection
    from headrace.verify.kafka.offsets import load_offsets, load_topics
    from headrace.verify.source_range import Spans

    connection = KafkaConnection({"bootstrap.servers": proven.bootstrap})
    topic = load_topics(connection, [proven.topic], 5.0)[proven.topic]
    assert topic is not None
    asked = {
        (proven.topic, part): Spans.of(
            [(low, low + 3), (low + 30, low + 33), (topic.high[part] - 3, topic.high[part])]
        )
        for part, low in topic.low.items()
    }
    found = load_offsets(connection, asked, stall_s=5.0)
    for (_, part), spans in found.spans.items():
        assert 3 <= spans.total <= 9
        assert spans.pairs()[0][0] < topic.low[part] + 30 < topic.high[part] - 3 <= spans.pairs()[-1][1]


def test_a_topic_that_was_created_again(proven: Proven, broker: Broker) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": proven.bootstrap})
    admin.delete_topics([proven.topic])[proven.topic].result(30)
    assert "no longer has the topic" in proven.records().reasons[0]
    broker.create_topic(proven.topic, 3)
    report = proven.records()
    assert report.verdict == "unjudged"
    assert "was deleted" in report.reasons[0]
    assert proven.verify().exit_code == 0


def _active(proven: Proven) -> list[tuple[str, str]]:
    from headrace.verify.delta_log import load_table_log
    from headrace.verify.stored import StoredPath

    return list(load_table_log(StoredPath.at(str(proven.table()))).active())
