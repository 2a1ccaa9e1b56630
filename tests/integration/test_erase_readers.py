"""An erasure with readers of all kinds: each continues with exactly the rows that it has not read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from decoded import files_with
from headrace.cli.main import run
from headrace.project.pipeline import Pipeline
from headrace.storage.locate import locate
from headrace.storage.table_log import versions
from proof.shop import Shop, rows
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

READ = """
import headrace as hr
from headrace import spark

@hr.table(
    table_properties={"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}
)
def orders():
    return hr.read_kafka("{topic}", format="json", schema="name STRING, amount LONG")

@hr.table
def near():
    return spark.readStream.table("orders")

@hr.table
def far():
    return spark.readStream.format("delta").load("{lake}").where("amount > 1")

@hr.table
def history():
    return hr.read_changes("orders")
"""
FOREIGN = """
import headrace as hr
from headrace import spark

@hr.table
def foreign():
    return spark.readStream.format("delta").load("{lake}")
"""
ADA = "name = 'adalovelace'"


def produce(shop: Shop, *records: tuple[str, int]) -> None:
    values = [json.dumps({"name": name, "amount": amount}).encode() for name, amount in records]
    shop.ledger.produce_values(shop.topic, [(value, 0) for value in values])


def amounts(shop: Shop, table: str) -> list[tuple[str, int]]:
    return sorted((row["name"], row["amount"]) for row in rows(shop, f"tables/{shop.database}/{table}"))


@pytest.mark.guarantee
def test_all_readers_continue_behind_an_erasure_with_exactly_the_new_rows(
    make_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = make_shop(partitions=1, maintenance={"retention": "0s", "allow_short_retention": True})
    other = make_shop()
    table = shop.table("orders")
    shop.write(READ.replace("{lake}", str(table)))
    other.write(FOREIGN.replace("{lake}", str(table)))
    for name, amount in (("bob", 1), ("adalovelace", 2), ("adalovelace", 3), ("bob", 4)):
        produce(shop, (name, amount))
        shop.run_well("orders")
        shop.run_well()
        other.run_well()
    project = ["--project", str(shop.root)]

    def call(*arguments: str) -> str:
        capsys.readouterr()
        code, captured = run([*arguments, *project]), capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    newest = versions(locate(str(table)))[-1]
    call("pin", "orders", "--version", str(newest), "--for", "30d")
    call("pin", "orders", "--reader", "bi", "--max-lag", "30d")
    # A running flow could add the rows again.
    with shop.running("near"):
        until(lambda: run(["erase", "orders", "--where", ADA, "--yes", *project]) == 1, "the flow runs")
        assert "SECOND_DRIVER" in capsys.readouterr().err
    assert ("adalovelace", 2) in amounts(shop, "near")

    shown = call("erase", "orders", "--where", ADA, "--yes")
    for kept in ("the pin of version", "reader bi", "flow history"):
        assert f"kept for {kept}" in shown, shown
    call("pin", "orders", "--version", str(newest), "--remove")
    call("pin", "orders", "--reader", "bi", "--remove")
    shop.run_well("history")
    call("erase", "history", "--where", ADA, "--yes")
    shown = call("erase", "orders", "--where", ADA, "--wait", "--yes")
    assert "No file and no log entry" in shown, shown
    assert files_with(shop.root / "lake", "adalovelace") == []
    assert versions(locate(str(table)))[0] > newest

    assert amounts(shop, "near") == [("bob", 1), ("bob", 4)]
    produce(shop, ("eve", 5), ("eve", 6))
    shop.run_well("orders")
    with Pipeline.load(shop.root) as pipeline:
        flows = [flow for one in pipeline.status().datasets for flow in one.flows]
    assert {flow.flow: flow.lag for flow in flows}["near"] == 2
    shop.run_well()
    other.run_well()
    all_rows = [("bob", 1), ("bob", 4), ("eve", 5), ("eve", 6)]
    assert amounts(shop, "near") == amounts(shop, "orders") == all_rows
    assert amounts(shop, "far") == all_rows[1:]
    assert amounts(shop, "history") == all_rows
    # The other pipeline read to the end before the erasure, and its copy is not erased.
    assert amounts(other, "foreign") == sorted([*all_rows, ("adalovelace", 2), ("adalovelace", 3)])
    shop.verify()
    other.verify()


STEPS = """
import headrace as hr
from headrace import spark

@hr.table
def orders():
    return hr.read_kafka("{topic}", format="json", schema="name STRING, amount LONG")

@hr.table
def near():
    return spark.readStream.option("maxFilesPerTrigger", 1).table("orders")
"""


@pytest.mark.guarantee
def test_a_flow_that_stopped_between_two_batches_loses_no_row_to_an_erasure(
    make_shop: Callable[..., Shop], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = make_shop(partitions=1, maintenance={"retention": "0s", "allow_short_retention": True})
    shop.write(STEPS)
    project = ["--project", str(shop.root)]
    for amount in range(5):
        produce(shop, ("adalovelace" if amount in (1, 3) else "bob", amount))
        shop.run_well("orders")
        if amount == 0:
            shop.run_well("near")
    shop.fail_at("near/before-commit", 2)
    assert amounts(shop, "near") == [("adalovelace", 1), ("bob", 0)]

    assert run(["erase", "orders", "--where", ADA, "--yes", *project]) == 0
    shown = capsys.readouterr()
    assert "near has not read all rows of orders" in shown.out + shown.err, shown
    assert "kept for flow near" in shown.out, shown.out
    assert amounts(shop, "near") == [("bob", 0)]
    shop.run_well()
    assert amounts(shop, "near") == [("adalovelace", 3), ("bob", 0), ("bob", 2), ("bob", 4)]
    shop.verify()

    assert run(["erase", "orders", "--where", ADA, "--wait", "--yes", *project]) == 0
    assert files_with(shop.root / "lake", "adalovelace") == []
    produce(shop, ("eve", 5))
    shop.run_well()
    assert amounts(shop, "near") == [("bob", 0), ("bob", 2), ("bob", 4), ("eve", 5)]
    shop.verify()

    # A log with V2 checkpoints cannot be examined.
    spark.sql(f"ALTER TABLE delta.`{shop.table('near')}` SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')")
    capsys.readouterr()
    assert run(["erase", "orders", "--where", "name = 'eve'", "--wait", "--yes", *project]) == 0
    shown = capsys.readouterr()
    assert "can still have the rows, see above: near" in shown.out, shown
    assert "No file and no log entry" not in shown.out
