"""Records that a reader cannot decode: in the quarantine with their bytes, while the rest is committed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import deltalake
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.model.events import BatchCommitted
from headrace.run import narrowing
from headrace.run.bad_records import BadRecordSearch
from proof.ledger import TIMEOUT_S, settings
from proof.shop import Shop, rows

pytestmark = pytest.mark.usefixtures("spark")

LARGEST = 30_000_000
"""Bytes that the producer and the broker accept for one record."""
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
    producer = Producer({**settings(shop.ledger.bootstrap), "message.max.bytes": LARGEST})
    for value in values:
        producer.produce(shop.topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


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
    assert [*event.bad_records] == stated["bad_records"]
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
    produce(shop, b'{"id": 1}', b"bad", b"bad too", b'{"id": 1}')
    shop.run_well()
    for table in ("nothing", "never", "twice", "sums", "distinct"):
        found = [(row["batch"], row["source"]["offset"]) for row in quarantined(shop, table)]
        assert found == [(0, 1), (1, 2)], table
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/twice")) == [-1, -1, 1, 1]
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/distinct")) == [1]
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


def test_every_kind_of_bad_record_is_accounted_for_once(make_shop: Callable[..., Shop]) -> None:
    """In the table or in the quarantine, as `verify` proves it."""
    shop = make_shop(partitions=1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, shop.topic)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", str(LARGEST), incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient(settings(shop.ledger.bootstrap))
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
    write(shop, limit=3)
    large = b'{"id": 8, "name": "' + b"x" * 10_000_000 + b'"}'
    deep = b'{"id": 9, "more": ' + b"[" * 900 + b"]" * 900 + b"}"
    too_deep = b'{"id": 10, "more": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    records: dict[bytes | None, str | int] = {
        b'{"id": 1}': 1,
        b"{malformed": "RECORD_UNPARSEABLE",
        LATIN: "RECORD_NOT_UTF8",
        b'{"id": null}': -1,
        None: "TOMBSTONE",
        b"null": "RECORD_UNPARSEABLE",
        b"": "RECORD_UNPARSEABLE",
        b'{"id": 9223372036854775807}': 9223372036854775807,
        b'{"id": 9223372036854775808}': "RECORD_UNPARSEABLE",
        b'{"id": 1e400}': "RECORD_UNPARSEABLE",
        b'{"id": 4, "id": 5}': 5,
        large: "RECORD_TOO_LARGE",
        deep: 9,
        too_deep: "RECORD_UNPARSEABLE",
        b'{"id": 6} {"id": 7}': "RECORD_UNPARSEABLE",
    }
    produce(shop, *records)
    shop.run_well()
    found: dict[bytes | None, str | int] = {
        row["_source"]["value"]: -1 if row["id"] is None else row["id"] for row in accepted(shop)
    }
    for row in quarantined(shop):
        assert row["source"]["value"] not in found, "it is in the table, too"
        found[row["source"]["value"]] = row["reasons"][0]["name"]
    assert found == records
    messages = {row["source"]["value"]: row["reasons"][0]["message"] for row in quarantined(shop)}
    assert messages[large] == "the value has 10,000,021 bytes; max_value_bytes is 8,388,608"
    assert messages[b'{"id": 9223372036854775808}'].startswith("field `id`: expected LONG, got 92233720368")
    assert messages[None] == "the record has no value"
    assert grades(shop)[1] == "15 read from Kafka = 5 in the table + 10 in quarantine"


TOMBSTONES = """
import headrace as hr

@hr.table
def {rule}():
    return hr.read_kafka("{topic}", format="json", schema="id LONG", tombstones="{rule}", bad_records="{bad}")
