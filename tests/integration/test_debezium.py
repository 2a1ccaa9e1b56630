"""Change events of Debezium, as its connectors write them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from confluent_kafka import Producer
from pyspark.sql.types import StructType

from headrace.sources.kafka.debezium import DebeziumDecoder
from headrace.sources.records import BadRecord, decode_or_stop
from landing import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW = {"id": 1004, "email": "annek@noanswer.org"}
TABLE = "id INT, email STRING"


def postgres(op: str, *, lsn: int, committed: int | None = None, **images: Any) -> dict[str, Any]:
    """An event of the PostgreSQL connector."""
    sequence = json.dumps([None if committed is None else str(committed), str(lsn)])
    return {
        "before": images.get("before"),
        "after": images.get("after"),
        "source": {
            "version": "2.7.0.Final",
            "connector": "postgresql",
            "name": "PostgreSQL_server",
            "ts_ms": 1559033904863,
            "ts_us": 1559033904863123,
            "snapshot": "false",
            "db": "postgres",
            "sequence": sequence,
            "schema": "public",
            "table": "customers",
            "txId": 556,
            "lsn": lsn,
            "xmin": None,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1559033904961,
    }


def mysql(op: str, *, file: str, pos: int, row: int = 0, **images: Any) -> dict[str, Any]:
    """An event of the MySQL connector."""
    return {
        "before": images.get("before"),
        "after": images.get("after"),
        "source": {
            "version": "2.7.0.Final",
            "connector": "mysql",
            "name": "mysql-server-1",
            "ts_ms": 1465491411815,
            "snapshot": "false",
            "db": "inventory",
            "table": "customers",
            "server_id": 223344,
            "gtid": "24bc7850-2c16-11e6-a073-0242ac110002:7",
            "file": file,
            "pos": pos,
            "row": row,
            "thread": 7,
            "query": None,
        },
        "op": op,
        "ts_ms": 1465491411815,
    }


def with_schema(event: dict[str, Any], *columns: dict[str, Any]) -> dict[str, Any]:
    """The event with its schema part, as Kafka Connect's JSON converter writes it by default."""
    image = {"type": "struct", "fields": list(columns), "optional": True, "name": "server.customers.Value"}
    fields = [{**image, "field": "before"}, {**image, "field": "after"}]
    fields.append({"type": "string", "optional": False, "field": "op"})
    return {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": event}


def decode(spark: SparkSession, decoder: DebeziumDecoder, *events: Any) -> list[Any]:
    values = [(e if e is None or isinstance(e, bytes) else json.dumps(e).encode(),) for e in events]
    rows = spark.createDataFrame(values, "value BINARY")
    found = rows.select(decoder.decode(rows["value"]).alias("record")).collect()
    return [row.record and row.record.asDict() for row in found]


def problem(spark: SparkSession, decoder: DebeziumDecoder, event: Any) -> str:
    rows = spark.createDataFrame([(json.dumps(event).encode(),)], "value BINARY")
    with pytest.raises(Exception, match="HEADRACE_BAD_RECORD") as raised:
        rows.select(decode_or_stop(decoder, rows["value"])).collect()
    found = BadRecord.find(str(raised.value))
    assert found is not None
    return found.describe()


def decoder(schema: str = TABLE, **options: Any) -> DebeziumDecoder:
    return DebeziumDecoder(StructType.fromDDL(schema), **options)


def test_events_become_rows_with_and_without_the_schema_part(spark: SparkSession) -> None:
    key = {"id": 1004, "email": None}
    events = [
        postgres("r", lsn=24023100, after=ROW),
        postgres("c", lsn=24023128, committed=24023119, after=ROW),
        postgres("u", lsn=24023200, committed=24023150, before=key, after={**ROW, "email": "a@b"}),
        postgres("d", lsn=24023300, committed=24023250, before=key),
        postgres("t", lsn=24023400, committed=24023350),
    ]
    plain = decode(spark, decoder(), *events)
    assert [(row["_op"], row["id"], row["email"]) for row in plain] == [
        ("r", 1004, "annek@noanswer.org"),
        ("c", 1004, "annek@noanswer.org"),
        ("u", 1004, "a@b"),
        ("d", 1004, None),
        ("t", None, None),
    ]
    assert plain[0]["_changed_at"] == datetime(2019, 5, 28, 8, 58, 24, 863123, UTC).replace(tzinfo=None)
    columns = ({"type": "int32", "field": "id"}, {"type": "string", "field": "email"})
    assert decode(spark, decoder(), *(with_schema(one, *columns) for one in events)) == plain
    assert decode(spark, decoder(), None, b"", b"{", b"[]", b'{"id": 1}') == [None] * 5


def test_positions_sort_in_the_order_of_the_changes(spark: SparkSession) -> None:
    in_order = [
        # The second transaction began first and committed last: its position is lower.
        postgres("r", lsn=90, after=ROW),
        postgres("c", lsn=300, committed=100, after=ROW),
        postgres("c", lsn=200, committed=1000, after=ROW),
        postgres("c", lsn=9_000_000_000_000, committed=1001, after=ROW),
    ]
    binlog = [
        mysql("r", file="mysql-bin.000003", pos=154, after=ROW),
        mysql("c", file="mysql-bin.000003", pos=484, after=ROW),
        mysql("c", file="mysql-bin.000003", pos=484, row=2, after=ROW),
        mysql("c", file="mysql-bin.000003", pos=484, row=10, after=ROW),
        mysql("u", file="mysql-bin.000003", pos=1000, after=ROW),
        mysql("u", file="mysql-bin.999999", pos=4, after=ROW),
        mysql("d", file="mysql-bin.1000000", pos=4, before=ROW),
    ]
    lsn = "0000002f:0000{}:0003"
    server = [
        {"commit_lsn": lsn.format("0758"), "change_lsn": None, "event_serial_no": None},
        {"commit_lsn": lsn.format("0758"), "change_lsn": lsn.format("0700"), "event_serial_no": 1},
        {"commit_lsn": lsn.format("0758"), "change_lsn": lsn.format("0700"), "event_serial_no": 2},
        {"commit_lsn": lsn.format("075A"), "change_lsn": lsn.format("0600"), "event_serial_no": 1},
    ]
    servers = [{"op": "r", "after": ROW, "source": {"connector": "sqlserver", **one}} for one in server]
    oracle = [{"op": "u", "after": ROW, "source": {"connector": "oracle", "ts_ms": at}} for at in (999, 1000)]
    for events in (in_order, binlog, servers, oracle):
        found = [row["_position"] for row in decode(spark, decoder(), *events)]
        assert found == sorted(set(found))


def test_numbers_are_read_as_the_schema_part_says(spark: SparkSession) -> None:
    table = (
        "day DATE, seen TIMESTAMP, made TIMESTAMP, exact TIMESTAMP, zoned TIMESTAMP, amount DECIMAL(12, 2), "
        "any DECIMAL(10, 3), plain DECIMAL(5, 1)"
    )
    columns = [
        {"type": "int32", "field": "day", "name": "io.debezium.time.Date"},
        {"type": "int64", "field": "seen", "name": "io.debezium.time.Timestamp"},
        {"type": "int64", "field": "made", "name": "io.debezium.time.MicroTimestamp"},
        {"type": "int64", "field": "exact", "name": "io.debezium.time.NanoTimestamp"},
        {"type": "string", "field": "zoned", "name": "io.debezium.time.ZonedTimestamp"},
        {
            "type": "bytes",
            "field": "amount",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
        {"type": "struct", "field": "any", "name": "io.debezium.data.VariableScaleDecimal"},
        {"type": "string", "field": "plain"},
    ]
    row = {
        "day": 17897,
        "seen": 1546300800123,
        "made": 1546300800123456,
        "exact": 1546300800123456789,
        "zoned": "2019-01-01T01:00:00.5+01:00",
        "amount": encoded(-12345),
        "any": {"scale": 3, "value": encoded(1500)},
        "plain": "1234",
    }
    event = mysql("c", file="mysql-bin.000003", pos=1, after=row)
    found = decode(spark, decoder(table), with_schema(event, *columns))[0]
    start = datetime(2019, 1, 1)
    assert [found[name] for name in row] == [
        date(2019, 1, 1),
        start.replace(microsecond=123000),
        start.replace(microsecond=123456),
        start.replace(microsecond=123456),
        start.replace(microsecond=500000),
        Decimal("-123.45"),
        Decimal("1.500"),
        Decimal("1234.0"),
    ]
    empty = decode(spark, decoder(table), with_schema({**event, "after": dict.fromkeys(row)}, *columns))[0]
    assert [empty[name] for name in row] == [None] * len(row)


def test_decimals_of_38_digits_are_exact(spark: SparkSession) -> None:
    numbers = [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**63) - 1, 10**38 - 1, 1 - 10**38]
    events = [postgres("c", lsn=1, after={"n": encoded(one)}) for one in numbers]
    found = decode(spark, decoder("n DECIMAL(38, 0)", decimals="precise"), *events)
    assert [int(row["n"]) for row in found] == numbers
    too_long = postgres("c", lsn=1, after={"n": encoded(10**40)})
    assert decode(spark, decoder("n DECIMAL(38, 0)", decimals="precise"), too_long) == [None]


def test_a_plan_does_not_repeat_the_expressions_of_columns(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "value BINARY")
    read = decoder("id LONG, at TIMESTAMP, day DATE, amount DECIMAL(12, 2)")
    decoded = rows.select(read.decode(rows["value"]).alias("record"))
    assert len(decoded._jdf.queryExecution().analyzed().toJSON()) < 10_000_000


def test_what_cannot_be_known_is_a_bad_record_with_a_reason(spark: SparkSession) -> None:
    table = "id INT, at TIMESTAMP, amount DECIMAL(10, 2)"
    numbers = postgres("c", lsn=1, after={"id": 1, "at": 1546300800123, "amount": "1234"})
    assert decode(spark, decoder(table), numbers) == [None]
    given = decoder(table, timestamp_unit="millis", decimals="string")
    assert decode(spark, given, numbers)[0]["amount"] == Decimal("1234.00")
    expected = {
        "set timestamp_unit": {"id": 1, "at": 1546300800123},
        "may be base64 or a number": {"id": 1, "amount": "1234"},
        "field `after.id`: expected INT": {"id": "x"},
    }
    for words, row in expected.items():
        assert words in problem(spark, decoder(table), postgres("c", lsn=1, after=row))
    assert "no row in `before`" in problem(spark, decoder(), postgres("d", lsn=1))
    assert 'operation "m"' in problem(spark, decoder(), postgres("m", lsn=1))
    assert "no field `op`" in problem(spark, decoder(), {"id": 1})
    assert "no object `source`" in problem(spark, decoder(), {"op": "c", "after": ROW})


def encoded(number: int) -> str:
    """A number as Java's BigInteger writes it, in base64."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


QUERIES = """
import headrace as hr

@hr.table
def events():
    return hr.read_kafka("TOPIC", format="debezium", schema="id INT, email STRING")

@hr.table
def raw():
    return hr.debezium(hr.read_kafka("TOPIC"), "id INT, email STRING")

@hr.table
def columns():
    row = "STRUCT<id: INT, email: STRING>"
    source = "STRUCT<connector: STRING, ts_ms: LONG, lsn: LONG, sequence: STRING>"
    schema = f"before {row}, after {row}, source {source}, op STRING"
    return hr.debezium(hr.read_kafka("TOPIC", format="json", schema=schema, tombstones="skip"))
"""


def test_a_topic_of_change_events_becomes_rows(
    tmp_path: Path, spark: object, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": bootstrap})
    events = [
        postgres("c", lsn=2, committed=1, after=ROW),
        postgres("d", lsn=3, committed=2, before={"id": 1004}),
        None,
        {"hello": 1},
    ]
    for event in events:
        value = None if event is None else json.dumps(event).encode()
        producer.produce(name, value, b'{"id": 1004}', partition=0)
    assert producer.flush(30) == 0
    site = Site(tmp_path / "site")
    site.write_spec(kafka={"bootstrap.servers": bootstrap})
    site.write(QUERIES.replace("TOPIC", name))
    site.run_well()
    for table in ("events", "raw", "columns"):
        found = sorted(
            (row["_position"][-21:], row["_op"], row["id"], row["email"]) for row in site.rows(table)
        )
        assert found == [
            (".00000000000000000002", "c", 1004, "annek@noanswer.org"),
            (".00000000000000000003", "d", 1004, None),
        ], table
    quarantine = deltalake.DeltaTable(site.root / "lake/quarantine" / site.database / "events")
    (bad,) = quarantine.to_pyarrow_table().to_pylist()
    assert "no field `op`" in bad["reasons"][0]["message"]
    assert site.verify().proven
