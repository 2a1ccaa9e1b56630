"""Sinks: rows that flows send to another Delta table, to Kafka, or to a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.errors import HeadraceError
from headrace.model.events import BatchCommitted, FlowFailed, FlowRetrying
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.sinks.delta import append
from headrace.testing import run
from landing import Site
from proof.shop import BRONZE, Shop
from waiting import DEADLINE_S, until

PIPELINE = """
import headrace as hr

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

hr.create_sink("copy", "delta", {"path": "ROOT/copy"})
hr.create_sink("topic", "kafka", {"topic": "TOPIC", "guarantee": "at_least_once"})

@hr.foreach_batch_sink()
def called(df, batch_id):
    with open("ROOT/called", "a") as file:
        file.write(f"{batch_id} {sorted(row.id for row in df.collect())}\\n")

@hr.append_flow(target="copy")
def to_copy():
    return hr.read_table_stream("visits")

@hr.append_flow(target="topic")
def to_topic():
    headers = "array(named_struct('key', 'page', 'value', CAST(page AS BINARY))) AS headers"
    value = "to_json(struct(id, page)) AS value"
    return hr.read_table_stream("visits").selectExpr("CAST(id AS STRING) AS key", value, headers)

@hr.append_flow(target="called")
def to_called():
    return hr.read_table_stream("visits")
"""


NAMES = """
import json

