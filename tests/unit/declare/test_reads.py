"""`read_kafka`: what it passes on, and what it refuses before Spark is asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.declare.spec import load_project
from headrace.errors import ArgumentInvalidError, NoActivePipelineError, SpecInvalidError
from headrace.runtime.schema_registry import RegisteredSchema, SchemaRegistry
from headrace.sources.kafka.avro_decoder import AvroDecoder

Write = Callable[..., Path]

RECORD = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def read(root: Path, topic: Any = "orders", **arguments: Any) -> Any:
    with activate(ActivePipeline(load_project(root), lambda: "the session")):
        return hr.read_kafka(topic, **arguments)


def test_the_connection_comes_from_the_profile(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import LongType, StructType

    fields = StructType().add("id", LongType())
    seen: list[Any] = []
    monkeypatch.setattr("headrace.sources.kafka.read.read", lambda *given: seen.append(given))
    read(write({}, "name: a\nkafka: {bootstrap.servers: 'h:1'}\n"), format="json", schema=fields)
    ((session, connection, kafka, _),) = seen
    assert (session, connection.bootstrap_servers, kafka.topics) == ("the session", "h:1", "orders")
    assert (kafka.format, kafka.schema) == ("json", fields)


@pytest.mark.parametrize(("spec", "argument", "limit"), [("", None, 2**23), ("7", None, 7), ("7", 9, 9)])
def test_the_longest_value_is_the_readers_or_the_specs(
    write: Write, monkeypatch: pytest.MonkeyPatch, spec: str, argument: int | None, limit: int
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("headrace.sources.kafka.read.read", lambda *given: seen.append(given))
    setting = f"max_value_bytes: {spec}\n" if spec else ""
    read(write({}, f"name: a\nkafka: {{bootstrap.servers: 'h:1'}}\n{setting}"), max_value_bytes=argument)
    assert seen[0][2].max_value_bytes == limit


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"topic": 5}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "my orders"}, "topic"),
        ({"topic": ["orders", ".."]}, "topic"),
        ({"topic": []}, "topic"),
        ({"topic": None}, "topic"),
        ({"pattern": "a.*"}, "topic"),
        ({"topic": None, "pattern": "a("}, "pattern"),
        ({"topic": None, "pattern": 5}, "pattern"),
        ({"allow_no_match": True}, "allow_no_match"),
        ({"on_data_loss": "ignore"}, "on_data_loss"),
        ({"starting_offsets": {"orders": {0: "middle"}}}, "starting_offsets"),
        ({"starting_offsets": {"orders": 5}}, "starting_offsets"),
        ({"starting_timestamp": "yesterday"}, "starting_timestamp"),
        ({"starting_timestamp": 5}, "starting_timestamp"),
        ({"starting_timestamp": "2020-01-01", "starting_offsets": "latest"}, "starting_timestamp"),
        ({"max_offsets_per_trigger": 0}, "max_offsets_per_trigger"),
        ({"max_offsets_per_trigger": "10"}, "max_offsets_per_trigger"),
        ({"options": {"a": 1}}, "options"),
        ({"format": "xml"}, "format"),
        ({"format": "csv"}, "schema"),
        ({"format": "json", "format_options": {"sep": ";"}}, "format_options"),
        ({"format": "avro"}, "schema"),
        ({"format": "avro", "schema": "no.avsc"}, "schema"),
        ({"format": "avro", "schema_registry": True}, "schema_registry"),
        ({"format": "avro", "schema_registry": "registry:8081"}, "schema_registry"),
        ({"format": "avro", "schema": RECORD, "subject": "orders"}, "subject"),
        ({"format": "json", "schema_registry": "http://registry"}, "schema_registry"),
        ({"topic": None, "pattern": "a.*", "format": "avro", "schema_registry": "http://h"}, "subject"),
        ({"topic": ["a", "b"], "format": "avro", "schema_registry": "http://h"}, "schema"),
        ({"format": "json"}, "schema"),
    ],
)
def test_a_wrong_argument_is_named_with_its_place(
    write: Write, arguments: dict[str, Any], argument: str
) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        read(write({}), **arguments)
    assert caught.value.params["argument"] == argument
    assert caught.value.location is not None
    assert caught.value.location.path == __file__


def test_the_registry_of_the_profile_is_asked_with_its_login(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = (
        "name: a\nkafka:\n  bootstrap.servers: 'h:1'\n  schema.registry.url: https://registry/\n"
        "  schema.registry.basic.auth.user.info: ada:hunter22\n"
    )
    asked: list[Any] = []
    seen: list[Any] = []

    def load_versions(registry: SchemaRegistry, subject: str) -> tuple[RegisteredSchema, ...]:
        asked.append((registry, subject))
        return (RegisteredSchema(3, '"long"'), RegisteredSchema(7, RECORD))

    monkeypatch.setattr(SchemaRegistry, "load_versions", load_versions)
    monkeypatch.setattr("headrace.sources.kafka.read.read", lambda *given: seen.append(given))
    settings = load_project(write({}, spec))
    with activate(ActivePipeline(settings, lambda: None)):
        hr.read_kafka("orders", format="avro")
        hr.read_kafka("orders", format="avro", schema=RECORD)
        hr.read_kafka(pattern="o.*", format="avro", schema=RECORD, schema_registry=True, subject="all")
    registry = SchemaRegistry("https://registry", "ada:hunter22")
    assert asked == [(registry, "orders-value"), (registry, "all")]
    resolved = AvroDecoder(RECORD, {3: '"long"', 7: RECORD})
    assert [kafka.avro for _, _, kafka, *_ in seen] == [resolved, AvroDecoder(RECORD), resolved]
    assert settings.redactor("the password is hunter22") == "the password is ***"
    assert not [key for key in settings.kafka.for_spark() if "registry" in key]


def test_a_profile_without_a_broker_is_told_so(write: Write) -> None:
    root = write({}, "name: a\nprofiles: {prod: {}}\n")
    active = ActivePipeline(load_project(root, profile="prod"), lambda: None)
    with pytest.raises(SpecInvalidError), activate(active):
        hr.read_kafka("orders")


def test_outside_of_a_pipeline_it_says_so() -> None:
    with pytest.raises(NoActivePipelineError):
        hr.read_kafka("orders")


@pytest.mark.parametrize(
    ("call", "arguments", "argument"),
    [
        (hr.read_changes, {"images": "pre"}, "images"),
        (hr.read_changes, {"starting_version": -1}, "starting_version"),
        (hr.read_changes, {"starting_version": "first"}, "starting_version"),
        (
            hr.read_table_stream,
            {"starting_version": 1, "starting_timestamp": "2026-01-01"},
            "starting_timestamp",
        ),
        (hr.read_table_stream, {"starting_timestamp": "yesterday"}, "starting_timestamp"),
        (hr.read_table_stream, {"max_files_per_trigger": 0}, "max_files_per_trigger"),
        (hr.read_table_stream, {"max_bytes_per_trigger": "1g"}, "max_bytes_per_trigger"),
    ],
)
def test_a_wrong_argument_of_a_table_s_stream_is_named(
    write: Write, call: Callable[..., Any], arguments: dict[str, Any], argument: str
) -> None:
    active = ActivePipeline(load_project(write({})), lambda: "the session")  # type: ignore[arg-type, return-value]
    with activate(active), pytest.raises(ArgumentInvalidError) as caught:
        call("orders", **arguments)
    assert caught.value.params["argument"] == argument


class Reader:
    """A stream reader that notes what is asked of it."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    @property
    def readStream(self) -> Reader:
        return self

    def options(self, **options: str) -> Reader:
        self.seen |= options
        return self

    def format(self, format: str) -> Reader:
        return self

    def table(self, name: str) -> str:
        return name

    load = table


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {}),
        ({"starting_version": "latest"}, {"startingVersion": "latest"}),
        (
            {"starting_version": 3, "max_files_per_trigger": 5, "max_bytes_per_trigger": 9},
            {"startingVersion": "3", "maxFilesPerTrigger": "5", "maxBytesPerTrigger": "9"},
        ),
        ({"starting_timestamp": "2026-01-01T01:00:00+01:00"}, {"startingTimestamp": "2026-01-01T00:00:00Z"}),
        ({"starting_timestamp": datetime(2026, 1, 1, 2)}, {"startingTimestamp": "2026-01-01T02:00:00Z"}),
    ],
)
def test_a_table_s_stream_starts_and_is_limited_as_asked(
    write: Write, arguments: dict[str, Any], expected: dict[str, str]
) -> None:
    reader = Reader()
    with activate(ActivePipeline(load_project(write({})), lambda: reader)):  # type: ignore[arg-type, return-value]
        assert [hr.read_table_stream(name, **arguments) for name in ("orders", "/data/x")] == [
            "orders",
            "/data/x",
        ]  # type: ignore[comparison-overlap]
        assert reader.seen == expected
        hr.read_changes("orders", images="all", **{k: v for k, v in arguments.items() if "max" not in k})
    assert reader.seen == {**expected, "readChangeFeed": "true"}
