"""Records in CSV, and in Avro with and without a schema registry."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import deltalake
import pytest
from pyspark.sql.types import StructType

from headrace.errors import HeadraceError
from headrace.model.declarations import Drift
from headrace.model.event_forms import Event
from headrace.model.events import FlowRetrying
from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.runtime import schema_registry
from headrace.sinks.outside.kafka.avro import AvroValues
from headrace.sinks.target import SinkSpec
from headrace.sources.decoders import CsvDecoder, JsonDecoder, build_csv_decoder
from headrace.sources.json_drift import DriftingJsonDecoder
from headrace.sources.kafka.avro_decoder import AvroDecoder
from headrace.sources.kafka.debezium import DebeziumDecoder
from landing import Site
from registry_server import RegistryServer
from topic_reader import newest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TopicFactory = Callable[..., str]
Produce = Callable[..., None]

ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9}
NOTE = {"name": "note", "type": "string", "default": "none"}


def avro(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def encoded(*values: int | str | None) -> bytes:
    """Avro's encoding of small numbers, of strings, and of a union of null and string for None."""
    parts = []
    for value in values:
        match value:
            case None:
                parts.append(b"\x00")
            case int():
                parts.append(bytes([2 * value]))
            case str():
                parts.append(bytes([2 * len(value)]) + value.encode())
    return b"".join(parts)


def wire(number: int, *values: int | str | None) -> bytes:
    return b"\x00" + number.to_bytes(4, "big") + encoded(*values)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    server = RegistryServer(tmp_path_factory.mktemp("registry"))
    server.start()
    yield server
    server.stop()


def decoded(spark: SparkSession, decoder: Any, values: list[bytes | None]) -> list[Any]:
    rows = spark.createDataFrame([(value,) for value in values], "value BINARY")
    record = decoder.decode(rows["value"]).alias("record")
    return [None if row[0] is None else list(row[0]) for row in rows.select(record).collect()]


def test_a_csv_record_is_one_whole_row_of_the_schema(spark: SparkSession) -> None:
    expected = {
        b"1,ada,2.50": [1, "ada", "2.50"],
        b'1,"a, ""b""\nc",': [1, 'a, "b"\nc', None],
        b"1,ada,2.5\r\n": [1, "ada", "2.50"],
        b",,": [None, None, None],
        b"1,ada": None,
        b"1,ada,2.5,4": None,
        b"1,ada,2.5\n2,bob,3": None,
        b"1,ada,2.5\n\n": None,
        b'1,"ada,2.5': None,
        b"x,ada,2.5": None,
        b"1,ada,99999999.5": None,
        b"1,\xff,2.5": None,
        b"": None,
    }
    schema = StructType.fromDDL("id INT, name STRING, amount DECIMAL(6, 2)")
    found = decoded(spark, CsvDecoder(schema), [*expected, None])
    shown = [one and [one[0], one[1], None if one[2] is None else str(one[2])] for one in found]
    assert shown == [*expected.values(), None]
    tabs = build_csv_decoder("read_kafka", schema, "replace", {"sep": "\\t", "nullValue": "-"})
    assert decoded(spark, tabs, [b"7\t\xff\t-"]) == [[7, "\ufffd", None]]


def test_avro_records_of_all_versions_are_resolved(spark: SparkSession) -> None:
    old, new = avro(ID, NAME), avro(ID, NOTE, NAME)
    decoder = AvroDecoder(new, {3: old, **dict.fromkeys(range(300, 400), old), 260: new})
    values: list[bytes | None] = [
        wire(3, 1, None),
        wire(260, 2, "x", None),
        wire(260, 2, "x", None) + b"more",
        wire(3, 1),
        wire(3),
        b"\x00\x00",
        b'{"id": 1}',
        b"",
        None,
    ]
    values += [wire(260, 5, "ok") + b"\x02\x02\xff", wire(260, 6) + b"\x02\xff\x00"]
    bad = [None] * 9
    assert decoded(spark, decoder, values) == [[1, "none", None], [2, "x", None], *bad]
    nested = avro(
        ID,
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "names", "type": {"type": "map", "values": {**json.loads(old), "name": "Inner"}}},
    )
    tags, names = b"\x02\x02a\x00", b"\x02\x02k" + encoded(1, None) + b"\x00"
    good, *wrong = decoded(
        spark,
        AvroDecoder(nested),
        [
            encoded(1) + tags + names,
            encoded(1) + tags.replace(b"a", b"\xff") + names,
            encoded(1) + tags + names.replace(b"k", b"\xff"),
        ],
    )
    assert good[:2] == [1, ["a"]] and wrong == [None, None]
    assert decoded(spark, AvroDecoder(old), [encoded(5, None), b"\x01", None]) == [[5, None], None, None]


