"""Spark, DuckDB, Polars and delta-rs read the same rows of a table, with and without deletion vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import duckdb
import duckdb_extension_delta
import polars
import pytest

from headrace.project.pipeline import Pipeline
from proof.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODE = """
import headrace as hr

@hr.table
def events():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, n LONG, value STRING").drop("_source")

@hr.table(table_properties={"delta.columnMapping.mode": "name"})
def mapped():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, v VARIANT").drop("_source")

hr.create_streaming_table("newest")
hr.create_auto_cdc_flow(target="newest", source="changes", keys=["id"], sequence_by="n")

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, n LONG, value STRING").drop("_source")
"""


def by_duckdb(table: Path) -> set[tuple[object, ...]]:
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD '{extension}'")
        return set(connection.execute(f"SELECT id, n, value FROM delta_scan('{table.as_uri()}')").fetchall())


def by_polars(table: Path) -> set[tuple[object, ...]]:
    return set(polars.scan_delta(str(table)).select("id", "n", "value").collect().rows())


def by_delta_rs(table: Path) -> set[tuple[object, ...]]:
    found = deltalake.DeltaTable(table).to_pyarrow_table(columns=["id", "n", "value"])
    return {tuple(row.values()) for row in found.to_pylist()}


def test_every_engine_reads_what_the_plan_does_not_warn_of(
    make_shop: Callable[..., Shop], spark: SparkSession
) -> None:
    shop = make_shop(partitions=1)
    shop.spec["readers"] = ["duckdb", "polars", "delta-rs"]
    shop.write(CODE)
    for n in range(2):
        values = [json.dumps({"id": one, "n": n, "value": f"{n}"}).encode() for one in range(20 - n)]
        shop.ledger.produce_values(shop.topic, [(value, 0) for value in values])
        shop.run_well("events", "newest")
    with Pipeline.load(shop.root) as pipeline:
        warned = {
            (
                note.text.split()[0],
                note.text.split("`")[1].rpartition(".")[2],
                note.text.rpartition("has ")[2],
            )
            for note in pipeline.plan().notes
            if "cannot read" in note.text
        }
    assert warned == {
        ("delta-rs", "newest", "deletion vectors"),
        ("delta-rs", "mapped", "column mapping"),
        ("polars", "mapped", "column mapping"),
        ("delta-rs", "mapped", "the VARIANT column `v`"),
        ("polars", "mapped", "the VARIANT column `v`"),
    }
    assert deltalake.DeltaTable(shop.table("newest")).deletion_vectors().read_all().num_rows
    for name, count in (("events", 39), ("newest", 20)):
        found = spark.read.format("delta").load(str(shop.table(name))).select("id", "n", "value")
        expected = {tuple(row) for row in found.collect()}
        assert len(expected) == count
        assert by_duckdb(shop.table(name)) == expected
        assert by_polars(shop.table(name)) == expected
    assert len(by_delta_rs(shop.table("events"))) == 39
    with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="deletionVectors"):
        by_delta_rs(shop.table("newest"))
