"""Calls of Spark that files from Databricks make: what runs, and what is refused with its line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import (
    FeatureUnsupportedError,
    KafkaTlsError,
    OptionInvalidError,
    PlanFailedError,
    WriteInFileError,
)
from headrace.project.noop_check import find_up_to_date
from headrace.project.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = "name: calls\nschema: databricks_calls\nstorage: ./lake\n"
STREAM = 'spark.readStream.format("rate").load().writeStream.option("checkpointLocation", "ck")'


def write(root: Path, code: str, spec: str = SPEC) -> Path:
    (root / "transformations").mkdir(exist_ok=True)
    (root / "headrace.yml").write_text(spec)
    (root / "transformations" / "a.py").write_text(code)
    return root


@pytest.mark.parametrize(
    ("code", "line", "what"),
    [
        (f'query = {STREAM}.format("parquet").start("out")\n', 3, "writeStream"),
        (f'{STREAM}.toTable("out")\n', 3, "writeStream"),
        (
            'def save(rows):\n    rows.write.mode("overwrite").parquet("out")\n\nsave(spark.range(3))\n',
            4,
            "write",
        ),
        ('spark.range(3).writeTo("out").create()\n', 3, "writeTo()"),
        ('spark.sql("INSERT INTO out SELECT 1 AS a")\n', 3, "spark.sql with InsertIntoStatement"),
        (
            'spark.sql("BEGIN CREATE TABLE out (a INT); INSERT INTO out SELECT 1; END")\n',
            3,
            "spark.sql with BEGIN .. END",
        ),
        (
            "spark.sql(\"EXECUTE IMMEDIATE 'CREATE TABLE out (a INT)'\")\n",
            3,
            "spark.sql with EXECUTE IMMEDIATE",
        ),
        ('spark.sql("CREATE OR REPLACE TABLE out (a INT)")\n', 3, "spark.sql with ReplaceTable"),
        (
            'spark.sql("WITH x AS (SELECT 1 AS a) INSERT INTO out SELECT * FROM x")\n',
            3,
            "spark.sql with InsertIntoStatement",
        ),
    ],
)
def test_a_file_that_writes_is_refused_with_its_line_before_it_writes(
    spark: SparkSession, tmp_path: Path, code: str, line: int, what: str
) -> None:
    root = write(tmp_path, f"import dlt\n\n{code}\n@dlt.table\ndef t():\n    return spark.range(3)\n")
    with Pipeline.load(root) as pipeline, pytest.raises(WriteInFileError) as caught:
        pipeline.plan()
    assert str(caught.value.location) == f"transformations/a.py:{line}"
    assert caught.value.params["action"] == what
    assert spark.streams.active == []
    assert {"out", "ck", "spark-warehouse"}.isdisjoint(one.name for one in root.iterdir())


def test_settings_of_views_and_mapped_paths_apply_in_a_run(spark: SparkSession, tmp_path: Path) -> None:
    code = """
from pathlib import Path
import dlt

@dlt.table
def chosen():
    return spark.read.table("c.s.src").where(Path("/Volumes/shop/condition.txt").read_text())

@dlt.table
def written():
    spark.sql("FROM c.s.src INSERT INTO c.s.src SELECT * INSERT INTO c.s.src SELECT *")
    return spark.read.table("c.s.src")

@dlt.table
def scripted():
    return spark.sql("BEGIN SELECT 1; END")

@dlt.table
def dynamic():
    return spark.sql("EXECUTE IMMEDIATE 'SELECT 1'")
