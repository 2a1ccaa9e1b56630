"""Records in text and JSON, with bytes that are not UTF-8 and values that do not match their fields."""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.cli.main import run
from headrace.errors import HeadraceError
from headrace.run.schedule import RunResult
from headrace.sources.decoders import InvalidUtf8, JsonDecoder
from landing import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TopicFactory = Callable[..., str]

LATIN = b"caf\xe9"
"""`café` in ISO 8859-1, which is not valid UTF-8."""


def errors_of(result: RunResult) -> dict[str, HeadraceError]:
    return {str(error.params["flow"]): error for error in result.errors}


def test_text_and_invalid_utf8_of_topics(
    site: Site, topic: TopicFactory, produce: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    text, records = topic(), topic()
    reads = {
        "strict": f'read_kafka("{text}", format="text", bad_records="stop")',
        "lenient": f'read_kafka("{text}", format="text", invalid_utf8="replace", tombstones="keep")',
        "records": f'read_kafka("{records}", format="json", schema="id LONG", bad_records="stop")',
        "repaired": f'read_kafka("{records}", format="json", schema="name STRING", invalid_utf8="replace")',
    }
    site.write_reads(reads)
    produce(text, "grün\n🚀".encode(), b"")
    produce(records, '{"id": 1, "name": "ü"}'.encode())
    site.run_well()
    (first, second) = sorted(site.rows("strict"), key=lambda row: row["_source"]["offset"])
    assert (first["value"], second["value"]) == ("grün\n🚀", "")
    assert list(first["_source"]) == ["topic", "partition", "offset", "timestamp", "key", "headers"]
    assert site.verify().proven

    produce(text, LATIN, None)
    produce(records, b'{"id": 2, "name": "' + LATIN + b'"}')
    errors = errors_of(site.run())
    assert {flow: error.code for flow, error in errors.items()} == {
        "strict": "RECORD_NOT_UTF8",
        "records": "RECORD_NOT_UTF8",
    }
    assert errors["strict"].params == {"flow": "strict", "topic": text, "partition": 0, "offset": 2}
    assert "byte 0xe9 at position 4" in errors["strict"].summary
    assert "byte 0xe9 at position 23" in errors["records"].summary
    assert len(site.rows("strict")) == 2 and len(site.rows("records")) == 1
    assert sorted(str(row["value"]) for row in site.rows("lenient")) == ["", "None", "caf\ufffd", "grün\n🚀"]
    repaired = {row["name"]: row["_source"]["value"] for row in site.rows("repaired")}
    assert set(repaired) == {"ü", "caf\ufffd"}
    assert repaired["caf\ufffd"].endswith(LATIN + b'"}')
    command = errors["records"].remedies[0].partition("headrace ")[2]
    assert run([*shlex.split(command), "--project", str(site.root)]) == 0
    assert (LATIN + b'"}').hex() in capsys.readouterr().out


def test_a_record_that_does_not_match_is_explained_and_its_command_prints_it(
    site: Site, topic: TopicFactory, produce: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {
        "value": (b'{"id": "x1"}', 'field `id`: expected LONG, got "x1"'),
        "syntax": (b'{"id": 1', "not valid JSON: expecting ',' delimiter at character 9"),
        "twice": (b'{"id": 1} {"id": 2}', "the record has more text after its JSON value, at character 11"),
        "missing": (None, "the record has no value"),
        "long": (b'{"id": "' + b"x" * 9000 + b'"}', "the record does not match the declared schema"),
    }
    topics = {name: topic() for name in bad}
    site.write_reads(
        {
            name: f'read_kafka("{made}", format="json", schema="id LONG", bad_records="stop")'
            for name, made in topics.items()
        }
    )
    for name, (record, _) in bad.items():
        produce(topics[name], b'{"id": 1}', record)
    errors = errors_of(site.run())
    for name, (record, problem) in bad.items():
        error = errors[name]
        assert (error.code, error.params["offset"]) == ("RECORD_UNPARSEABLE", 1), error
        assert f"{problem} (topic {topics[name]}, partition 0, offset 1)" in error.summary
        assert site.rows(name) == []
        command = error.remedies[0].partition("headrace ")[2]
        assert run([*shlex.split(command), "--project", str(site.root)]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert len(printed) == 1 and printed[0].endswith("null" if record is None else record.decode())


def test_text_and_invalid_utf8_of_files(site: Site) -> None:
    text = 'format="text", bad_records="stop", '
    json = 'format="json", schema="name STRING", bad_records="stop", '
    arguments = {
        "strict": text + 'glob="*.txt"',
        "lenient": text + 'glob="*.txt", invalid_utf8="replace"',
        "packed": text + 'glob="*.gz"',
        "records": json + 'glob="*.json"',
        "repaired": json + 'glob="*.json", invalid_utf8="replace"',
        "wrong": 'format="json", schema="id LONG", glob="*.wrong", bad_records="stop"',
        "several": json + 'glob="*.array", options={"multiLine": "true"}',
        "cells": 'format="csv", schema="name STRING", glob="*.csv"',
    }
    site.write_reads({name: f'read_files("landing", {given})' for name, given in arguments.items()})
    (site.landing / "a.txt").write_bytes(b"plain\n" + "grün".encode() + b"\n" + LATIN + b"\n")
    (site.landing / "a.gz").write_bytes(gzip.compress(b"plain\n" + LATIN))
    (site.landing / "a.json").write_bytes(b'{"name": "a"}\n{"name": "' + LATIN + b'"}\n')
    (site.landing / "a file.wrong").write_bytes(b'{"id": 1}\n{"id": "x1"}\n')
    (site.landing / "a.csv").write_bytes(b"a\n" + LATIN + b"\n")
    (site.landing / "a.array").write_bytes(b'[{"name": "a"},\n{"name": "' + LATIN + b'"}]\n')
    errors = errors_of(site.run())
    expected: dict[str, tuple[str, str, int]] = {
        "strict": ("RECORD_NOT_UTF8", "a.txt", 3),
        "packed": ("RECORD_NOT_UTF8", "a.gz", 2),
        "records": ("RECORD_NOT_UTF8", "a.json", 2),
        "wrong": ("RECORD_UNPARSEABLE", "a file.wrong", 2),
    }
    for flow, (code, name, line) in expected.items():
        error = errors.pop(flow)
        path = str(site.landing / name)
        assert (error.code, error.params["path"], error.params["line"]) == (code, path, line)
        assert f"({path}, line {line})" in error.summary
        assert site.rows(flow) == []
        if flow == "wrong":
            assert 'field `id`: expected LONG, got "x1"' in error.summary
            assert f"sed -n 2p '{path}'" in error.remedies[0]
    assert {flow: error.code for flow, error in errors.items()} == {"several": "RECORD_UNPARSEABLE"}
    assert [row["value"] for row in site.rows("lenient")] == ["plain", "grün", "caf\ufffd"]
    assert list(site.rows("lenient")[0]["_source"]) == ["path", "size", "modified"]
    for table in ("repaired", "cells"):
        assert [row["name"] for row in site.rows(table)] == ["a", "caf\ufffd"], table


ONE = [1, None]
"""The row of the record with the id 1."""


@pytest.mark.parametrize("invalid_utf8", ["reject", "replace"])
def test_only_one_whole_json_value_is_a_record(spark: SparkSession, invalid_utf8: InvalidUtf8) -> None:
    """Text after the value is never ignored, and never replaces the record."""
    expected = {
        '{"id": 1}': ONE,
        ' \t{"id": 1}\n ': ONE,
        '{"id": 1, "other": 2}': ONE,
        "{}": [None, None],
        '{"id": 1}}': None,
        '{"id": 1}]}': None,
        '{"id": 1},"x": 5': None,
        '{"id": 1},"_headrace_records": [{"id": 2}]': None,
        'null,"_headrace_records": [{"id": 2}]': None,
        '{"id": 1},{"id": 2}': None,
        '{"id": 1} {"id": 2}': None,
        '[{"id": 1}]': None,
        "null": None,
        "": None,
        '{"id": 1': None,
        '{"id": "x"}': None,
    }
    schema = StructType.fromDDL("id LONG, s STRING")
    rows = spark.createDataFrame([(text,) for text in expected], "value STRING")
    decoder = JsonDecoder(schema, invalid_utf8)
    found = rows.select("value", decoder.decode(F.col("value").cast("binary")).alias("row")).collect()
    assert {row.value: None if row.row is None else list(row.row) for row in found} == expected