import headrace as hr
from delta.tables import DeltaTable
from headrace import spark

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.foreach_batch_sink()
def merged(df, batch_id):
    df.createOrReplaceTempView("updates")
    spark.sql(
        "MERGE INTO project.shop.pages USING updates ON pages.id = updates.id "
        "WHEN MATCHED THEN UPDATE SET page = updates.page "
        "WHEN NOT MATCHED THEN INSERT (id, page) VALUES (id, page)"
    )
    old = "(SELECT * FROM project.shop.pages WITH ('versionAsOf' = '0'))"
    df.sparkSession.sql(
        f"MERGE INTO main.DATABASE.kept k USING {old} p ON k.id = p.id WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql("INSERT INTO project.shop.log SELECT id FROM updates")
    df.select("id").write.mode("append").saveAsTable("project.shop.log")
    df.select("id").write.insertInto("project.shop.log")
    df.select("id").writeTo("project.shop.log").append()
    df.select("id").writeTo("project.shop.batches").using("delta").createOrReplace()
    seen = {
        "own": spark.table("main.DATABASE.visits").count(),
        "pages": DeltaTable.forName(spark, "project.shop.pages").toDF().count(),
        "kept": DeltaTable.forName(spark, "main.DATABASE.kept").toDF().count(),
        "exist": [spark.catalog.tableExists(f"project.shop.{name}") for name in ("pages", "none")],
    }
    for write in (
        lambda: df.write.saveAsTable("audit"),
        lambda: df.writeTo("audit").create(),
        lambda: df.mergeInto("project.shop.pages", df.id == 1),
    ):
        try:
            write()
        except Exception as error:
            seen.setdefault("refused", []).append(error.code)
    with open("ROOT/seen", "a") as file:
        file.write(json.dumps(seen) + "\\n")

@hr.append_flow(target="merged")
def to_merged():
    return hr.read_table_stream("visits").select("id", "page")
"""


def test_the_function_of_a_sink_finds_tables_by_their_names(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    site.write_spec(catalog="main", tables={"project.shop.*": str(tmp_path / "shop")})
    site.write(NAMES.replace("ROOT", str(tmp_path)).replace("DATABASE", site.database))
    kept = site.storage.table(site.name("kept"))
    pages = pa.table({"id": [1], "page": ["old"]})
    for path, rows in ((tmp_path / "shop/pages", pages), (tmp_path / "shop/log", pages.select(["id"]))):
        deltalake.write_deltalake(path, rows)
    deltalake.write_deltalake(kept, pages.slice(0, 0))
    site.put("a.json", {"id": 1, "page": "new"}, {"id": 2, "page": "q"})
    site.run_well()

    def held(path: Path) -> list[tuple[Any, ...]]:
        return sorted(
            tuple(row.values()) for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
        )

    assert held(tmp_path / "shop/pages") == [(1, "new"), (2, "q")]
    assert held(kept) == [(1, "old")]
    assert held(tmp_path / "shop/log") == [(1,)] * 5 + [(2,)] * 4
    assert held(tmp_path / "shop/batches") == [(1,), (2,)]
    seen = json.loads((tmp_path / "seen").read_text())
    # A new table would end with the process.
    refused = ["TABLE_NOT_FOUND", "TABLE_NOT_FOUND", "FEATURE_UNSUPPORTED"]
    assert seen == {"own": 2, "pages": 2, "kept": 1, "exist": [True, False], "refused": refused}


def records(bootstrap: str, topic: str, number: int) -> list[tuple[Any, ...]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(number, timeout=DEADLINE_S)
    consumer.close()
    return [(one.key(), json.loads(one.value()), one.headers()) for one in found]


def test_a_test_gets_the_rows_of_sinks(tmp_path: Path, spark: object) -> None:
    site = Site(tmp_path / "site")
    site.write(PIPELINE.replace("ROOT", str(tmp_path)).replace("TOPIC", "nowhere"))
    tables = run(site.root, {"landing": [[{"id": 1, "page": "p"}], [{"id": 2, "page": "q"}]]})
    assert sorted(row["id"] for row in tables["copy"]) == [1, 2]
    assert sorted(row["key"] for row in tables["topic"]) == ["1", "2"]
    assert [row["id"] for row in tables["called"]] and not (tmp_path / "called").exists()


def test_a_topic_that_is_missing_is_refused_by_the_plan_and_by_the_run(
    tmp_path: Path, spark: object, bootstrap: str, topic: Callable[..., str]
) -> None:
    name, site = topic(), Site(tmp_path / "site")
    site.write_spec(kafka={"bootstrap.servers": bootstrap})
    site.write(PIPELINE.replace("ROOT", str(tmp_path)).replace("TOPIC", f"{name}s"))
    site.put("a.json", {"id": 1, "page": "p"})
    with Pipeline.load(site.root) as pipeline:
        planned = pipeline.plan().refusals
        ran = pipeline.run().errors
    for errors in (planned, ran):
        (error,) = errors
        assert error.code == "TOPIC_NOT_FOUND" and error.facts[0].endswith(".topic")
        assert f"did you mean `{name}`?" in error.remedies[0]
    assert (tmp_path / "called").read_text() == "0 [1]\n", "the other sinks have their rows"


DELETED = """
quick = {f"kafka.{one}.ms": "2000" for one in ("max.block", "request.timeout")}
quick["kafka.delivery.timeout.ms"] = "3000"
hr.create_sink("alerts", "kafka", {"topic": "TOPIC", **quick})

@hr.append_flow(target="alerts")
def to_alerts():
    return spark.readStream.table("bronze").selectExpr("CAST(offset AS STRING) AS value")
"""


def test_a_topic_that_is_deleted_while_rows_are_sent_to_it_ends_the_flow(
    make_shop: Callable[..., Shop], bootstrap: str, topic: Callable[..., str]
) -> None:
    name, shop = topic(), make_shop(partitions=1)
    shop.write(BRONZE, DELETED.replace("TOPIC", name))
    shop.produce(5)

    def happened(kind: type[BatchCommitted] | type[FlowFailed]) -> list[Any]:
        return [one for one in shop.events if isinstance(one, kind) and one.flow == "to_alerts"]

    with shop.running():
        until(lambda: happened(BatchCommitted), "the rows are sent", 60)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([name])[name].result(DEADLINE_S)
        shop.produce(5)
        until(lambda: happened(FlowFailed), "the flow ends", 60)
    assert happened(FlowFailed)[0].error["code"] == "TOPIC_NOT_FOUND"
    assert shop.happened(FlowRetrying), "the first attempt has met the missing topic"


def test_sinks_get_the_rows_of_each_batch(
    tmp_path: Path, spark: object, bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, site = topic(), Site(tmp_path / "site")
    site.write_spec(kafka={"bootstrap.servers": bootstrap})
    code = PIPELINE.replace("ROOT", str(tmp_path)).replace("TOPIC", name)
    site.write(code)
    site.put("a.json", {"id": 1, "page": "p"})
    with Pipeline.load(site.root) as pipeline:
        text = Explanation(pipeline.plan()).to_text(500)
    assert f"sends to the Kafka topic {name}: at least once" in text
    assert "copy: exactly once" in text and "calls called with each batch: at least once" in text
    site.run_well()
    assert (tmp_path / "called").read_text() == "0 [1]\n"
    assert records(bootstrap, name, 1) == [(b"1", {"id": 1, "page": "p"}, [("page", b"p")])]

    def crash(self: Any, ranges: object = None) -> None:
        self._send(self._rows, self._stamp)
        raise RuntimeError("a crash between the rows and the record of the batch")

    site.put("b.json", {"id": 2, "page": "q"})
    with monkeypatch.context() as patch:
        patch.setattr(append._Sender, "commit", crash)
        with Pipeline.load(site.root) as pipeline:
            assert len(pipeline.run().errors) == 3
    site.run_well()
    copied = deltalake.DeltaTable(tmp_path / "copy").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["page"]) for row in copied) == [(1, "p"), (2, "q")]
    assert (tmp_path / "called").read_text() == "0 [1]\n1 [2]\n1 [2]\n"
    assert [key for key, _, _ in records(bootstrap, name, 3)] == [b"1", b"2", b"2"]
    assert site.verify().proven
    site.write(f'{code}\n@hr.table\ndef wrong():\n    return hr.read_table_stream("copy")\n')
    with Pipeline.load(site.root) as pipeline, pytest.raises(HeadraceError) as caught:
        pipeline.plan()
    assert caught.value.code == "SINK_INVALID"