"""
    root = write(tmp_path, code, f"{SPEC}tables: {{c.s.src: ./src}}\npaths: {{/Volumes: ./volumes}}\n")
    deltalake.write_deltalake(root / "src", pa.table({"id": [1, 2], "v": ["1", "x"]}))
    for name, text in {
        "volumes/shop/condition.txt": "id = 2",
        "transformations/view.sql": "SET spark.sql.ansi.enabled = false;\n"
        "CREATE TEMPORARY VIEW numbers AS SELECT id, CAST(v AS INT) AS n FROM STREAM c.s.src;",
        "transformations/table.sql": "CREATE STREAMING TABLE t AS SELECT * FROM STREAM numbers;",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    with Pipeline.load(root) as pipeline, pytest.raises(PlanFailedError) as caught:
        pipeline.plan()
    assert [one.code for one in caught.value.errors] == ["ACTION_IN_QUERY"] * 3
    assert deltalake.DeltaTable(root / "src").version() == 0
    write(root, code.partition("@dlt.table\ndef written")[0], (root / "headrace.yml").read_text())
    with Pipeline.load(root) as pipeline:
        assert [one.to_dict() for one in pipeline.run().errors] == []
    found = {name: _rows(root / "lake/tables/databricks_calls" / name) for name in ("t", "chosen")}
    assert found == {"t": [{"id": 1, "n": 1}, {"id": 2, "n": None}], "chosen": [{"id": 2, "v": "x"}]}


def _rows(folder: Path) -> list[dict[str, object]]:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder))
    return pa.table(table.execute("SELECT * FROM t ORDER BY 1").read_all()).to_pylist()


class _Registry(BaseHTTPRequestHandler):
    """A registry with one subject of one version."""

    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})

    def do_GET(self) -> None:
        version = {"subject": "orders-value", "version": 1, "id": 3, "schema": self.schema}
        body = json.dumps(version if self.path.endswith("/1") else [1]).encode()
        self.send_response(200 if self.headers.get("Authorization", "").startswith("Basic ") else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


DECODED = """
import dlt
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import from_json

OPTIONS = {{"confluent.schema.registry.basic.auth.user.info": "me:secret"}}
RECORDS = [(bytearray(b"\\x00\\x00\\x00\\x00\\x03\\x0e"), '{{"a": 1}}')]


@dlt.table
def decoded():
    rows = spark.createDataFrame(RECORDS, "value BINARY, text STRING")
    return rows.select(
        from_avro(F.col("value"), "orders-value", "{registry}", OPTIONS).id.alias("by_position"),
        from_avro(data="value", subject="orders-value", schemaRegistryAddress="{registry}", options=OPTIONS)
        .id.alias("by_name"),
        from_json(col=F.col("text"), schema="a INT").a.alias("a"),
        F.from_json("text", "a INT", {{"mode": "FAILFAST"}}).a.alias("b"),
    )
"""
REFUSED = """

@dlt.table
def inferred():
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS text")
    return rows.select(F.from_json(F.col("text"), None, {{"schemaLocationKey": "x"}}))


@dlt.table
def other_options():
    return spark.range(1).select(from_avro("id", "s", "{registry}", {{"schemaId": "1"}}))


@dlt.table
def in_sql():
    return spark.sql("SELECT from_json('x', NULL, map('schemaLocationKey', 'x')) AS x")
"""


def test_records_are_decoded_by_databricks_functions(
    spark: SparkSession, tmp_path: Path, registry: str
) -> None:
    root = write(tmp_path, DECODED.format(registry=registry))
    with Pipeline.load(root) as pipeline:
        assert [one.to_dict() for one in pipeline.run().errors] == []
    (row,) = _rows(root / "lake/tables/databricks_calls/decoded")
    assert row == {"by_position": 7, "by_name": 7, "a": 1, "b": 1}
    code = (DECODED + REFUSED).format(registry=registry)
    write(tmp_path, code)
    with Pipeline.load(root) as pipeline, pytest.raises(PlanFailedError) as caught:
        pipeline.plan()
    texts = ["F.from_json(F.col", '"schemaId": "1"', "SELECT from_json('x', NULL"]
    lines = [code[: code.index(text)].count("\n") + 1 for text in texts]
    found = {one.location.line: one for one in caught.value.errors if one.location is not None}
    assert sorted(found) == lines
    assert all(isinstance(one, FeatureUnsupportedError) for one in found.values())
    assert "F.from_json without a schema" in found[lines[0]].summary
    assert "the option `schemaid` is not supported with a schema registry" in found[lines[1]].summary


EVENT_HUBS = """
import dlt