def test_an_avro_record_whose_decimals_have_another_scale_is_bad(spark: SparkSession) -> None:
    """Avro itself would give 0.150 for 1.50."""
    cents, mills = (avro(ID, {"name": "amount", "type": {**DECIMAL, "scale": scale}}) for scale in (2, 3))
    values: list[bytes | None] = [wire(3, 1) + b"\x04\x00\x96", wire(4, 1) + b"\x04\x00\x96"]
    found = decoded(spark, AvroDecoder(cents, {3: cents, 4: mills}), values)
    assert [one and str(one[1]) for one in found] == ["1.50", None]


def test_flows_read_csv_and_plain_avro(site: Site, topic: TopicFactory, produce: Produce) -> None:
    rows, records = topic(), topic()
    (site.root / "order.avsc").write_text(avro(ID, NAME))
    csv = f'read_kafka("{rows}", format="csv", schema="id LONG, name STRING", format_options={{"sep": ";"}})'
    plain = f'read_kafka("{records}", format="avro", schema="order.avsc")'
    site.write_reads({"rows": csv, "records": plain})
    produce(rows, b'1;"a;b"', b"2;", b"3")
    produce(records, encoded(1, None), encoded(2, None), b"")
    site.run_well()
    assert [(row["id"], row["name"]) for row in site.rows("rows")] == [(1, "a;b"), (2, None)]
    assert [row["id"] for row in site.rows("records")] == [1, 2]
    assert site.rows("records")[0]["_source"]["value"] == encoded(1, None)
    quarantine = deltalake.DeltaTable(site.root / "lake/quarantine" / site.database / "rows")
    (bad,) = quarantine.to_pyarrow_table().to_pylist()
    assert (bad["source"]["value"], bad["reasons"][0]["name"]) == (b"3", "RECORD_UNPARSEABLE")
    assert bad["reasons"][0]["message"] == CsvDecoder.mismatch
    assert site.verify().proven


