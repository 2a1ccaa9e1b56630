"""No secret is seen anywhere: not on the screen, not in the storage, not in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from conftest import PASSWORD, PLANTED
from decoded import files_with
from headrace.cli.main import run
from headrace.runtime.places import cache_folder
from headrace.runtime.session import RunningSpark
from proof.ledger import ProducerLedger, create_topic
from secured_broker import SecuredBroker

MARK = "pl4nted"
"""A part of every secret, so no form of one gets past."""

SPEC = """
name: shop
database: secrets
libraries: [{file: tables.py}]
configuration:
  shop.api.token: ${file:token}
  spark.hadoop.fs.s3a.secret.key: pl4nted-in-the-spec
kafka:
  bootstrap.servers: BROKER
  security.protocol: SASL_SSL
  sasl.mechanism: SCRAM-SHA-256
  sasl.username: shop
  sasl.password: ${KAFKA_PASSWORD}
  ssl.ca.location: AUTHORITY
"""

TABLES = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.table(spark_conf={"spark.sql.shop.password": "pl4nted-in-the-code"})
def orders():
    return hr.read_kafka("secret_orders")

@hr.materialized_view
def counts():
    return spark.read.table("orders").groupBy("key").count()
"""

FAILING = """

@hr.table
def failing():
    said = spark.conf.get("shop.api.token")

    @F.udf("string")
    def fail(value):
        raise ValueError(f"the token is {said} {said!r}")

    return hr.read_kafka("secret_orders").select(fail("value").alias("x"), "_source")
"""

WRONG = """

@hr.table
def wrong():
    raise ValueError("the token is " + spark.conf.get("shop.api.token"))
"""


@pytest.fixture(scope="module")
def produced(secured_broker: SecuredBroker) -> None:
    """A topic with ten records."""
    bootstrap = secured_broker.start()
    create_topic(bootstrap, "secret_orders", 1)
    ProducerLedger(bootstrap).produce("secret_orders", 10, 1)


