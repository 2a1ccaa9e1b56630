"""`headrace infer` on a real broker: the schema file that it writes is one that a flow can read with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StructType

from headrace.cli.main import run
from headrace.contracts.inference import Inference
from headrace.contracts.schema_types import build_type
from headrace.sources.decoders import JsonDecoder

Topic = Callable[..., str]

SPEC = """\
name: shop
storage: ./lake
libraries:
  - glob: {{include: transformations/**}}
kafka:
  bootstrap.servers: {bootstrap}
"""

CODE = """\
import headrace as hr

@hr.table
def orders():
    return hr.read_kafka("{topic}", format="json", schema="schemas/{topic}.json", tombstones="skip")
"""

ORDERS = [
    {"id": 1, "customer": {"name": "ada", "born": "1815-12-10"}, "amount": 3, "at": "2026-11-20T08:14:00Z"},
    {"id": 2**63, "customer": {"name": "alan"}, "amount": 4.25, "at": "2026-11-20 08:14:00.5+01:00"},
    {"id": 3, "lines": [{"sku": "a", "n": 1}, {"sku": None, "gift": True}], "tags": [], "note": None},
    {"id": 4, "code": 7},
    {"id": 5, "code": "seven"},
    {"id": 6, "code": 8},
]


class Shop:
    """A pipeline's folder, and the command line in it."""

    def __init__(self, folder: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._bootstrap = bootstrap
        self._capsys = capsys
        (folder / "transformations").mkdir()
        (folder / "headrace.yml").write_text(SPEC.format(bootstrap=bootstrap))

    def produce(self, topic: str, values: Sequence[bytes | dict[str, Any] | None], **settings: Any) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for value in values:
            producer.produce(topic, json.dumps(value) if isinstance(value, dict) else value, **settings)
        assert producer.flush(30) == 0

    def call(self, *arguments: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        assert run([*arguments, "--json", "--project", str(self.folder)]) == code
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def pipeline(tmp_path: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, bootstrap, capsys)


def test_a_flow_reads_with_the_inferred_schema(spark: SparkSession, pipeline: Shop, topic: Topic) -> None:
    name = topic(partitions=1)
    pipeline.produce(name, [*ORDERS, None, b"{broken", b'{"id": "\xff"}', b"[]"])
    found = pipeline.call("infer", name)
    assert found["ddl"] == (
        "id DECIMAL(19, 0), customer STRUCT<name: STRING, born: DATE>, amount DOUBLE, at TIMESTAMP, "
        "lines ARRAY<STRUCT<sku: STRING, n: LONG, gift: BOOLEAN>>, tags ARRAY<STRING>, "
        "note STRING, code STRING"
    )
    assert (found["records"], found["tombstones"], found["corrupt"]) == (6, 1, 3)
    assert [one["position"] for one in found["corrupt_records"]] == [
        f"{name}/0/{offset}" for offset in (7, 8, 9)
    ]
    (conflict,) = found["conflicts"]
    assert (conflict["field"], conflict["type"]) == ("code", "STRING")
    assert [(one["kind"], one["values"], one["position"], one["value"]) for one in conflict["examples"]] == [
        ("number", 2, f"{name}/0/3", "7"),
        ("string", 1, f"{name}/0/4", '"seven"'),
    ]
    assert [one["field"] for one in found["empty"]] == ["tags[]", "note"]
    assert (found["written"], found["path"]) == (True, f"schemas/{name}.json")

    good = topic()
    pipeline.produce(good, ORDERS)
    (pipeline.folder / found["path"]).rename(pipeline.folder / f"schemas/{good}.json")
    (pipeline.folder / "transformations" / "orders.py").write_text(CODE.format(topic=good))
    assert run(["run", "--project", str(pipeline.folder)]) == 0
    rows = spark.read.format("delta").load(str(pipeline.folder / "lake/tables/default/orders")).orderBy("id")
    columns = [column for column in rows.columns if column != "_source"]
    text = [json.loads(row[0]) for row in rows.select(F.to_json(F.struct(*columns))).collect()]
    assert [row["id"] for row in text] == [1, 3, 4, 5, 6, 2**63]
    assert [row["code"] for row in text[2:5]] == ["7", "seven", "8"]
    assert text[0]["customer"] == {"name": "ada", "born": "1815-12-10"}
    assert [row.get("at") for row in text] == [
        *("2026-11-20T08:14:00.000Z", None, None, None, None),
        "2026-11-20T07:14:00.500Z",
    ]


def test_an_update_merges_what_is_new(pipeline: Shop, topic: Topic) -> None:
    name = topic(partitions=2)
    pipeline.produce(name, [{"id": 1, "amount": 3}])
    pipeline.call("infer", name)
    file = pipeline.folder / f"schemas/{name}.json"
    file.write_text(file.read_text().replace('"long", "nullable": true, "metadata": {}}\n', '"integer"}\n'))
    pipeline.produce(name, [{"id": 2, "amount": 3, "paid": True}])
    before = file.read_text()
    refused = pipeline.call("infer", name, code=2)["error"]
    assert (refused["code"], refused["params"]["changes"]) == ("FILE_EXISTS", ["paid"])
    assert file.read_text() == before
    updated = pipeline.call("infer", name, "--update")
    assert updated["changes"] == [{"field": "paid", "before": None, "after": "BOOLEAN"}]
    assert updated["ddl"] == "id LONG, amount INT, paid BOOLEAN"
    again = pipeline.call("infer", name)
    assert (again["written"], again["changes"]) == (False, [])


def test_a_sample_is_spread_over_all_partitions(pipeline: Shop, topic: Topic) -> None:
    name = topic(partitions=2)
    for partition in (0, 1):
        records = [{"id": one, f"p{partition}_{one // 100}": one} for one in range(1000)]
        pipeline.produce(name, records, partition=partition)
    found = pipeline.call("infer", name, "--sample", "200")
    assert found["records"] == 200
    fields = [one["name"] for one in found["schema"]["fields"]]
    assert set(fields) == {"id", *(f"p{partition}_{part}" for partition in (0, 1) for part in range(10))}


def test_what_cannot_be_inferred_is_refused(pipeline: Shop, topic: Topic) -> None:
    name = topic()
    assert pipeline.call("infer", name, code=2)["error"]["code"] == "SCHEMA_NOT_INFERRED"
    pipeline.produce(name, [b"no json", None])
    error = pipeline.call("infer", name, code=2)["error"]
    assert error["params"] == {"source": name, "corrupt": 1, "tombstones": 1}
    assert "partition 0, offset 0: not valid JSON: expecting value at character 1: no json" in error["facts"]
    assert pipeline.call("infer", f"{name}-no", code=2)["error"]["code"] == "TOPIC_NOT_FOUND"
    assert not (pipeline.folder / "schemas").exists()


TEXTS = [
    *("", "plain", "7", "1.50", "-0", "é", "2026-11-20", "0001-01-01", "9999-12-31", "2024-02-29"),
    *("2026-11-20T08:14:00Z", "2026-11-20 08:14:00.123456+05:45", "1900-01-01T00:00:00-14:59"),
    *("2026-02-29", "2026-11-20T08:14", "2026-11-20T08:14:00.1234567Z", "10000-01-01", "NaN", "true"),
]
NUMBERS = [0, -1, 2**31, -(2**63), 2**63, 10**37, 10**38, 10**60, 0.1, -2.5e-7, 1e22, 1.5e300]


def random_value(chance: random.Random, depth: int) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: chance.choice(NUMBERS),
        lambda: chance.choice(TEXTS),
        lambda: [random_value(chance, depth - 1) for _ in range(chance.randrange(3))],
        lambda: {name: random_value(chance, depth - 1) for name in chance.sample("abcd", 2)},
    ]
    return chance.choice(kinds if depth else kinds[:4])()


def steady_value(chance: random.Random, name: str) -> Any:
    """A value of the one type that a field of this name has."""
    texts = {"date": TEXTS[6:10], "at": TEXTS[10:13], "text": TEXTS, "small": [0, 7, -(2**63)]}
    return chance.choice([None, *texts.get(name, NUMBERS)])


def assert_same(value: Any, kind: Any, decoded: Any) -> None:
    """A decoded value is the value of the record, in the type of the schema."""
    if value is None or kind == "string":
        assert (decoded is None) == (value is None)
    elif isinstance(kind, str):
        match kind:
            case "double":
                assert decoded == float(value)
            case "timestamp":
                assert datetime.fromisoformat(decoded) == aware(value)
            case _:
                assert decoded == value
    elif kind["type"] == "array":
        assert len(decoded) == len(value)
        for one, other in zip(value, decoded, strict=True):
            assert_same(one, kind["elementType"], other)
    else:
        for field in kind["fields"]:
            assert_same(value.get(field["name"]), field["type"], decoded[field["name"]])


def aware(text: str) -> datetime:
    return datetime.fromisoformat(text if text[-1] == "Z" or text[-6] in "+-" else text + "Z")


def test_every_record_is_read_with_the_inferred_schema(spark: SparkSession) -> None:
    """No record is bad, and no value is lost, whatever the records are."""
    for seed in range(12):
        chance = random.Random(seed)
        steady = ("date", "at", "text", "small", "number")
        records = [
            {name: steady_value(chance, name) for name in steady}
            | {name: random_value(chance, 3) for name in chance.sample("uvwxyz", 4)}
            for _ in range(1 + 3 * seed)
        ]
        texts = [json.dumps(record, ensure_ascii=False) for record in records]
        inference = Inference()
        for offset, text in enumerate(texts):
            inference.add_json(text.encode(), ("orders", 0, offset))
        kind = build_type(inference.shape)
        record = JsonDecoder(StructType.fromJson(kind)).decode(F.col("value"))
        options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
        rows = spark.createDataFrame(
            [(number, text) for number, text in enumerate(texts)], "n INT, value STRING"
        )
        found = rows.select("n", F.to_json(record, options)).collect()
        for (number, text), given in zip(found, records, strict=True):
            assert text is not None, (seed, texts[number], kind)
            assert_same(given, kind, json.loads(text))


def test_an_object_with_a_name_twice_is_read_with_the_inferred_schema(spark: SparkSession) -> None:
    """Spark parses each of the values, and keeps the last."""
    for text, expected in (('{"a": 1, "a": 2}', 2), ('{"a": "x", "a": 2}', "2")):
        inference = Inference()
        inference.add_json(text.encode(), ("orders", 0, 0))
        decoder = JsonDecoder(StructType.fromJson(build_type(inference.shape)))
        rows = spark.createDataFrame([(text,)], "value STRING")
        assert rows.select(decoder.decode(F.col("value")).alias("r")).collect()[0].r.a == expected
