"""`headrace ingest` without a broker: names, code and spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from stores import memory_location

from headrace.declare.spec_values import build_values
from headrace.errors import CommandLineError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import ProjectSettings
from headrace.observe.log import log_folder
from headrace.project.ingest_code import IngestedTopic, Mode, build_code, build_spec
from headrace.project.ingesting import (
    IngestFolder,
    IngestRequest,
    PreparedTopic,
    check_tables,
    table_name,
    typed_options,
)
from headrace.runtime.places import CACHE_VARIABLE
from headrace.storage.layout import Storage


@pytest.mark.parametrize(
    ("topic", "pattern", "name"),
    [
        ("shop.public.orders", "{topic}", "shop_public_orders"),
        ("orders-v2", "raw_{topic}", "raw_orders_v2"),
        ("orders", "bronze.{topic}", "bronze.orders"),
        ("orders", "sales", "sales"),
    ],
)
def test_a_table_is_named_from_its_topic(topic: str, pattern: str, name: str) -> None:
    assert table_name(topic, pattern) == name


def test_two_topics_cannot_have_one_table() -> None:
    topics = [IngestedTopic(topic=topic, table=table_name(topic, "{topic}")) for topic in ("a.b", "a-b")]
    with pytest.raises(CommandLineError, match="same table"):
        check_tables(topics)


@pytest.mark.parametrize("mode", ["append", "upsert", "cdc"])
@pytest.mark.parametrize("keep_raw", [False, True])
def test_the_code_compiles_for_any_name(mode: Mode, keep_raw: bool) -> None:
    columns = {"class": "STRING", "it's": "STRUCT<`a b`: LONG>"}
    keys = () if mode == "append" else tuple(columns)
    ingested = IngestedTopic(topic='1-"x', table="1_x", mode=mode, keys=keys, keep_raw=keep_raw)
    compile(build_code(ingested, columns, "schemas/1_x.json"), "1_x.py", "exec")


def test_the_spec_has_variables_in_place_of_secrets() -> None:
    kafka = KafkaConnection(
        {"bootstrap.servers": "${host}:9092", "sasl.username": "ada", "sasl.password": "hunter2!"}
    )
    metastore = {"spark.sql.catalogImplementation": "hive", "spark.hadoop.x.ConnectionPassword": "pa55word"}
    text = build_spec(Path("lake"), "ingest", "..", "bronze", kafka, metastore)
    assert "hunter2!" not in text and "pa55word" not in text
    assert 'spark.sql.catalogImplementation: "hive"' in text
    assert 'ConnectionPassword: "${SPARK_HADOOP_X_CONNECTIONPASSWORD}"' in text
    assert build_values(text, "headrace.yml").items["database"].value == "bronze"  # type: ignore[union-attr]
    assert 'sasl.password: "${KAFKA_SASL_PASSWORD}"' in text
    assert 'bootstrap.servers: "$${host}:9092"' in text


def test_the_command_for_another_table_keeps_the_options_that_were_typed() -> None:
    given = {"table": "taken", "mode": "append", "cluster_by": ("id", "a b"), "keep_raw": True}
    request = IngestRequest(given=given, schema=Path("orders.json"))
    typed = " --mode append --cluster-by 'id,a b' --keep-raw --schema orders.json"
    assert typed_options(request) == typed


def test_ingested_topics_do_not_replace_the_plan_record_of_the_pipeline_in_a_bucket(
    make_project: Callable[[], ProjectSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    storage = Storage(memory_location())
    shop = replace(make_project(), storage=storage)
    folders = [IngestFolder(shop, trial=trial) for trial in (False, False, True)]
    names = ("customers", "orders", "orders_trial")
    ingests = [
        folder.open(
            [
                PreparedTopic(
                    ingested=IngestedTopic(topic=name, table=name),
                    columns={"id": "BIGINT"},
                    schema=("{}\n", ".json"),
                )
            ]
        )
        for folder, name in zip(folders, names, strict=True)
    ]
    records = [storage.last_plan(one.home).name for one in (shop, *ingests)]
    assert records == ["last.json", "ingest-last.json", "ingest-last.json", "ingest-trial-last.json"]
    # Two at once have a folder each on this machine, and one folder of logs.
    assert ingests[0].root != ingests[1].root
    assert log_folder(ingests[0]) == log_folder(ingests[1]) != log_folder(shop)
