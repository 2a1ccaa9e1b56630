"""What `headrace sql` writes to the SQL files of its pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import SourceLocation, SqlInvalidError
from headrace.model.names import TableName
from headrace.shell.stream_sql import (
    FlowSql,
    build_flow,
    build_scan,
    build_table,
    read_options,
    table_columns,
)
from headrace.syntax.sql import SqlText
from headrace.syntax.statements import parse_statement
from headrace.syntax.stream_statements import parse_stream_statement
from headrace.syntax.tokens import Cursor, split_statements

SALES = TableName("default", "sales")


def parse(text: str) -> Any:
    return parse_stream_statement(Cursor(SqlText(text, SourceLocation("job.sql", 3, 5))))


def flow(text: str, *columns: str) -> FlowSql:
    made = build_flow("job", parse(text), SALES, columns, {"scan": True})
    for start, stop in split_statements(made.text):
        # The files are read by the parser of SQL files.
        parse_statement(Cursor(SqlText(made.text[start:stop], SourceLocation("job.sql", 1, 1))))
    return made


def test_rows_are_inserted_by_the_places_of_their_columns() -> None:
    text = "CREATE STREAM job OPTIONS (triggerInterval '3 seconds')\nINSERT INTO sales SELECT a, b FROM scan"
    assert flow(text, "id", "name").text == (
        "SET pipelines.trigger.interval = 3 seconds;\n"
        "CREATE FLOW `job` AS INSERT INTO `default`.`sales` BY NAME\n"
        "SELECT * FROM (\nSELECT a, b FROM STREAM scan\n) AS headrace_rows(`id`, `name`);\n"
    )
    assert "headrace_rows" not in flow("INSERT INTO sales BY NAME SELECT a FROM scan", "id").text


def test_an_error_in_the_file_has_its_location_in_the_statement() -> None:
    made = flow("CREATE STREAM job INSERT INTO sales\nSELECT x FROM scan\nWHERE wrong > 1", "id")
    line = made.text.splitlines().index("WHERE wrong > 1") + 1
    assert made.original(SourceLocation("f.sql", line, 7, 5)) == SourceLocation("job.sql", 5, 7, 5)
    # Behind the word STREAM, which the statement does not have.
    assert made.original(SourceLocation("f.sql", line - 1, 22, 4)) == SourceLocation("job.sql", 4, 15, 4)
    assert made.original(SourceLocation("f.sql", 1, 1, 4)) is None


def test_the_changes_of_a_merge_are_ordered_by_partition_and_offset() -> None:
    made = flow(
        "MERGE INTO sales t USING (SELECT c.id, c.op FROM (SELECT from_json(v, 'id INT') c FROM scan)) s "
        "ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert made.text == (
        "CREATE FLOW `job` AS AUTO CDC INTO `default`.`sales`\nFROM (\n"
        "SELECT c.id, c.op, _headrace_position FROM (SELECT from_json(v, 'id INT') c, "
        "struct(partition, offset) AS _headrace_position FROM STREAM scan)\n)\n"
        "KEYS (`id`)\nAPPLY AS DELETE WHEN op = 'd'\nSEQUENCE BY _headrace_position\n"
        "COLUMNS * EXCEPT (_headrace_position);\n"
    )
    assert (
        "SEQUENCE BY at\nCOLUMNS (`id`)"
        in flow(
            "CREATE STREAM job OPTIONS (sequenceBy 'at') MERGE INTO sales t USING scan s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED THEN INSERT *",
            "id",
        ).text
    )


@pytest.mark.parametrize(
    "source",
    ["SELECT id, max(x) x FROM scan GROUP BY id", "SELECT DISTINCT id FROM scan", "SELECT id FROM other"],
)
def test_a_merge_without_a_known_order_is_refused(source: str) -> None:
    text = f"MERGE INTO sales t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE * "
    with pytest.raises(SqlInvalidError, match="order of the changes"):
        flow(text + "WHEN NOT MATCHED THEN INSERT *")


def test_tables_and_scans_are_written_for_the_parser_of_sql_files() -> None:
    table = parse(
        "CREATE TABLE sales (id LONG, at STRUCT<a: INT, b: STRING>) USING delta PARTITIONED BY (id)"
    )
    assert table_columns(table) == {"id": "BIGINT", "at": "STRUCT<a: INT, b: STRING>"}
    assert build_table(table, SALES) == (
        "CREATE STREAMING TABLE `default`.`sales`\n(id LONG, at STRUCT<a: INT, b: STRING>)\n"
        "PARTITIONED BY (`id`);\n"
    )
    kafka = parse("CREATE TABLE k USING kafka OPTIONS (kafka.bootstrap.servers 'h', subscribe 'a')")
    scan = parse("CREATE SCAN s ON k USING STREAM OPTIONS (subscribe 'it''s')")
    assert build_scan(scan, kafka, TableName("default", "k")) == (
        "CREATE TEMPORARY VIEW `s` AS SELECT * FROM STREAM "
        "read_kafka(`kafka`.`bootstrap`.`servers` => 'h', `subscribe` => 'it\\'s');\n"
    )
    assert "STREAM `default`.`sales` WITH ('startingVersion' = '3')" in build_scan(
        parse("CREATE SCAN s ON sales USING STREAM OPTIONS (startingVersion 3)"), None, SALES
    )


@pytest.mark.parametrize(
    "options", ["triggerTyp 'Once'", "triggerType 'Continuous'", "outputMode 'complete'"]
)
def test_a_wrong_option_of_a_stream_is_refused(options: str) -> None:
    with pytest.raises(SqlInvalidError):
        read_options(parse(f"CREATE STREAM j OPTIONS ({options}) INSERT INTO t SELECT 1 FROM s"))