"""


@pytest.mark.parametrize("bad", ["quarantine", "stop"])
def test_tombstones_are_kept_or_skipped_and_counted(make_shop: Callable[..., Shop], bad: str) -> None:
    shop = make_shop(partitions=1)
    rules = ("skip", "keep")
    shop.write("".join(TOMBSTONES.replace("{rule}", rule).replace("{bad}", bad) for rule in rules))
    produce(shop, b'{"id": 1}', None, b'{"id": 3}', None)
    shop.run_well()
    assert [row["id"] for row in accepted(shop, "skip")] == [1, 3]
    assert [row["id"] for row in accepted(shop, "keep")] == [1, None, 3, None]
    stated = metadata(shop, "skip")
    assert (stated["input"], stated["accepted"], stated["dropped"]) == (4, 2, 2)
    assert stated["bad_records"] == [{"name": "TOMBSTONE", "action": "drop", "records": 2}]
    assert "bad_records" not in metadata(shop, "keep")
    (keep, skip) = (one.flows[0] for one in shop.verify().datasets)
    assert keep.grades[2].text.startswith("4 read from Kafka = 4 in the table")
    assert skip.grades[2].text.startswith("4 read from Kafka = 2 in the table + 2 dropped")


LINES = """
import headrace as hr

@hr.table
def events():
    return hr.read_files("landing", format="json", schema="id LONG, day STRING", max_value_bytes=40)

@hr.table
def words():
    return hr.read_files("landing", format="text", max_value_bytes=40)
"""


def test_bad_lines_of_files_go_to_the_quarantine(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    folder = shop.root / "landing" / "day=a b"
    folder.mkdir(parents=True)
    lines = [b'{"id": 1}', b"bad", LATIN, b'{"id": 4, "other": "0123456789 0123456789"}', b'{"id": 5}']
    (folder / "first.json").write_bytes(b"\n".join(lines))
    shop.write(LINES)
    shop.run_well()
    assert sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/events")) == [1, 5]
    assert {row["day"] for row in rows(shop, f"tables/{shop.database}/events")} == {"a b"}
    found = {row["source"]["value"]: row for row in rows(shop, f"quarantine/{shop.database}/events")}
    assert {value: reason(row)[1] for value, row in found.items()} == {
        lines[1]: "RECORD_UNPARSEABLE",
        lines[2]: "RECORD_NOT_UTF8",
        lines[3]: "RECORD_TOO_LARGE",
    }
    assert {row["source"]["path"] for row in found.values()} == {
        row["_source"]["path"] for row in rows(shop, f"tables/{shop.database}/events")
    }
    assert len(rows(shop, f"tables/{shop.database}/words")) == 3
    assert len(rows(shop, f"quarantine/{shop.database}/words")) == 2
    for dataset in shop.verify().datasets:
        assert dataset.flows[0].grades[1].text.startswith("5 in = ")


RAISING = """
import headrace as hr
from pyspark.sql import functions as F

@F.udf("long")
def whole(text):
    return int(text)

def events():
    return hr.read_kafka("{topic}", format="json", schema="id STRING")

@hr.table
@hr.expect_or_quarantine("small", "id < 100")
def casts():
    return events().select(F.col("id").cast("long").alias("id"), "_source", F.current_timestamp().alias("at"))

@hr.table
def functions():
    return events().select(whole("id").alias("id"), "_source")

@hr.table
def parsed():
    record = hr.parse_json("value", "id STRING", at=["_source.offset"])
    return hr.read_kafka("{topic}").select(record.alias("record"), "_source")

@hr.table
def unique():
    return events().select(F.col("id").cast("long").alias("id"), "_source").dropDuplicates(["id"])