@pytest.fixture
def folder(
    produced: None, secured_broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    spec = SPEC.replace("BROKER", secured_broker.address("SASL_SSL"))
    spec = spec.replace("AUTHORITY", str(secured_broker.authority))
    (tmp_path / "headrace.yml").write_text(spec)
    (tmp_path / "tables.py").write_text(TABLES)
    (tmp_path / "token").write_text(f"{PLANTED[1]}\n")
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    return tmp_path


def files_since(folder: Path, moment: float) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_mtime >= moment:
            yield path


def test_no_secret_is_seen_anywhere(
    spark: SparkSession, running_spark: RunningSpark, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.time() - 1
    capsys.readouterr()

    def call(code: int, *arguments: str) -> str:
        given = run([*arguments, "--project", str(folder)])
        captured = capsys.readouterr()
        shown = captured.out + captured.err
        assert given == code, (arguments, shown)
        assert MARK not in shown, (arguments, shown)
        return shown

    call(0, "plan")
    call(0, "plan", "--json")
    call(0, "run", "--json")
    call(0, "status", "--json")
    call(0, "verify", "--json")
    call(0, "read", "orders")
    call(0, "preview", "orders", "--limit", "1")
    call(0, "produce", "secret_orders", "--sample", "--limit", "2")
    call(0, "consume", "secret_orders", "--limit", "1")
    (folder / "tables.py").write_text(TABLES + FAILING)
    assert "the token is ***" in call(1, "run", "--debug")
    assert "the token is ***" in call(0, "status", "--json")
    (folder / "tables.py").write_text(TABLES + WRONG)
    assert "the token is ***" in call(2, "plan", "--debug")
    call(2, "plan", "--json", "--debug")
    (folder / "tables.py").write_text(TABLES)
    wrong = (
        ("status",),
        ("verify", "--debug"),
        ("doctor", "--json"),
        ("consume", "secret_orders", "--debug"),
        ("produce", "secret_orders", "--sample", "--debug"),
        ("preview", "orders", "--debug"),
    )
    for arguments in wrong:
        call(1, *arguments, "--set", "kafka.sasl.password=pl4nted-on-the-command-line")
    call(2, "status", "--set", "kafka.sasl.pasword=pl4nted-and-misspelt")
    call(2, "status", "--set", f"kafka.bootstrap.servers={PLANTED[2]}")
    literal = (folder / "headrace.yml").read_text()
    (folder / "headrace.yml").write_text(
        literal.replace("sasl.password: $", "sasl.pasword: pl4nted-misspelt-$")
    )
    call(2, "status")
    (folder / "headrace.yml").write_text(
        literal.replace("sasl.password: ${KAFKA_", 'sasl.password: "pl4nted-')
    )
    call(2, "status", "--debug")

    assert running_spark.log_file is not None
    written = [running_spark.log_file, *files_since(folder / "lake", 0)]
    written += files_since(cache_folder() / "logs", began)
    seen = [path for path in written if MARK.encode() in path.read_bytes()]
    assert seen == []
    assert len(written) > 10


DURABLE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

TOKEN = spark.conf.get("shop.api.token")

@hr.temporary_view
@hr.expect(f"view {TOKEN}", f"value <> '{TOKEN}'")
def checked():
    return hr.read_kafka("secret_orders")

@hr.table(
    comment=f"made with {TOKEN}",
    table_properties={"shop.note": f"the token is {TOKEN}"},
    schema=f"value BINARY COMMENT 'not {TOKEN}', _source {STRUCT}",
)
@hr.expect(f"one {TOKEN}", f"value <> '{TOKEN}'")
@hr.expect("one pl4nted-in-the-spec", "value IS NOT NULL")
@hr.expect_or_quarantine(f"few {TOKEN}", f"_source.offset < 3 OR value = '{TOKEN}'")
def orders():
    failed = F.raise_error(F.lit(f"no login with {TOKEN}")).cast("binary")
    value = F.when(F.col("_source.offset") == 1, failed).otherwise(F.col("value"))
    return spark.readStream.table("checked").select(value.alias("value"), "_source")

@hr.table
def parsed():
    @F.udf("string")
    def fail(value):
        if b"1" in value:
            raise ValueError(f"the token is {TOKEN} {TOKEN!r}")
        return "x"

    return hr.read_kafka("secret_orders").select(fail("value").alias("x"), "_source")

@hr.materialized_view(comment=f"counted with {TOKEN}")
@hr.expect_or_quarantine(f"counts {TOKEN}", f"count > 100 AND value <> '{TOKEN}'")
def counts():
    return spark.read.table("orders").groupBy("value").count()
"""


def test_no_secret_is_in_what_the_storage_keeps(
    running_spark: RunningSpark, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.time() - 1
    struct = "STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP, key: BINARY, "
    struct += "headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>"
    (folder / "tables.py").write_text(DURABLE.replace("{STRUCT}", struct))
    # Tests share a catalog.
    spec = folder / "headrace.yml"
    spec.write_text(spec.read_text().replace("database: secrets", "database: durable"))
    capsys.readouterr()
    project = ["--project", str(folder)]
    assert run(["run", "--debug", *project]) == 0, capsys.readouterr().err
    for arguments in (
        ["plan", "--json"],
        ["quarantine", "show", "orders"],
        ["quarantine", "show", "parsed", "--json"],
        ["quarantine", "replay", "parsed", "--yes"],
        ["status", "--json"],
        ["quality", "--json"],
        ["events", "--json"],
        ["maintain", "--json"],
        ["verify", "--json"],
    ):
        run([*arguments, *project])
    captured = capsys.readouterr()
    assert MARK not in captured.out + captured.err
    rejected = (
        DeltaTable(folder / "lake" / "quarantine" / "durable" / "orders").to_pyarrow_table().to_pylist()
    )
    reasons = {(one["kind"], one["name"]) for row in rejected for one in row["reasons"]}
    assert ("expectation", "few ***") in reasons, reasons
    messages = [one["message"] or "" for row in rejected for one in row["reasons"]]
    assert any("no login with ***" in one for one in messages), messages
    assert files_with(folder / "lake", MARK) == []
    assert [path for path in files_since(cache_folder() / "logs", began) if MARK in path.read_text()] == []
    assert running_spark.log_file is not None and MARK not in running_spark.log_file.read_text()


def test_no_secret_is_in_the_command_line_of_the_jvm(running_spark: RunningSpark) -> None:
    assert running_spark.jvm_pid is not None
    assert MARK not in " ".join(psutil.Process(running_spark.jvm_pid).cmdline())
    hadoop = running_spark.spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    assert hadoop.get("planted.secret") == PLANTED[2]
