"""SQL files: each statement declares what a decorator declares, or is refused at its line and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    FeatureUnsupportedError,
    HeadraceError,
    MultipartFlowNameError,
    PipelineValueUnsetError,
    SqlInvalidError,
)
from headrace.model.declarations import (
    AppendFlow,
    AutoCdcFlow,
    Declarations,
    MaterializedView,
    RefreshFlow,
    StreamingTable,
    TemporaryView,
    Trigger,
)
from headrace.model.names import ChosenColumns
from headrace.model.queries import SqlQuery, edited
from headrace.model.snapshots import StoredSnapshots
from headrace.syntax.sql import SqlText

Load = Callable[..., Declarations]
Sql = Callable[..., Declarations]
SPEC = "name: shop\nconfiguration: {source: landing/orders, day: '2024-01-01'}\n"


@pytest.fixture
def sql(load: Load) -> Sql:
    """Load a pipeline of one SQL file."""
    return lambda text, **files: load({"transformations/a.sql": text, **files}, SPEC)


def query_text(query: Any) -> str:
    """The query as Spark gets it."""
    assert isinstance(query, SqlQuery)
    text = SqlText(query.statement, query.begins, query.edits).edited
    return query.prefix + text[query.start : query.stop]


# -- datasets


def test_a_streaming_table_brings_its_flow(sql: Sql) -> None:
    declared = sql(
        """
