"""The statements of `headrace sql`: each form, and each form that is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import FeatureUnsupportedError, HeadraceError, SourceLocation, SqlInvalidError
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import (
    CreateScan,
    CreateStream,
    CreateTable,
    OnDefinition,
    ShowStreams,
    parse_stream_statement,
)
from headrace.syntax.tokens import Cursor

MERGE = "MERGE INTO t USING (SELECT id, op FROM s) AS c ON t.id = c.id"
UPSERT = "WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED THEN INSERT *"


def parse(text: str) -> Any:
    return parse_stream_statement(Cursor(SqlText(text, SourceLocation("job.sql", 1, 1))))


def test_a_kafka_table_has_its_options_with_dots_and_without_equals_signs() -> None:
    table = parse(
        "CREATE TABLE IF NOT EXISTS k USING kafka OPTIONS (kafka.bootstrap.servers 'h:1', subscribe 's')"
    )
    assert isinstance(table, CreateTable)
    assert (table.name, table.is_kafka, table.if_not_exists) == (("k",), True, True)
    assert table.options == {"kafka.bootstrap.servers": "h:1", "subscribe": "s"}


def test_a_delta_table_has_its_columns_and_its_folder() -> None:
    table = parse(
        "CREATE TABLE b.t (id LONG, d DATE) USING delta LOCATION '/x' PARTITIONED BY (d) COMMENT 'c'"
    )
    assert (table.name, table.columns, table.path) == (("b", "t"), "id LONG, d DATE", "/x")
    assert (table.partition_cols, table.comment) == (("d",), "c")


def test_a_scan_names_its_table_and_whether_it_streams() -> None:
    scan = parse(
        "CREATE SCAN s ON k USING STREAM OPTIONS (startingOffsets 'earliest', maxOffsetsPerTrigger 5)"
    )
    assert isinstance(scan, CreateScan)
    assert (scan.name, scan.table, scan.streaming) == ("s", ("k",), True)
    assert scan.options == {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5"}
    assert not parse("CREATE SCAN s ON k USING BATCH").streaming


def test_a_stream_has_options_a_target_and_a_query() -> None:
    text = "CREATE STREAM j OPTIONS (triggerType 'Once')\nINSERT INTO t (a, b) SELECT x, y FROM s"
    stream = parse(text)
    assert isinstance(stream, CreateStream)
    assert (stream.name, stream.target, stream.columns) == ("j", ("t",), ("a", "b"))
    assert stream.query.rest == "SELECT x, y FROM s"
    assert stream.target_location == SourceLocation("job.sql", 2, 13, 1)
    assert parse("INSERT INTO t (SELECT 1 FROM s)").columns == ()
    assert parse("INSERT INTO t BY NAME SELECT 1 AS a FROM s").by_name


def test_streams_are_shown_described_stopped_and_dropped() -> None:
    assert parse("SHOW STREAMS") == ShowStreams()
    for verb in ("DESCRIBE", "STOP", "DROP"):
        found = parse(f"{verb} STREAM j")
        assert isinstance(found, OnDefinition)
        assert (found.verb, found.kind, found.name) == (verb, "stream", ("j",))
    assert parse("DROP SCAN IF EXISTS s").if_exists
    assert parse("SELECT 1") is None
    assert parse("DESCRIBE t") is None


@pytest.mark.parametrize(
    "delete",
    [
        "",
        "WHEN MATCHED AND c.op = 'd' THEN DELETE",
        "WHEN MATCHED AND (c.op = 'd' OR c.op = 'x') THEN DELETE",
    ],
)
def test_a_merge_by_equal_keys_is_an_upsert(delete: str) -> None:
    stream = parse(f"CREATE STREAM j {MERGE} {delete} {UPSERT}")
    assert stream.merge.keys == ("id",)
    assert ("op = 'd'" in (stream.merge.deletes or "")) == bool(delete)
    assert "c." not in (stream.merge.deletes or "")
    assert stream.query.rest == "SELECT id, op FROM s"


@pytest.mark.parametrize("insert", ["c.op <> 'd'", "c.op != 'd'", "NOT c.op = 'd'", "NOT (c.op = 'd')"])
def test_an_insert_may_exclude_the_records_that_delete(insert: str) -> None:
    clauses = "WHEN MATCHED AND c.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED"
    assert parse(f"{MERGE} {clauses} AND {insert} THEN INSERT *").merge.deletes == "op = 'd'"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (MERGE.replace("t.id = c.id", "t.id > c.id") + f" {UPSERT}", "equal columns"),
        (MERGE.replace("t.id = c.id", "t.id = c.op") + f" {UPSERT}", "equal columns"),
        (MERGE.replace("t.id = c.id", "t.id = c.id OR t.x = c.x") + f" {UPSERT}", "equal columns"),
        (f"{MERGE} WHEN MATCHED THEN UPDATE *", "WHEN NOT MATCHED THEN INSERT"),
        (f"{MERGE} WHEN NOT MATCHED THEN INSERT *", "WHEN MATCHED THEN UPDATE"),
        (f"{MERGE} WHEN MATCHED THEN DELETE {UPSERT}", "DELETE without a condition"),
        (f"{MERGE} WHEN MATCHED AND t.x = 1 THEN DELETE {UPSERT}", "column of the target"),
        (f"{MERGE} {UPSERT} WHEN NOT MATCHED BY SOURCE THEN DELETE", "BY SOURCE"),
        (f"{MERGE} WHEN MATCHED THEN UPDATE SET t.a = c.a", "UPDATE of single columns"),
        (f"{MERGE} WHEN MATCHED AND c.a > 1 THEN UPDATE *", "UPDATE with a condition"),
        (
            f"{MERGE} WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED THEN INSERT (id) VALUES (1)",
            "single columns",
        ),
        (
            f"{MERGE} WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED AND c.a > 1 THEN INSERT *",
            "with a condition",
        ),
        ("CREATE TABLE t USING json OPTIONS (path 'x')", "USING json"),
        ("CREATE TABLE t AS SELECT 1", "CREATE TABLE .. AS"),
        ("CREATE TABLE k (a INT) USING kafka OPTIONS (subscribe 's')", "of a Kafka table"),
        ("INSERT OVERWRITE t SELECT 1 FROM s", "INSERT OVERWRITE"),
        ("INSERT INTO t VALUES (1)", "VALUES"),
    ],
)
def test_other_forms_are_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(FeatureUnsupportedError) as caught:
        parse(text)
    assert what in caught.value.summary
    assert caught.value.location is not None


@pytest.mark.parametrize(
    "text",
    [
        "CREATE SCAN s ON k USING",
        "CREATE SCAN a.s ON k USING STREAM",
        "CREATE STREAM j SELECT 1",
        "STOP STREAM",
        "SHOW STREAMS x",
        "CREATE STREAM j INSERT INTO t",
    ],
)
def test_what_is_not_complete_is_an_error_with_its_column(text: str) -> None:
    with pytest.raises(SqlInvalidError) as caught:
        parse(text)
    assert isinstance(caught.value, HeadraceError)
    assert caught.value.location is not None
    assert caught.value.location.column is not None
