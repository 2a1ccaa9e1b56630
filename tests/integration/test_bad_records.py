"""Records that a reader cannot decode: in the quarantine with their bytes, while the rest is committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from headrace.model.events import BatchCommitted
from headrace.run.bad_records import BadRecordSearch
from proof.shop import Shop

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("spark")

LATIN = b'{"id": 5, "name": "caf\xe9"}'
"""`café` in ISO 8859-1, which is not valid UTF-8."""

EVENTS = """
import headrace as hr
from pyspark.sql import functions as F

{expectations}
@hr.table
def events():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, name STRING", \
max_offsets_per_trigger={limit}, {arguments})
"""


def write(shop: Shop, arguments: str = "", expectations: str = "", limit: int = 500_000) -> None:
    code = EVENTS.replace("{arguments}", arguments).replace("{expectations}", expectations)
    shop.write(code, limit=limit)


def rows(shop: Shop, path: str) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(shop.root / "lake" / path)
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return pa.table(found).to_pylist()


def accepted(shop: Shop, table: str = "events") -> list[dict[str, Any]]:
    found = rows(shop, f"tables/{shop.database}/{table}")
    return sorted(found, key=lambda row: row["_source"]["offset"])


def quarantined(shop: Shop, table: str = "events") -> list[dict[str, Any]]:
    found = rows(shop, f"quarantine/{shop.database}/{table}")
    return sorted(found, key=lambda row: row["source"]["offset"])


def metadata(shop: Shop, table: str = "events") -> dict[str, Any]:
    """The metadata of the newest commit that has some."""
    history = deltalake.DeltaTable(shop.table(table)).history()
    found: dict[str, Any] = json.loads(next(one["userMetadata"] for one in history if "userMetadata" in one))
    return found


def grades(shop: Shop) -> list[str]:
    (judged,) = shop.verify().datasets[0].flows
    return [grade.text.partition(";")[0] for grade in judged.grades[1:]]


def reason(row: dict[str, Any]) -> tuple[str, str]:
    (only,) = row["reasons"]
    return only["kind"], only["name"]


def produce(shop: Shop, *values: bytes | None) -> None:
    shop.ledger.produce_values(shop.topic, [(value, 0) for value in values])


def test_bad_records_go_to_the_quarantine_and_the_rest_is_committed(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    write(shop, expectations='@hr.expect_or_quarantine("positive", "id > 0")')
    bad = [b"{not json", b'{"id": "x"}', b'{"id": -4}', LATIN]
    produce(shop, b'{"id": 1}', *bad, b'{"id": 6}')
    shop.run_well()
    assert [row["id"] for row in accepted(shop)] == [1, 6]
    found = quarantined(shop)
    assert [(row["source"]["offset"], *reason(row)) for row in found] == [
        (1, "record", "RECORD_UNPARSEABLE"),
        (2, "record", "RECORD_UNPARSEABLE"),
        (3, "expectation", "positive"),
        (4, "record", "RECORD_NOT_UTF8"),
    ]
    assert [row["source"]["value"] for row in found] == bad
    assert found[1]["reasons"][0]["message"] == 'field `id`: expected LONG, got "x"'
    assert found[0]["row"] is None and found[0]["source"]["topic"] == shop.topic
    assert len({row["id"] for row in found}) == 4
    stated = metadata(shop)
    assert (stated["input"], stated["accepted"], stated["quarantined"], stated["dropped"]) == (6, 2, 4, 0)
    assert stated["bad_records"] == [
        {"name": "RECORD_NOT_UTF8", "action": "quarantine", "records": 1},
        {"name": "RECORD_UNPARSEABLE", "action": "quarantine", "records": 2},
    ]
    (event,) = shop.happened(BatchCommitted)
    assert isinstance(event, BatchCommitted)
    assert (event.rows, event.quarantined) == (2, 4)
    assert grades(shop) == [
        "6 in = 2 accepted + 4 quarantined + 0 dropped",
        "6 read from Kafka = 2 in the table + 4 in quarantine",
    ]
    # Later batches count on their own.
    produce(shop, b'{"id": 7}', b"[]")
    shop.run_well()
    assert [(row["batch"], row["source"]["offset"]) for row in quarantined(shop)][-1] == (1, 7)
    assert grades(shop)[1] == "8 read from Kafka = 3 in the table + 5 in quarantine"


JOINED = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

def events():
    return hr.read_kafka("{topic}", format="json", schema="id LONG", max_offsets_per_trigger=2)

@hr.table
def nothing():
    return events().join(spark.range(0), "id")

@hr.table
def never():
    return events().where(F.lit(False))

@hr.table
def twice():
    found = events()
    return found.select("id").unionAll(found.select(-F.col("id")))

@hr.table
def sums():
    dated = events().withColumn("at", F.col("_source.timestamp")).withWatermark("at", "1 minute")
    return dated.groupBy(F.window("at", "1 second")).agg(F.sum("id").alias("sum"))

@hr.table
def distinct():
    return events().dropDuplicates(["id"]).select("id", "_source")
"""


def test_bad_records_are_found_whatever_the_query_makes_of_the_others(make_shop: Callable[..., Shop]) -> None:
    """Also where Spark reads nothing, since the query has no row, and where the query keeps state."""
    shop = make_shop(partitions=1)
    shop.write(JOINED)
    produce(shop, b'{"id": 1}', b"bad", b"bad too", b'{"id": 4}', b'{"id": 1}')
    shop.run_well()
    for table in ("nothing", "never", "twice", "sums", "distinct"):
        found = [(row["batch"], row["source"]["offset"]) for row in quarantined(shop, table)]
        assert found == [(0, 1), (1, 2)], table
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/twice")) == [-4, -1, -1, 1, 1, 4]
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/distinct")) == [1, 4]
    shop.verify()


def test_a_batch_without_bad_records_is_read_once(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    search = BadRecordSearch.find_again

    def counted(self: BadRecordSearch, session: Any, stamp: Any) -> Any:
        found.append(stamp.batch)
        return search(self, session, stamp)

    monkeypatch.setattr(BadRecordSearch, "find_again", counted)
    shop = make_shop(partitions=1)
    write(shop, limit=2)
    produce(shop, *[json.dumps({"id": id}).encode() for id in range(5)], b"bad")
    shop.run_well()
    assert found == [2]


def test_a_reader_can_stop_the_flow(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    write(shop, 'bad_records="stop"')
    produce(shop, b'{"id": 1}', b"bad")
    (error,) = shop.run().errors
    assert (error.code, error.params["offset"]) == ("RECORD_UNPARSEABLE", 1)
    assert accepted(shop) == []
    # With the default the flow goes on with the same batch.
    write(shop)
    shop.run_well()
    assert len(accepted(shop)) == len(quarantined(shop)) == 1