-- first; a comment
CREATE OR REFRESH STREAMING TABLE orders (
  id LONG NOT NULL COMMENT 'the id, of the shop',
  price DECIMAL(10, 2),
  CONSTRAINT `has an id` EXPECT (id IS NOT NULL),
  CONSTRAINT positive EXPECT (price > 0) ON VIOLATION DROP ROW,
  CONSTRAINT sane EXPECT (price < 1000) ON VIOLATION QUARANTINE ROW,
  CONSTRAINT known EXPECT (price IN (1, 2)) ON VIOLATION FAIL UPDATE
)
USING delta CLUSTER BY (id, `price`) COMMENT 'orders; all'
TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', pipelines.reset.allowed = false, a = -1, quality='gold')
AS SELECT * FROM STREAM source -- the end
;
"""
    )
    (table,) = declared.datasets
    assert isinstance(table, StreamingTable)
    assert (str(table.name), table.comment, table.format) == ("default.orders", "orders; all", "delta")
    assert table.schema == "id LONG NOT NULL COMMENT 'the id, of the shop', price DECIMAL(10, 2)"
    assert [(one.name, one.condition, one.action) for one in table.expectations] == [
        ("has an id", "id IS NOT NULL", "warn"),
        ("positive", "price > 0", "drop"),
        ("sane", "price < 1000", "quarantine"),
        ("known", "price IN (1, 2)", "fail"),
    ]
    assert str(table.expectations[1].location) == "transformations/a.sql:7:14"
    assert table.cluster_by == ("id", "price")
    assert table.table_properties == {
        "delta.enableChangeDataFeed": "true",
        "pipelines.reset.allowed": "false",
        "a": "-1",
        "quality": "gold",
    }
    assert str(table.location) == "transformations/a.sql:3:35"
    (flow,) = declared.flows
    assert isinstance(flow, AppendFlow)
    assert (flow.name, flow.target) == ("orders", table.name)
    assert query_text(flow.query) == "SELECT * FROM STREAM source"


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        ("CREATE STREAMING TABLE t", [StreamingTable]),
        ("CREATE STREAMING TABLE t AS SELECT 1", [StreamingTable, AppendFlow]),
        ("CREATE OR REPLACE STREAMING TABLE IF NOT EXISTS t AS SELECT 1", [StreamingTable, AppendFlow]),
        ("CREATE PRIVATE STREAMING TABLE t AS SELECT 1", [StreamingTable, AppendFlow]),
        ("CREATE STREAMING LIVE TABLE t AS SELECT 1", [StreamingTable, AppendFlow]),
        ("create or refresh incremental live table t as select 1", [StreamingTable, AppendFlow]),
        ("CREATE TEMPORARY STREAMING LIVE TABLE t AS SELECT 1", [StreamingTable, AppendFlow]),
        ("CREATE OR REFRESH LIVE TABLE t AS SELECT 1", [MaterializedView, RefreshFlow]),
        ("CREATE MATERIALIZED VIEW t AS (SELECT 1)", [MaterializedView, RefreshFlow]),
        ("CREATE MATERIALIZED VIEW LIVE.t PARTITIONED BY (a) AS SELECT 1 a", [MaterializedView, RefreshFlow]),
        ("CREATE TEMPORARY VIEW t AS WITH a AS (SELECT 1) SELECT * FROM a", [TemporaryView]),
        ("CREATE OR REPLACE TEMP VIEW t AS SELECT 1", [TemporaryView]),
        ("CREATE VIEW t COMMENT 'c' AS SELECT 1", [TemporaryView]),
        ("CREATE LIVE VIEW t AS SELECT 1", [TemporaryView]),
        ("CREATE TEMPORARY STREAMING LIVE VIEW t AS SELECT 1", [TemporaryView]),
        ("CREATE VIEW t (CONSTRAINT c EXPECT (a > 0)) AS SELECT 1 a", [TemporaryView]),
    ],
)
def test_forms_of_create(sql: Sql, statement: str, kinds: list[type]) -> None:
    declared = sql(statement)
    assert [type(one) for one in (*declared.datasets, *declared.flows)] == kinds
    assert [one.name.name for one in declared.datasets] == ["t"]


def test_clauses_come_in_any_order(sql: Sql) -> None:
    declared = sql(
        "CREATE MATERIALIZED VIEW t TBLPROPERTIES (a = 'b') SCHEDULE CRON '0 0 * * *' AT TIME ZONE 'UTC' "
        "COMMENT 'c' PARTITIONED BY (d) SCHEDULE REFRESH EVERY 1 HOUR AS SELECT 1 d"
    )
    (view,) = declared.datasets
    assert isinstance(view, MaterializedView)
    assert (view.comment, view.partition_cols, view.table_properties) == ("c", ("d",), {"a": "b"})
    assert [(note.text, str(note.location)) for note in declared.notes] == [
        ("SCHEDULE of `t` has no effect", "transformations/a.sql:1:52"),
        ("SCHEDULE of `t` has no effect", "transformations/a.sql:1:128"),
    ]


@pytest.mark.parametrize(
    ("statement", "clause"),
    [
        ("CREATE STREAMING TABLE t CLUSTER BY AUTO AS SELECT 1", "CLUSTER BY AUTO"),
        ("CREATE STREAMING TABLE t (a INT, PRIMARY KEY (a, b)) AS SELECT 1", "PRIMARY KEY"),
        ("CREATE STREAMING TABLE t (a INT, CONSTRAINT k PRIMARY KEY (a)) AS SELECT 1", "PRIMARY KEY"),
        ("CREATE STREAMING TABLE t (a INT FOREIGN KEY REFERENCES x.y) AS SELECT 1", "FOREIGN KEY"),
        (
            "CREATE STREAMING TABLE t (a INT NOT NULL CONSTRAINT k FOREIGN KEY REFERENCES y(a)) AS SELECT 1",
            "FOREIGN KEY",
        ),
        ("CREATE MATERIALIZED VIEW t TRIGGER ON UPDATE AT MOST EVERY INTERVAL 1 HOUR AS SELECT 1", "TRIGGER"),
    ],
)
def test_a_clause_without_effect_is_noted(sql: Sql, statement: str, clause: str) -> None:
    declared = sql(statement)
    (note,) = declared.notes
    assert note.text == f"{clause} of `t` has no effect"
    (table,) = declared.datasets
    assert isinstance(table, MaterializedView) or table.schema in (None, "a INT", "a INT NOT NULL")


@pytest.mark.parametrize("what", ["PRIVATE MATERIALIZED VIEW", "TEMPORARY STREAMING LIVE TABLE"])
def test_a_table_can_be_private(sql: Sql, what: str) -> None:
    declared = sql(f"CREATE {what} t AS SELECT 1; CREATE STREAMING TABLE other AS SELECT 1")
    tables = [one for one in declared.datasets if not isinstance(one, TemporaryView)]
    assert [one.is_private for one in tables] == [True, False]
    assert declared.notes == ()


def test_a_streaming_table_has_its_flow_of_changes(sql: Sql) -> None:
    declared = sql(
        "USE SCHEMA sales; CREATE OR REFRESH STREAMING TABLE t CLUSTER BY (id) "
        "FLOW AUTO CDC FROM STREAM s KEYS (id) SEQUENCE BY at STORED AS SCD TYPE 2"
    )
    (flow,) = declared.flows
    assert isinstance(flow, AutoCdcFlow)
    assert (flow.name, str(flow.target), flow.keys) == ("sales.t", "sales.t", ("id",))
    assert flow.history is not None


def test_the_name_of_a_flow_has_one_part(sql: Sql) -> None:
    with pytest.raises(MultipartFlowNameError):
        sql("CREATE STREAMING TABLE t; CREATE FLOW a.f AS INSERT INTO t BY NAME SELECT 1")


def test_a_set_without_a_value_changes_nothing(sql: Sql) -> None:
    (flow,) = sql("SET spark.source;\nCREATE STREAMING TABLE t AS SELECT '${source}'").flows
    assert query_text(flow.query) == "SELECT 'landing/orders'"


@pytest.mark.parametrize("call", ["cloud_files('a', 'json')", "STREAM(cloud_files('a', 'json'))"])
def test_cloud_files_is_a_stream_with_and_without_stream(sql: Sql, call: str) -> None:
    (flow,) = sql(f"CREATE STREAMING TABLE t AS SELECT * FROM {call}").flows
    assert isinstance(flow.query, SqlQuery)
    assert flow.query.calls[0].read.args[:2] == (True, "cloudfiles")  # type: ignore[attr-defined]


def test_an_argument_can_have_a_secret(load: Load) -> None:
    spec = "name: a\nsecrets: {kafka/user: me, kafka/login: s3cret}\n"
    login = "'user=' || secret('kafka', 'user') || ' password=' || secret(\"kafka\", 'login')"
    text = "CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_kafka(subscribe => 'a', `kafka.x` => {})"
    (flow,) = load({"transformations/a.sql": text.format(login)}, spec).flows
    assert isinstance(flow.query, SqlQuery)
    read: Any = flow.query.calls[0].read
    assert read.args[3]["kafka.x"] == "user=me password=s3cret"
    with pytest.raises(PipelineValueUnsetError) as caught:
        load({"transformations/a.sql": text.format("secret('kafka', 'other')")}, spec)
    assert str(caught.value.location) == "transformations/a.sql:1:92"


# -- flows


def test_a_flow_inserts_by_name(sql: Sql) -> None:
    declared = sql(
        "CREATE STREAMING TABLE t;\n"
        "CREATE FLOW first AS INSERT INTO t BY NAME SELECT * FROM STREAM a;\n"
        "CREATE FLOW second COMMENT 'c' AS INSERT INTO LIVE.t BY NAME\nSELECT * FROM STREAM(b)"
    )
    first, second = declared.flows
    assert isinstance(first, AppendFlow)
    assert (first.name, second.name) == ("first", "second")
    assert first.target == second.target == declared.datasets[0].name
    assert query_text(second.query) == "SELECT * FROM STREAM(b)"


def test_auto_cdc_has_every_clause(sql: Sql) -> None:
    declared = sql(
        """