def test_a_new_version_that_appears_while_the_flow_runs(
    site: Site,
    topic: TopicFactory,
    produce: Produce,
    registry: RegistryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unknown id, and then a registry that is down, are transient; the table gets the new column."""
    name = topic()
    first = registry.register(f"{name}-value", avro(ID))
    site.write_reads({"orders": f'read_kafka("{name}", format="avro", schema_registry="{registry.url}")'})
    produce(name, wire(first, 1), wire(first, 2))
    site.run_well()
    assert [row["id"] for row in site.rows("orders")] == [1, 2]

    second = registry.register(f"{name}-other", avro(ID, NOTE))
    produce(name, wire(first, 3), wire(second, 4, "new"))
    retries: list[str] = []

    def refuse(*_: Any, **__: Any) -> Any:
        raise URLError(ConnectionRefusedError("the registry is down"))

    def emit(event: Event) -> None:
        if isinstance(event, FlowRetrying):
            retries.append(event.error["code"])
            if len(retries) == 1:
                monkeypatch.setattr(schema_registry, "urlopen", refuse)
            else:
                monkeypatch.undo()
                assert registry.register(f"{name}-value", avro(ID, NOTE)) == second

    with Pipeline.load(site.root) as pipeline:
        result = pipeline.run(emit=emit)
    assert result.outcome == "completed"
    assert retries == ["SCHEMA_ID_UNKNOWN", "SCHEMA_REGISTRY_UNREACHABLE"]
    assert sorted((row["id"], row["note"]) for row in site.rows("orders")) == [
        *((1, None), (2, None), (3, "none"), (4, "new"))
    ]
    assert site.verify().proven

    # A run that starts asks again, too.
    answers = [refuse]
    ask = schema_registry.urlopen
    monkeypatch.setattr(
        schema_registry, "urlopen", lambda *given, **how: (answers.pop() if answers else ask)(*given, **how)
    )
    produce(name, wire(second, 5, "later"))
    site.run_well()
    assert (answers, len(site.rows("orders"))) == ([], 5)


SENT = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, name STRING, n INT")

hr.create_streaming_table("customers")
hr.create_auto_cdc_flow("customers", "changes", ["id"], "at", apply_as_deletes="op = 'delete'",
                        except_column_list=["op"])
hr.create_sink("sent", "kafka", {"topic": "TOPIC", "format": "avro", "keys": "id"})

@hr.append_flow(target="sent")
def send():
    rows = hr.read_changes("customers", images="all")
    more = ("CAST(n AS DECIMAL(9, 2)) AS d", "timestamp_seconds(at) AS t", "array(named_struct('n', n)) AS p")
    return rows.selectExpr("id", "name", "_change_type", "_commit_version", *more)
"""
READ = """
import headrace as hr

@hr.table
def got():
    return hr.read_kafka("TOPIC", format="avro").where("id IS NOT NULL")
"""


def test_rows_of_a_feed_are_sent_as_avro_and_read_back(
    site: Site, topic: TopicFactory, registry: RegistryServer, bootstrap: str, spark: SparkSession
) -> None:
    name = topic()
    site.write_spec(kafka={"bootstrap.servers": bootstrap, "schema.registry.url": registry.url})
    site.write(SENT.replace("TOPIC", name))
    site.put(
        "a.json", *({"id": one, "at": one, "op": "u", "name": f"n{one}", "n": one} for one in range(1, 5))
    )
    site.run_well()
    site.put("b.json", {"id": 2, "at": 9, "op": "delete"}, {"id": 1, "at": 9, "op": "u", "n": None})
    site.run_well()
    assert set(newest(bootstrap, name)) == {b"1", b"3", b"4"}
    # A column comes, and the rule of the registry takes the schema.
    registry.restrict(f"{name}-value", "FULL_TRANSITIVE")
    site.write(SENT.replace("TOPIC", name).replace('"name",', '"name", "upper(name) AS big",'))
    site.put("c.json", {"id": 5, "at": 9, "op": "u", "name": "e", "n": 5})
    site.run_well()
    assert site.verify().proven
    # A column with another type does not.
    site.write(SENT.replace("TOPIC", name).replace('"name",', '"length(name) AS name",'))
    site.put("d.json", {"id": 6, "at": 9, "op": "u", "name": "f", "n": 6})
    assert site.error().code == "SCHEMA_SUBJECT_INVALID"
    site.write(SENT.replace("TOPIC", name).replace('"name",', '"name", "upper(name) AS big",'))
    site.run_well()
    site.write(READ.replace("TOPIC", name))
    site.run_well()
    got = {row["id"]: row for row in site.rows("got")}
    assert [(got[key]["name"], got[key]["big"]) for key in (3, 5, 6)] == [
        ("n3", None),
        ("e", "E"),
        ("f", "F"),
    ]
    assert str(got[3]["d"]) == "3.00" and got[3]["p"] == [{"n": 3}]
    assert got[3]["t"].timestamp() == 3


def test_the_id_of_a_schema_is_asked_for_in_each_batch(
    spark: SparkSession, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that was set up again can give an id to another schema."""
    options = {"topic": "wiped", "format": "avro", "schema_registry": registry.url}
    rows = spark.sql("SELECT 7 AS id, NULL AS nothing")
    spec = SinkSpec(name=TableName("a", "sent"), options=options, schema=rows.schema.jsonValue())
    values = AvroValues(spec, "wiped", rows.columns)

    def sent(rows: DataFrame) -> tuple[int, bytes]:
        value = bytes(rows.select(values.column(rows, rows.columns)).first()[0])
        return int.from_bytes(value[:5], "big"), value[5:]

    first = registry.register("wiped-value", values._schema(rows))
    assert sent(rows) == (first, b"\x02\x0e")
    monkeypatch.setattr(schema_registry, "urlopen", lambda *_, **__: BytesIO(b'{"id": 70000}'))
    assert sent(rows) == (70000, b"\x02\x0e")

    def refuse(*_: Any, **__: Any) -> Any:
        raise URLError(ConnectionRefusedError("the registry is down"))

    monkeypatch.setattr(schema_registry, "urlopen", refuse)
    # A known schema does not wait for the registry; a new one does.
    assert sent(rows) == (70000, b"\x02\x0e")
    with pytest.raises(HeadraceError) as caught:
        sent(rows.select("id"))
    assert caught.value.code == "SCHEMA_REGISTRY_UNREACHABLE"


def test_what_the_registry_cannot_give_is_refused(site: Site, registry: RegistryServer) -> None:
    registry.register(
        "texts", json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}), "JSON"
    )
    registry.register("numbers", '"long"')
    read = f'"orders", format="avro", schema_registry="{registry.url}"'
    for subject, code in (
        ("", "SUBJECT_NOT_FOUND"),
        (', subject="texts"', "SCHEMA_SUBJECT_INVALID"),
        (', subject="numbers"', "SCHEMA_INVALID"),
    ):
        site.write_reads({"orders": f"read_kafka({read}{subject})"})
        with Pipeline.load(site.root) as pipeline, pytest.raises(HeadraceError) as caught:
            pipeline.plan()
        assert caught.value.code == code


DECIMALS = {
    "1.5": "1.50",
    "1.500": "1.50",
    "-0.25": "-0.25",
    "2e1": "20.00",
    "5e-2": "0.05",
    '"7.25"': "7.25",
    "null": None,
    "0.001": "bad",
    "9999.995": "bad",
    "1e-3": "bad",
    "1.5e-40": "bad",
    f"1.5{'0' * 60}": "1.50",
    f"0.{'0' * 60}1": "bad",
    r'"\u0030.001"': "bad",
    "12345.5": "bad",
    '"1.5 "': "bad",
    '""': "bad",
    "true": "bad",
    "[1]": "bad",
}
"""What records have for a DECIMAL(6, 2), and what is read."""


def shown(found: Any, *path: str | int) -> Any:
    for step in path:
        found = None if found is None else found[step]
    return None if found is None else str(found)


def test_a_decimal_of_a_record_is_never_rounded(spark: SparkSession) -> None:
    """A fraction that does not fit makes a bad record, as 1.5 does for LONG; at every depth."""
    kind = "DECIMAL(6, 2)"
    schemas = {
        "{}": (f"a {kind}", ("a",)),
        '{{"b": {}}}': (f"a STRUCT<b: {kind}>", ("a", "b")),
        "[{}]": (f"a ARRAY<{kind}>", ("a", 0)),
        '[{{"b": {{"k": {}}}}}]': (f"a ARRAY<STRUCT<b: MAP<STRING, {kind}>>>", ("a", 0, "b", "k")),
    }
    for around, (schema, path) in schemas.items():
        decoder = JsonDecoder(StructType.fromDDL(schema))
        values = [f'{{"a": {around.format(text)}}}'.encode() for text in DECIMALS]
        rows = spark.createDataFrame([(value,) for value in values], "value BINARY")
        found = [row[0] for row in rows.select(decoder.decode(rows["value"])).collect()]
        read = ["bad" if one is None else shown(one, *path) for one in found]
        assert dict(zip(DECIMALS, read, strict=True)) == DECIMALS, around


def test_a_decimal_of_38_digits_is_exact(spark: SparkSession) -> None:
    digits = "12345678901234567890123456789012345678"
    decoder = JsonDecoder(StructType.fromDDL("a DECIMAL(38, 0), b DECIMAL(38, 18)"))
    good = f'{{"a": {digits}, "b": 1{digits[:18]}.{digits[:18]}}}'.encode()
    bad = [b'{"a": 1.5}', f'{{"b": 1.{digits[:19]}}}'.encode(), f'{{"a": {digits}9}}'.encode()]
    first, *others = decoded(spark, decoder, [good, *bad])
    assert [str(one) for one in first] == [digits, f"1{digits[:18]}.{digits[:18]}"]
    assert others == [None, None, None]


def test_a_decimal_of_a_csv_record_is_never_rounded(spark: SparkSession) -> None:
    decoder = CsvDecoder(StructType.fromDDL("id INT, amount DECIMAL(6, 2)"))
    values: list[bytes | None] = [b"1,2.5", b"2,2.500", b"3,0.001", b"4,", b"5,1e-3", b"6,1e1"]
    found = [one and shown(one, 1) for one in decoded(spark, decoder, values)]
    assert found == ["2.50", "2.50", None, None, None, "10.00"]
    assert decoded(spark, decoder, [b"4,", b"5,1e-3"]) == [[4, None], None]


def test_a_decimal_that_does_not_fit_is_rescued_whole(spark: SparkSession) -> None:
    schema = StructType.fromDDL("id INT, amount DECIMAL(6, 2)")
    decoder = DriftingJsonDecoder(schema, drift=Drift(default="rescue"))
    values: list[bytes | None] = [b'{"id": 1, "amount": 0.001}', b'{"id": 2, "amount": 0.10}']
    found = decoded(spark, decoder, values)
    assert found[0] == [1, None, '{"amount":0.001}']
    assert (shown(found[1], 1), found[1][2]) == ("0.10", None)


def test_a_decimal_of_a_change_event_is_never_rounded(spark: SparkSession) -> None:
    schema = StructType.fromDDL("id INT, balance DECIMAL(6, 2)")
    texts = ["1.5", "1.501", '"1.50"', '"1.501"']
    values: list[bytes | None] = [
        f'{{"before": null, "after": {{"id": 1, "balance": {text}}}, "source": {{}}, "op": "c"}}'.encode()
        for text in texts
    ]
    found = decoded(spark, DebeziumDecoder(schema, decimals="string"), values)
    assert [one and shown(one, 1) for one in found] == ["1.50", None, "1.50", None]
    # 1.501 in bytes, with the scale 3 in the schema part.
    encoded_bytes = base64.b64encode((1501).to_bytes(2, "big")).decode()
    part = {
        "fields": [
            {
                "field": "after",
                "fields": [
                    {
                        "field": "balance",
                        "name": "org.apache.kafka.connect.data.Decimal",
                        "parameters": {"scale": "3"},
                    }
                ],
            }
        ]
    }
    event = {"before": None, "after": {"id": 1, "balance": encoded_bytes}, "source": {}, "op": "c"}
    whole = json.dumps({"schema": part, "payload": event}).encode()
    assert decoded(spark, DebeziumDecoder(schema), [whole]) == [None]
