"""`headrace verify --sample`: rows of a table with changes by key against the newest records."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import run
from headrace.project.pipeline import Pipeline
from headrace.sinks import row_hash
from headrace.verify.report import GradeReport
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.temporary_view
def changes():
    schema = "id LONG, name STRING, at TIMESTAMP, other LONG, op STRING"
    return hr.read_kafka("{topic}", format="json", schema=schema)

hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    target="current", source="changes", keys=["id"], sequence_by="at", apply_as_deletes="op = 'delete'"
)
"""

FIGURES = {"records": 90, "stale": 0, "lost": 0}


def produce(shop: Shop, *records: tuple[int, int]) -> None:
    """Records of keys with the second of their change, in the order given; partitions by turns."""
    values = [
        (
            {"id": key, "name": f"n{second}", "at": f"2026-01-01T00:00:{second:02d}Z", "other": second},
            second % 2,
        )
        for key, second in records
    ]
    shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), place) for one, place in values])


def sample(shop: Shop, size: int = 100) -> GradeReport:
    with Pipeline.load(shop.root) as pipeline:
        (dataset,) = pipeline.verify(sample=size).datasets
    assert dataset.sample is not None
    return dataset.sample


@pytest.mark.parametrize("more", ["", ", stored_as_scd_type=2"], ids=["current rows", "histories"])
def test_a_sample_finds_a_row_that_is_not_that_of_the_newest_record(
    make_shop: Callable[..., Shop], spark: SparkSession, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    shop = make_shop(partitions=2)
    shop.write(CODE.replace("\"op = 'delete'\"", f"\"op = 'delete'\"{more}"))
    produce(shop, *[(key, second) for key in range(30) for second in (5, 9, 7)])
    shop.run_well()
    found = sample(shop, 20)
    assert (found.verdict, found.figures) == ("proven", {**FIGURES, "keys": 30})
    assert found.details["sequence"] == ["the field at"]

    # Another process brings back an older version of a row, whole.
    table = f"delta.`{shop.table('current')}`"
    current = " AND __END_AT IS NULL" if more else ""
    spark.sql(
        f"UPDATE {table} SET name = 'n7', at = at - INTERVAL 2 SECONDS, other = 7, _sequence = named_struct("
        "'value', _sequence.value - INTERVAL 2 SECONDS, 'partition', _sequence.partition, "
        f"'source', _sequence.source, 'position', _sequence.position + 1) WHERE id = 7{current}"
    )
    found = sample(shop)
    assert (found.verdict, found.figures) == ("refuted", {**FIGURES, "keys": 30, "stale": 1})
    (finding,) = found.findings
    assert finding.code == "ROW_STALE"
    assert "the key 7 " in finding.text
    capsys.readouterr()
    assert run(["verify", "--sample", "50", "--project", str(shop.root)]) == 1
    assert "30 keys replayed from 90 records of Kafka" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("schema=schema)", 'schema=schema).where("other > 0")'), "more than a reader"),
        (('sequence_by="at"', 'sequence_by="unix_millis(at) + 1"'), "has the sequence"),
    ],
)
def test_a_sample_of_another_query_is_not_judged(
    make_shop: Callable[..., Shop], change: tuple[str, str], reason: str
) -> None:
    shop = make_shop(partitions=2)
    shop.write(CODE.replace(*change))
    produce(shop, (1, 5), (1, 9), (2, 3))
    shop.run_well()
    found = sample(shop)
    assert found.verdict == "unjudged"
    assert reason in found.reasons[0]


NESTED = CODE.replace("id LONG", "id STRUCT<a: LONG, b: ARRAY<LONG>, c: STRING>")


def test_a_sample_finds_a_key_whose_row_was_replaced_by_that_of_another_key(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(partitions=2)
    shop.write(NESTED)
    # Planted from the beginning: the runs of a process share one index.
    monkeypatch.setattr(row_hash, "_is_simple", lambda kind: True)
    keys = [{"a": 1, "b": None}, {"a": 2, "b": [None]}, {"a": 3, "b": []}]

    def change(key: object, second: int, op: str = "upsert") -> None:
        record = {"id": key, "at": f"2026-01-01T00:00:{second:02d}Z", "op": op}
        shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), second % 2)])

    for second, key in enumerate(keys):
        change(key, second)
    change({"a": 7}, 8)
    shop.run_well()
    # A key whose row was deleted is explained by its tombstone.
    change({"a": 7}, 9, "delete")
    shop.run_well()
    found = sample(shop)
    assert (found.verdict, found.findings) == ("proven", ())
    assert found.figures["records"] == 5

    # The index takes these two keys for two keys that the table has.
    change({"b": [1]}, 20)
    change({"a": 2, "b": None}, 21)
    shop.run_well()
    found = sample(shop)
    assert (found.verdict, found.figures["lost"]) == ("refuted", 2)
    assert {one.code for one in found.findings} == {"KEY_LOST"}