CREATE STREAMING TABLE customers;
CREATE FLOW apply AS AUTO CDC INTO customers
FROM STREAM(changes) WITH (readChangeFeed = true)
KEYS (id, `region`)
IGNORE NULL UPDATES ON (name)
APPLY AS DELETE WHEN op = "DELETE" AND (id > 0)
SEQUENCE BY struct(at, lsn)
COLUMNS * EXCEPT (op, at)
STORED AS SCD TYPE 1
"""
    )
    (flow,) = declared.flows
    assert isinstance(flow, AutoCdcFlow)
    assert (flow.name, flow.keys, flow.sequence_by) == ("apply", ("id", "region"), "struct(at, lsn)")
    assert flow.kept_if_null == ChosenColumns(included=("name",))
    assert query_text(flow.query) == "SELECT * FROM STREAM(changes) WITH (readChangeFeed = true)"
    assert isinstance(flow.query, SqlQuery)
    columns = flow.query.then.keywords["columns"]  # type: ignore[union-attr]
    assert (columns.deletes, columns.excluded) == ('op = "DELETE" AND (id > 0)', ("op", "at"))


@pytest.mark.parametrize(
    ("source", "query"),
    [
        ("STREAM(LIVE.s)", "SELECT * FROM STREAM(LIVE.s)"),
        ("STREAM s", "SELECT * FROM STREAM s"),
        ("LIVE.s", "SELECT * FROM STREAM LIVE.s"),
        ("(SELECT a KEYS, b FROM STREAM s)", "SELECT * FROM (SELECT a KEYS, b FROM STREAM s)"),
    ],
)
def test_apply_changes_is_the_older_form(sql: Sql, source: str, query: str) -> None:
    declared = sql(
        f"CREATE STREAMING LIVE TABLE t; APPLY CHANGES INTO LIVE.t FROM {source} KEYS (id) "
        "APPLY AS TRUNCATE WHEN op = 't' SEQUENCE BY at COLUMNS id, at"
    )
    (flow,) = declared.flows
    assert isinstance(flow, AutoCdcFlow)
    assert (flow.name, flow.truncates, flow.history) == ("t", True, None)
    assert query_text(flow.query) == query


def test_histories_have_tracked_columns(sql: Sql) -> None:
    table = "CREATE STREAMING TABLE t;"
    text = f"{table} AUTO CDC INTO t FROM STREAM s KEYS (id) SEQUENCE BY at STORED AS SCD TYPE 2"
    (plain,) = sql(text).flows
    (tracked,) = sql(f"{text} TRACK HISTORY ON * EXCEPT (note)").flows
    assert isinstance(plain, AutoCdcFlow)
    assert isinstance(tracked, AutoCdcFlow)
    assert plain.history == ChosenColumns()
    assert tracked.history == ChosenColumns(excluded=("note",))


@pytest.mark.parametrize(
    ("source", "stored"),
    [
        ("LIVE.s", "s"),
        ("sales.s", "sales.s"),
        ("'exports/people'", "exports/people"),
        ("'exports'", "./exports"),
    ],
)
def test_snapshots_are_applied_from_a_table_or_a_folder(sql: Sql, source: str, stored: str) -> None:
    declared = sql(
        f"CREATE STREAMING TABLE t; CREATE FLOW f AS AUTO CDC FROM SNAPSHOT INTO t FROM {source} KEYS (id) "
        "STORED AS SCD TYPE 2 TRACK HISTORY ON name"
    )
    (flow,) = declared.flows
    assert isinstance(flow, AutoCdcFlow)
    assert isinstance(flow.snapshots, StoredSnapshots)
    assert (flow.name, flow.keys, flow.history) == ("f", ("id",), ChosenColumns(included=("name",)))
    assert flow.snapshots.name == stored


def test_columns_and_fields_may_have_the_names_of_clauses(sql: Sql) -> None:
    columns = "primary BOOLEAN, mask STRING, default INT, s STRUCT<mask: INT, primary: INT, generated: INT>"
    (table,) = sql(f"CREATE STREAMING TABLE t ({columns})").datasets
    assert isinstance(table, StreamingTable)
    assert table.schema == columns


# -- settings, schemas and parameters


def test_settings_belong_to_later_statements_of_the_file(sql: Sql) -> None:
    declared = sql(
        "CREATE STREAMING TABLE a AS SELECT 1; SET pipelines.trigger.interval = 10 seconds; SET x = 'y; z';"
        "CREATE STREAMING TABLE b AS SELECT ${x}",
        **{"transformations/b.sql": "CREATE STREAMING TABLE c AS SELECT 1"},
    )
    first, second, third = declared.flows
    assert isinstance(second, AppendFlow)
    assert (first.spark_conf, third.spark_conf) == ({}, {})
    assert second.spark_conf == {"pipelines.trigger.interval": "10 seconds", "x": "'y; z'"}
    assert second.trigger == Trigger(interval_s=10)
    assert query_text(second.query) == "SELECT 'y; z'"


def test_a_schema_is_that_of_later_names(sql: Sql) -> None:
    declared = sql(
        "USE CATALOG main; USE SCHEMA sales; CREATE STREAMING TABLE a AS SELECT 1;"
        "CREATE FLOW f AS INSERT INTO a BY NAME SELECT 1; CREATE STREAMING TABLE other.b",
        **{"transformations/b.sql": "CREATE STREAMING TABLE c AS SELECT 1"},
    )
    names = ["main__sales.a", "main__other.b", "default.c"]
    assert [str(one.name) for one in declared.datasets] == names
    assert [(one.name, str(one.target)) for one in declared.flows[:2]] == [
        ("main__sales.a", "main__sales.a"),
        ("f", "main__sales.a"),
    ]
    query = declared.flows[1].query
    assert isinstance(query, SqlQuery)
    assert (query.names.catalog, query.names.schema) == ("main", "sales")


def test_a_catalog_is_in_use_until_the_end_of_the_file(sql: Sql) -> None:
    declared = sql(
        "SET CATALOG bronze; CREATE MATERIALIZED VIEW a AS SELECT 1;"
        "USE silver.sales; CREATE MATERIALIZED VIEW b AS SELECT 1;"
        "USE CATALOG spark_catalog; CREATE MATERIALIZED VIEW c AS SELECT 1;"
        "USE NAMESPACE own; CREATE MATERIALIZED VIEW d AS SELECT 1"
    )
    names = ["bronze__default.a", "silver__sales.b", "default.c", "own.d"]
    assert [str(one.name) for one in declared.datasets] == names


@pytest.mark.parametrize(
    ("written", "replaced"),
    [
        ("'${source}/x' a, ${ day }", "'landing/orders/x' a, 2024-01-01"),
        ("1 -- ${unknown}", "1"),
        ("1 /* ${day} :x ${unknown} */ a", "1 /* 2024-01-01 :x ${unknown} */ a"),
        (
            "CAST(a AS STRUCT<a :INT, b ARRAY<STRUCT<day :INT>>>), :day",
            "CAST(a AS STRUCT<a :INT, b ARRAY<STRUCT<day :INT>>>), '2024-01-01'",
        ),
        (":day, (:day), f(a, :source)", "'2024-01-01', ('2024-01-01'), f(a, 'landing/orders')"),
        ("a:day, f(a):day, `a`:day.b, a::string, ':day', r':day'", None),
    ],
)
def test_parameters_have_the_values_of_the_spec(sql: Sql, written: str, replaced: str | None) -> None:
    declared = sql(f"CREATE MATERIALIZED VIEW t AS SELECT {written}")
    assert query_text(declared.flows[0].query) == f"SELECT {replaced or written}"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT * FROM STREAM read_files('a')", "SELECT * FROM STREAM read_files('a')"),
        (
            "SELECT *, _metadata.file_path FROM STREAM read_files('a')",
            "SELECT * EXCEPT (_metadata), _metadata.file_path FROM STREAM read_files('a')",
        ),
        (
            "SELECT count(*), f.* EXCEPT (a), _metadata FROM read_files('a') f",
            "SELECT count(*), f.* EXCEPT (_metadata, a), _metadata FROM read_files('a') f",
        ),
        (
            "SELECT * FROM (SELECT DISTINCT *, _metadata.file_path FROM STREAM(cloud_files('a', 'csv')))",
            "SELECT * FROM (SELECT DISTINCT * EXCEPT (_metadata), _metadata.file_path "
            "FROM STREAM(cloud_files('a', 'csv')))",
        ),
    ],
)
def test_the_hidden_column_of_files_is_not_in_a_star(sql: Sql, query: str, found: str) -> None:
    text = f"CREATE VIEW v AS {query}"
    (dataset,) = sql(text).datasets
    assert isinstance(dataset, TemporaryView)
    assert isinstance(dataset.query, SqlQuery)
    (call,) = dataset.query.calls
    assert edited(text, call.hides).removeprefix("CREATE VIEW v AS ") == found


def test_the_storage_decides_where_a_table_with_a_location_is_stored(sql: Sql, tmp_path: Path) -> None:
    text = "CREATE STREAMING TABLE a\n  LOCATION '{0}/x' AS SELECT * FROM STREAM s;\n"
    (note,) = sql(text.format(tmp_path)).notes
    assert (note.level, str(note.location)) == ("warning", "transformations/a.sql:2:3")
    assert "`a` is stored in tables/default/a" in note.text
    with pytest.raises(SqlInvalidError, match="a view has no LOCATION"):
        sql("CREATE VIEW v LOCATION '/x' AS SELECT 1")
    (tmp_path / "x" / "_delta_log").mkdir(parents=True)
    (tmp_path / "x" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    with pytest.raises(FeatureUnsupportedError) as caught:
        sql(text.format(tmp_path))
    assert str(caught.value.location) == "transformations/a.sql:2:3"
    assert "remove `LOCATION`" in caught.value.remedies[0]


def test_keys_of_columns_have_no_effect(sql: Sql) -> None:
    columns = "id INT PRIMARY KEY NOT NULL, x INT REFERENCES o(id) COMMENT 'x', references INT"
    found = sql(f"CREATE STREAMING TABLE t ({columns}, CONSTRAINT f FOREIGN KEY (x) REFERENCES o)")
    (table,) = found.datasets
    assert isinstance(table, StreamingTable)
    assert table.schema == "id INT NOT NULL, x INT COMMENT 'x', references INT"
    assert [note.text for note in found.notes] == [
        "PRIMARY KEY of `t` has no effect",
        "FOREIGN KEY of `t` has no effect",
        "FOREIGN KEY of `t` has no effect",
    ]


# -- refused


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("\nSELECT 1", "2:1"),
        ("DROP TABLE t", "1:1"),
        ("INSERT INTO t SELECT 1", "1:1"),
        ("CREATE TABLE t AS SELECT 1", "1:8"),
        ("CREATE OR REPLACE TABLE t (a INT)", "1:19"),
        ("CREATE FUNCTION f AS 'x'", "1:8"),
        ("CREATE SCHEMA s", "1:8"),
        ("CREATE STREAMING TABLE t OPTIONS (a = 1) AS SELECT 1", "1:26"),
        ("CREATE STREAMING TABLE t WITH ROW FILTER f ON (a) AS SELECT 1", "1:26"),
        ("CREATE STREAMING TABLE t DEFAULT COLLATION UTF8_BINARY AS SELECT 1", "1:26"),
        ("CREATE STREAMING TABLE t FLOW INSERT BY NAME SELECT 1", "1:26"),
        ("CREATE STREAMING TABLE t (a) AS SELECT 1", "1:27"),
        ("CREATE STREAMING TABLE t (a COMMENT 'x') AS SELECT 1", "1:27"),
        ("CREATE STREAMING TABLE t (a INT GENERATED ALWAYS AS (1)) AS SELECT 1", "1:33"),
        ("CREATE STREAMING TABLE t (a BIGINT GENERATED ALWAYS AS IDENTITY, b INT)", "1:36"),
        ("CREATE STREAMING TABLE t (a INT DEFAULT 1) AS SELECT 1", "1:33"),
        ("CREATE STREAMING TABLE t (a INT CHECK (a > 0)) AS SELECT 1", "1:33"),
        ("CREATE STREAMING TABLE t (a INT MASK f) AS SELECT 1", "1:33"),
        ("CREATE STREAMING TABLE t (a INT, CONSTRAINT k UNIQUE (a)) AS SELECT 1", "1:47"),
        ("CREATE STREAMING TABLE t PARTITIONED BY (years(a)) AS SELECT 1", "1:47"),
        ("CREATE VIEW v (a) AS SELECT 1", "1:16"),
        ("CREATE FLOW f AS INSERT INTO t SELECT 1", "1:32"),
        ("AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY b SYSTEM SEQUENCE BY c", "1:47"),
        ("AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY b STORED AS BITEMPORAL", "1:47"),
        ("AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY b COLUMNS TO UPDATE c", "1:47"),
        ("SET TIME ZONE 'UTC'", "1:1"),
        ("SET x y", "1:1"),
        ("CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_pulsar(a => 'b')", "1:50"),
        ("CREATE STREAMING TABLE t AS SELECT * FROM read_kafka('orders')", "1:43"),
        ("CREATE STREAMING TABLE t AS SELECT * FROM STREAM read_kafka(topic => a)", "1:70"),
        (
            "CREATE STREAMING TABLE t AS SELECT * FROM read_files('a', format => 'json', drift => 'evolve')",
            "1:77",
        ),
    ],
)
def test_forms_that_are_not_supported_are_refused_by_name(sql: Sql, text: str, place: str) -> None:
    with pytest.raises(FeatureUnsupportedError) as caught:
        sql(text)
    assert str(caught.value.location) == f"transformations/a.sql:{place}"
    assert caught.value.params["what"]


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("CREATE", "SQL_INVALID", "1:7"),
        ("CREATE OR DROP VIEW v", "SQL_INVALID", "1:11"),
        ("CREATE STREAMING VIEW", "SQL_INVALID", "1:22"),
        ("CREATE STREAMING TABLE 'a'", "SQL_INVALID", "1:24"),
        ("CREATE STREAMING TABLE t (a INT", "SQL_INVALID", "1:26"),
        ("CREATE STREAMING TABLE t (a INT,, b INT)", "SQL_INVALID", "1:33"),
        ("CREATE STREAMING TABLE t COMMENT AS SELECT 1", "SQL_INVALID", "1:34"),
        ("CREATE STREAMING TABLE t COMMENT 'a' COMMENT 'b'", "SQL_INVALID", "1:38"),
        ("CREATE STREAMING TABLE t SELECT 1", "SQL_INVALID", "1:26"),
        ("CREATE STREAMING TABLE t AS", "SQL_INVALID", "1:28"),
        ("CREATE MATERIALIZED VIEW t", "SQL_INVALID", "1:27"),
        ("CREATE VIEW t PARTITIONED BY (a) AS SELECT 1", "SQL_INVALID", "1:15"),
        ("CREATE VIEW t (CONSTRAINT c EXPECT a) AS SELECT 1", "SQL_INVALID", "1:36"),
        ("CREATE VIEW t (CONSTRAINT c EXPECT ()) AS SELECT 1", "SQL_INVALID", "1:37"),
        ("CREATE VIEW t (CONSTRAINT c EXPECT (a) ON VIOLATION STOP) AS SELECT 1", "SQL_INVALID", "1:53"),
        ("CREATE FLOW f INSERT INTO t BY NAME SELECT 1", "SQL_INVALID", "1:15"),
        ("CREATE FLOW f AS INSERT INTO t BY NAME", "SQL_INVALID", "1:39"),
        ("AUTO CDC INTO t KEYS (a)", "SQL_INVALID", "1:17"),
        ("AUTO CDC INTO t FROM KEYS (a)", "SQL_INVALID", "1:22"),
        ("AUTO CDC INTO t FROM s KEYS (a)", "SQL_INVALID", "1:32"),
        ("AUTO CDC INTO t FROM s SEQUENCE BY a", "SQL_INVALID", "1:37"),
        ("AUTO CDC INTO t FROM s KEYS (a) KEYS (b) SEQUENCE BY a", "SQL_INVALID", "1:33"),
        ("AUTO CDC INTO t FROM s KEYS (a) SEQUENCE BY a STORED AS SCD TYPE 3", "SQL_INVALID", "1:66"),
        ("AUTO CDC FROM SNAPSHOT INTO t FROM s KEYS (a) SEQUENCE BY b", "SQL_INVALID", "1:47"),
        ("AUTO CDC FROM SNAPSHOT INTO t FROM (SELECT 1) KEYS (a)", "SQL_INVALID", "1:36"),
        ("USE SCHEMA", "SQL_INVALID", "1:11"),
        ("ALTER TABLE t RENAME COLUMN a b", "SQL_INVALID", "1:31"),
        ("ALTER TABLE t RENAME TO u", "FEATURE_UNSUPPORTED", "1:15"),
        ("ALTER TABLE t ALTER COLUMN a TYPE BIGINT", "FEATURE_UNSUPPORTED", "1:15"),
        ("ALTER TABLE t SET TBLPROPERTIES (a = b)", "FEATURE_UNSUPPORTED", "1:15"),
        ("ALTER VIEW v RENAME TO w", "FEATURE_UNSUPPORTED", "1:7"),
        ("ALTER TABLE t DROP COLUMN a;\nCREATE MATERIALIZED VIEW t AS SELECT 1", "TARGET_INVALID", "1:13"),
        ("CREATE VIEW v AS SELECT 'a\n", "SQL_INVALID", "1:25"),
        ("CREATE VIEW v AS SELECT 1;\n  /* b", "SQL_INVALID", "2:3"),
        ("CREATE VIEW v AS SELECT 1 FROM STREAM read_kafka(subscribe => )", "SQL_INVALID", "1:63"),
        ("CREATE VIEW v AS SELECT 1 FROM STREAM read_kafka('a', 'b')", "SQL_INVALID", "1:39"),
        ("CREATE VIEW v AS SELECT 1 FROM STREAM read_files()", "SQL_INVALID", "1:39"),
        ("CREATE VIEW v AS SELECT\n '${x.y}'", "SQL_PARAMETER_UNSET", "2:3"),
        ("CREATE VIEW v AS SELECT\n :x", "SQL_PARAMETER_UNSET", "2:2"),
        ("CREATE VIEW `a-b` AS SELECT 1", "ARGUMENT_INVALID", "1:13"),
        ("CREATE VIEW a AS SELECT 1;\nCREATE VIEW A AS SELECT 1", "DUPLICATE_NAME", "2:13"),
        ("CREATE STREAMING TABLE t USING csv AS SELECT 1", "FORMAT_UNSUPPORTED", "1:24"),
        (
            "CREATE STREAMING TABLE t PARTITIONED BY (a) CLUSTER BY (b) AS SELECT 1",
            "ARGUMENT_INVALID",
            "1:24",
        ),
    ],
)
def test_mistakes_have_a_line_and_column(sql: Sql, text: str, code: str, place: str) -> None:
    with pytest.raises(HeadraceError) as caught:
        sql(text)
    assert caught.value.code == code
    assert str(caught.value.location) == f"transformations/a.sql:{place}"


def test_a_mistake_in_the_layout_is_told_in_the_words_of_sql(sql: Sql) -> None:
    with pytest.raises(HeadraceError) as caught:
        sql("CREATE STREAMING TABLE t PARTITIONED BY (a) CLUSTER BY (b) AS SELECT 1")
    assert "CLUSTER BY cannot be used together with PARTITIONED BY" in caught.value.summary
    assert caught.value.remedies == ("keep CLUSTER BY or PARTITIONED BY",)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("CREAT VIEW v AS SELECT 1", "CREATE"),
        ("CREATE STREAMNG TABLE t", "STREAMING"),
        ("create or refresh materialised view t as select 1", "MATERIALIZED"),
        ("CREATE STREAMING TABEL t", "TABLE"),
    ],
)
def test_a_misspelt_word_has_a_suggestion(sql: Sql, text: str, meant: str) -> None:
    with pytest.raises(SqlInvalidError) as caught:
        sql(text)
    assert caught.value.remedies == (f"did you mean `{meant}`?",)


def test_a_parameter_shifts_no_location(sql: Sql) -> None:
    with pytest.raises(HeadraceError) as caught:
        sql("CREATE VIEW v AS SELECT '${source}' FROM\n  '${source}' read_files(1)")
    assert str(caught.value.location) == "transformations/a.sql:2:15"


def test_flows_that_are_applied_once(sql: Sql) -> None:
    declared = sql(
        "CREATE STREAMING TABLE t; CREATE STREAMING TABLE k;\n"
        "CREATE FLOW f AS INSERT INTO ONCE t BY NAME SELECT * FROM a;\n"
        "CREATE FLOW g AS AUTO CDC ONCE INTO k FROM a KEYS (id) SEQUENCE BY at;"
    )
    first, second = declared.flows
    assert isinstance(first, AppendFlow) and first.once
    assert isinstance(second, AutoCdcFlow) and second.once
    assert query_text(second.query) == "SELECT * FROM a"
    assert first.trigger == second.trigger == Trigger(available_now=True)


def test_a_literal_in_hexadecimal_is_checked(sql: Sql) -> None:
    with pytest.raises(SqlInvalidError) as caught:
        sql("CREATE MATERIALIZED VIEW a AS\nSELECT x'1F', x'1G'")
    assert "x'1G'" in caught.value.summary
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (2, 15)


def test_columns_of_an_existing_table_are_renamed_and_dropped(sql: Sql) -> None:
    (table,) = sql(
        "ALTER TABLE LIVE.t RENAME COLUMN cust TO customer; CREATE STREAMING TABLE t AS SELECT 1;"
        "ALTER STREAMING TABLE t RENAME COLUMN `to`.zip TO postcode;"
        "ALTER TABLE t DROP COLUMNS (a, `b`.c); ALTER TABLE default.t DROP COLUMN IF EXISTS d"
    ).datasets
    assert isinstance(table, StreamingTable)
    assert table.renamed_columns == {"cust": "customer", "to.zip": "postcode"}
    assert table.dropped_columns == ("a", "b.c", "d")


def test_clauses_and_queries_that_have_no_effect_are_noted(sql: Sql) -> None:
    declared = sql(
        "-- Databricks notebook source\nUSE SCHEMA sales;\n\n-- COMMAND ----------\n"
        "CREATE MATERIALIZED VIEW t SCHEDULE EVERY 1 HOUR REFRESH POLICY INCREMENTAL STRICT AS SELECT 1 a\n"
        "-- COMMAND ----------\nSELECT * FROM t\n"
    )
    (view,) = declared.datasets
    assert (str(view.name), view.refresh_policy) == ("sales.t", "incremental strict")  # type: ignore[union-attr]
    notes = [(one.text, one.location.line) for one in declared.notes]
    assert notes == [("SCHEDULE of `sales.t` has no effect", 5), ("the statement SELECT is not run", 7)]