HUB = {{
    "kafka.bootstrap.servers": "shop.servicebus.windows.net:9093",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.login.callback.handler.class": "kafkashaded.com.example.Login",
    "sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required "
    "username=me password=x;",
    "kafka.request.timeout.ms": "60000",
}}


@dlt.table
def hub_records():
    reader = spark.readStream.format("kafka").options(**HUB).option("startingOffsets", "earliest")
    return reader.option("subscribe", "{topic}").load().selectExpr("CAST(value AS STRING) AS value")


dlt.create_sink("hub_alerts", "kafka", {{**HUB, "topic": "{alerts}"}})


@dlt.append_flow(name="alerting", target="hub_alerts")
def alerting():
    return spark.readStream.table("hub_records")
"""
HUB_SPEC = """
name: hub
schema: {schema}
storage: ./lake
kafka:
  bootstrap.servers: "{bootstrap}"
  brokers:
    "*.servicebus.windows.net:9093": embedded
profiles:
  other: {{kafka: {{bootstrap.servers: "{bootstrap}", client.id: other}}}}
"""


def test_brokers_in_files_have_the_connection_of_the_spec(
    spark: SparkSession, tmp_path: Path, topic: Callable[..., str], bootstrap: str
) -> None:
    """The file's login names a class that does not exist: it is dropped, for the reader and the sink."""
    from confluent_kafka import Consumer, Producer

    names = {"topic": topic(1), "alerts": topic(1)}
    spec = HUB_SPEC.format(bootstrap=bootstrap, schema=names["topic"].replace("-", "_"))
    root = write(tmp_path, EVENT_HUBS.format(**names), spec)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(names["topic"], b"one")
    assert producer.flush(30) == 0
    note = "`shop.servicebus.windows.net:9093` has the connection of"
    rule = "(kafka.brokers: *.servicebus.windows.net:9093)"
    with Pipeline.load(root) as pipeline:
        notes = [one.text for one in pipeline.plan().notes]
        assert notes.count(f"{note} embedded {rule}") == 2
        assert [one.to_dict() for one in pipeline.run().errors] == []
        assert pipeline.verify().proven
        assert find_up_to_date(pipeline.settings, pipeline._engine.connection) is not None
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": names["alerts"], "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([names["alerts"]])
    sent = consumer.poll(30)
    consumer.close()
    assert sent is not None and sent.value() == b"one"
    # Another connection is something to do.
    (root / "headrace.yml").write_text(spec.replace(": embedded", ": other"))
    with Pipeline.load(root) as pipeline:
        assert find_up_to_date(pipeline.settings, pipeline._engine.connection) is None
        assert f"{note} other {rule}" in {one.text for one in pipeline.plan().notes}
    # Without an entry, a broker without TLS is named at once, with the line of the reader.
    (root / "headrace.yml").write_text(spec.partition("  brokers:")[0])
    file = root / "transformations" / "a.py"
    text = file.read_text().partition("dlt.create_sink")[0].replace('"sasl.jaas', '"kafka.sasl.jaas')
    text = text.replace("OAUTHBEARER", "PLAIN")
    named = bootstrap.replace("127.0.0.1", "localhost")
    cases = {bootstrap: OptionInvalidError, named: KafkaTlsError}
    for servers, error in cases.items():
        file.write_text(text.replace("shop.servicebus.windows.net:9093", servers))
        with Pipeline.load(root) as pipeline, pytest.raises(error) as caught:
            pipeline.plan()
        refused = caught.value
        assert str(refused.location) == "transformations/a.py:18"
        entry = f'kafka: {{brokers: {{"{servers}": embedded}}}}'
        assert any(entry in one for one in refused.remedies), refused.remedies
