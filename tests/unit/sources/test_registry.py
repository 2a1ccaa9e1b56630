"""What every kind of source gives: a JSON form that comes back, and positions as Spark writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import SourceLocation
from headrace.model.names import TableName
from headrace.model.ranges import RecordCoordinates, SourceRange
from headrace.sources.delta.source import DeltaSource
from headrace.sources.files.source import FileSource
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.other.source import OtherSource
from headrace.sources.registry import (
    RECORD,
    describe_record,
    kind_of,
    load_source,
    range_of,
    widest_coordinates,
)
from headrace.sources.source import Source

HERE = SourceLocation("shop.py", 3)
SECRET = {"kafka.sasl.jaas.config": "secret", "password": "secret"}
SOURCES = [
    KafkaSource(index=0, folder=0, location=HERE, topics=("a",), partitions={"a": (0, 2)}, options=SECRET),
    KafkaSource(index=2, folder=1, read=1, location=HERE, pattern="a.*", on_data_loss="record"),
    DeltaSource(index=0, folder=0, location=HERE, path="/up", table=TableName("s", "up"), erasures_only=True),
    DeltaSource(index=1, folder=1, location=HERE, path="/elsewhere", options=SECRET),
    FileSource(index=0, folder=0, location=HERE, path="/in", format="json", options=SECRET),
    OtherSource(index=0, folder=0, location=HERE, format="rate", options=SECRET),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{source.kind} {source.index}")
def test_a_source_comes_back_from_its_json_without_its_secrets(source: Source) -> None:
    text = json.dumps(source.to_json())
    assert "secret" not in text
    assert load_source(json.loads(text), HERE) == replace(source, options={})


def test_the_options_that_choose_files_come_back() -> None:
    options = {"pathGlobFilter": "*.json", "recursiveFileLookup": "true"}
    source = FileSource(index=0, folder=0, location=HERE, path="/in", format="json", options=options)
    assert load_source(source.to_json(), HERE) == source


POSITIONS = [
    ("kafka", '{"a":{"0":1,"2":5,"10":7},"b":{"0":0}}'),
    (
        "delta",
        '{"sourceVersion":1,"reservoirId":"t","reservoirVersion":4,"index":-1,"isStartingVersion":true}',
    ),
    ("files", '{"logOffset":3}'),
    ("other", '{"z":1,"a":[2]}'),
    ("other", "17"),
]


@pytest.mark.parametrize(("kind", "text"), POSITIONS)
def test_a_position_is_written_as_spark_has_written_it(kind: str, text: str) -> None:
    """Spark compares positions as text."""
    position = kind_of(kind).position(json.loads(text))
    assert json.dumps(position.to_json(), separators=(",", ":")) == text
    assert position.continues(position)
    one = SourceRange(0, kind, {"path": "/in"}, position, position, marks={"seen": {"version": 3}})
    assert range_of(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("kind", ["kafka", "delta", "files"])
@pytest.mark.parametrize("value", [7, "text", [], {"a": 1}])
def test_what_is_not_a_position_of_a_kind_is_an_error(kind: str, value: Any) -> None:
    with pytest.raises(ValueError, match="not"):
        kind_of(kind).position(value)


def test_a_kind_that_no_folder_implements_is_an_error() -> None:
    with pytest.raises(ValueError, match="pulsar"):
        kind_of("pulsar")


def test_the_coordinates_of_records_of_topics_and_files() -> None:
    of_topic = {"topic": "orders", "partition": 0, "offset": 7, "path": None}
    assert describe_record(of_topic) == "orders/0 offset 7"
    of_file = {"topic": None, "partition": None, "offset": 3, "path": "file:/a.json"}
    assert describe_record(of_file) == "file:/a.json, row 3"
    assert describe_record({**of_file, "offset": None}) == "file:/a.json"
    assert describe_record({}) == ""


def test_the_fields_of_a_record_in_the_quarantine_keep_their_names_types_and_order() -> None:
    assert list(RECORD.items()) == [
        ("topic", "STRING"),
        ("partition", "INT"),
        ("offset", "BIGINT"),
        ("timestamp", "TIMESTAMP"),
        ("key", "BINARY"),
        ("value", "BINARY"),
        ("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
        ("path", "STRING"),
        ("stream", "STRING"),
        ("shard", "INT"),
        ("record_number", "BIGINT"),
        ("shard_id", "STRING"),
        ("sequence_number", "STRING"),
        ("sub_sequence_number", "BIGINT"),
        ("partition_key", "STRING"),
        ("approximate_arrival_timestamp", "TIMESTAMP"),
    ]


@pytest.mark.parametrize(
    "types",
    [["BIGINT"], ["INT", "BIGINT"], ["STRING", "BIGINT", "INT"], ["STRING"], ["STRING", "STRING", "BIGINT"]],
)
def test_coordinates_have_one_name_then_a_partition_then_a_number(types: list[Any]) -> None:
    with pytest.raises(ValueError, match="then BIGINT"):
        RecordCoordinates.of(**{f"part{n}": type for n, type in enumerate(types)})


def test_the_coordinates_with_the_most_parts_are_chosen_whatever_the_order() -> None:
    short = RecordCoordinates.of(log="STRING", number="BIGINT")
    long = RecordCoordinates.of(log="STRING", shard="INT", number="BIGINT")
    for known in ((short, long), (long, short)):
        assert widest_coordinates(["number", "log", "shard", "value"], known) == long
        assert widest_coordinates(["number", "log"], known) == short
        assert widest_coordinates(["number", "shard"], known) is None