"""


def with_ids(*ids: object) -> list[bytes]:
    return [json.dumps({"id": id}).encode() for id in ids]


def test_records_on_which_the_query_fails_are_quarantined_with_the_exception(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(partitions=1)
    shop.write(RAISING)
    values = [*with_ids("0", "1", "x", "3", "400"), b"bad", *with_ids("6", "y")]
    produce(shop, *values)
    errors = {error.params.get("name", error.params.get("flow")): error for error in shop.run().errors}
    # With state the batch cannot be computed without some of its records.
    assert set(errors) == {"unique"} and not errors["unique"].transient
    assert errors["unique"].params["offset"] == 2
    assert [row["id"] for row in accepted(shop, "casts")] == [0, 1, 3, 6]
    found = quarantined(shop, "casts")
    assert [(row["source"]["offset"], *reason(row)) for row in found] == [
        (2, "exception", "CAST_INVALID_INPUT"),
        (4, "expectation", "small"),
        (5, "record", "RECORD_UNPARSEABLE"),
        (7, "exception", "CAST_INVALID_INPUT"),
    ]
    assert [row["source"]["value"] for row in found] == [values[n] for n in (2, 4, 5, 7)]
    assert "'x'" in found[0]["reasons"][0]["message"]
    assert len({row["id"] for row in found}) == 4
    assert [row["id"] for row in accepted(shop, "functions")] == [0, 1, 3, 400, 6]
    assert [(row["source"]["offset"], *reason(row)) for row in quarantined(shop, "functions")] == [
        (2, "exception", "ValueError"),
        (5, "record", "RECORD_UNPARSEABLE"),
        (7, "exception", "ValueError"),
    ]
    assert "invalid literal for int" in quarantined(shop, "functions")[0]["reasons"][0]["message"]
    assert [(row["source"]["offset"], reason(row)[1]) for row in quarantined(shop, "parsed")] == [
        (5, "RECORD_UNPARSEABLE")
    ]
    proof = {one.dataset.name: one.flows[0] for one in shop.verify().datasets if one.flows}
    for table, text in (("casts", "4 in the table + 4"), ("functions", "5 in the table + 3")):
        assert proof[table].grades[2].text.startswith(f"8 read from Kafka = {text} in quarantine")


def test_a_flow_stops_when_its_query_fails_on_many_records(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert narrowing.MOST_RAISING == 10, "the docs say ten"
    monkeypatch.setattr(narrowing, "MOST_RAISING", 2)
    shop = make_shop(partitions=1)
    shop.write(RAISING.partition("@hr.table\ndef functions")[0])
    produce(shop, *with_ids("0", *["x"] * 3))
    (error,) = shop.run().errors
    assert (error.code, error.params["offset"]) == ("FLOW_FAILED", 1)
    assert any("more than 2 records of the batch" in fact for fact in error.facts)
    assert accepted(shop, "casts") == []
    assert not (shop.root / "lake" / "quarantine").exists()


def test_a_batch_with_too_many_rejected_records_stops_its_flow(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    expectations = '@hr.expect_or_drop("not three", "id <> 3")\n@hr.expect_or_quarantine("small", "id < 100")'
    shop.spec["max_rejected"] = "40%"
    write(shop, expectations=expectations)
    produce(shop, *with_ids(1, 2, 3, "x", 500, 6, 7))
    (error,) = shop.run().errors
    assert error.code == "MAX_REJECTED_EXCEEDED" and not error.transient
    assert (error.params["rejected"], error.params["records"]) == (3, 7)
    text = str(error)
    assert "3 of 7 records of a batch are rejected (42.9%), and max_rejected is 40%" in text
    assert f'{shop.topic}/0 offset 3: field `id`: expected LONG, got "x"' in text
    assert f"{shop.topic}/0 offset 4: `small`" in text and "`not three`: 1 row" in text
    assert f'{shop.topic}/0 offset 2: {{"id": 3' in text, "a dropped row is shown, too"
    assert "the rows that fail are then dropped" in text
    assert accepted(shop) == []
    assert not (shop.root / "lake" / "quarantine").exists()
    # The table's own limit replaces the spec's.
    write(shop, expectations=expectations)
    code = (shop.root / "shop.py").read_text().replace("@hr.table", "@hr.table(max_rejected=3)")
    (shop.root / "shop.py").write_text(code)
    shop.run_well()
    assert [row["id"] for row in accepted(shop)] == [1, 2, 6, 7]
    assert [row["source"]["offset"] for row in quarantined(shop)] == [3, 4]
    shop.verify()
    # A batch is judged together with those before it, of earlier runs too: 3 of 7 records were rejected.
    (shop.root / "shop.py").write_text(code.replace("=3)", '="50% of 2 batches")'))
    produce(shop, *with_ids(600))
    shop.run_well()
    produce(shop, *with_ids(700))
    (error,) = shop.run().errors
    assert "2 of 2 records of the last 2 batches are rejected" in error.summary
    assert error.params["max_rejected"] == "50% of 2 batches"
    shop.verify()
