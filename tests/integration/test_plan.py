"""A pipeline's queries are resolved on a real Spark, and what is wrong is said with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.declare.loader import activate, load_declarations
from headrace.declare.registry import ActivePipeline
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.declarations import Flow
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.build import build_plan
from headrace.plan.evaluate import evaluate, loading
from headrace.plan.modes import Running
from headrace.plan.stages import (
    Coordinates,
    OpenTableStage,
    Plan,
    PlannedFlow,
    RefreshViewStage,
    RunFlowStage,
)
from headrace.sources.delta.reader import DELTA_MAX_BYTES_PER_TRIGGER
from headrace.sources.kafka.meter import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.sources.kafka.position import COORDINATES
from headrace.storage.layout import Storage
from proof.shop import tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAD = """\
import headrace as hr
from pyspark.sql import functions as F
from headrace import spark

"""
FIRST = HEAD.count("\n") + 1
"""The line of a test's own first line."""

EXAMPLE = """
@hr.table
def bronze():
    return hr.read_kafka("sales").select("key", "value", "_source")

@hr.table
def silver():
    parsed = F.from_json(F.col("value").cast("string"), "id LONG, date DATE, name STRING, sales DOUBLE")
    return spark.readStream.table("bronze").select(parsed.alias("r"), "_source").select("r.*", "_source")

@hr.materialized_view
def gold():
    return spark.read.table("silver").groupBy("name", "date").agg(F.sum("sales").alias("sales"))
"""
ORDERS = """
@hr.table
def orders():
    return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE")
"""

Planned = Callable[..., Plan]


def coordinates(*columns: str) -> Coordinates:
    return Coordinates(columns=dict(zip(COORDINATES.names, columns, strict=True)), record=COORDINATES)


@pytest.fixture
def settings(tmp_path: Path) -> ProjectSettings:
    return ProjectSettings(
        name="shop",
        file=tmp_path / "headrace.yml",
        profile="dev",
        storage=Storage.at(tmp_path / "lake"),
        libraries=("*.py",),
        kafka=KafkaConnection({"bootstrap.servers": "127.0.0.1:9"}),
    )


@pytest.fixture
def planned(spark: SparkSession, settings: ProjectSettings) -> Planned:
    """Plan a pipeline of one file, `orders.py`."""

    def run(source: str, *, offline: bool = False) -> Plan:
        (settings.root / "orders.py").write_text(HEAD + source)
        active = ActivePipeline(settings, lambda: spark)
        with loading(settings, lambda: spark) as session:
            declarations = load_declarations(settings, session)
        with activate(active):
            return build_plan(spark, settings, declarations, offline=offline)

    return run


@pytest.fixture
def fault(planned: Planned) -> Callable[..., HeadraceError]:
    """Plan a pipeline that is wrong, and give the error."""

    def run(source: str, *, offline: bool = False) -> HeadraceError:
        with pytest.raises(HeadraceError) as caught:
            planned(source, offline=offline)
        return caught.value

    return run


@pytest.fixture
def built(spark: SparkSession, settings: ProjectSettings) -> Callable[..., DataFrame]:
    """Build a query as a run does, in a session of its own."""

    def build(session: SparkSession, plan: Plan, name: str) -> DataFrame:
        queries: dict[str, Flow] = {one.flow.name: one.flow for one in plan.flows}
        queries |= {one.flow.name: one.flow for one in plan.refreshes}
        with activate(ActivePipeline(settings, lambda: session)):
            return evaluate(session, queries[name], plan, Running())

    return build


Fault = Callable[..., HeadraceError]


def flow(plan: Plan, name: str) -> PlannedFlow:
    return next(one for one in plan.flows if one.flow.name == name)


def line_of(source: str, text: str) -> int:
    """The line of `orders.py` that holds a text."""
    return (HEAD + source).split("\n").index(next(x for x in (HEAD + source).split("\n") if text in x)) + 1


def columns(plan: Plan, name: str) -> list[str]:
    return [field["name"] for field in plan.schemas[TableName("default", name)]["fields"]]


# -- what a plan says


def test_the_example_is_planned_in_order(planned: Planned) -> None:
    plan = planned(EXAMPLE)
    kinds = [[type(stage) for stage in level] for level in plan.levels]
    assert kinds == [[OpenTableStage, OpenTableStage], [RunFlowStage], [RunFlowStage], [RefreshViewStage]]
    assert columns(plan, "silver") == ["id", "date", "name", "sales", "_source"]
    assert [read.table.name for read in plan.refreshes[0].reads] == ["silver"]
    assert not flow(plan, "silver").stateful
    assert [change.kind for change in plan.changes or ()] == ["create"] * 3


def test_planning_writes_nothing_and_leaves_the_session_as_it_was(
    planned: Planned, spark: SparkSession, settings: ProjectSettings
) -> None:
    # Tests of runs may have left one in the session's catalog.
    spark.sql("DROP TABLE IF EXISTS bronze")
    before = tables_of(spark)
    planned(EXAMPLE)
    assert not settings.storage.root.exists()
    assert tables_of(spark) == before
    assert not spark.catalog.tableExists("bronze")


def test_a_query_that_makes_rows_of_its_own_leaves_the_session_in_use(
    planned: Planned, spark: SparkSession
) -> None:
    planned(MADE)
    active = spark.getActiveSession()
    assert active is not None and active._jsparkSession.equals(spark._jsparkSession)


MADE = """
@hr.materialized_view
def prices():
    return spark.createDataFrame([("/shoes", 80.0)], "page STRING, price DOUBLE")
"""


def test_sources_are_what_spark_was_asked_for(planned: Planned) -> None:
    plan = planned(EXAMPLE)
    (kafka,) = flow(plan, "bronze").sources
    assert (kafka.kind, kafka.topics, kafka.index, kafka.folder) == ("kafka", ("sales",), 0, 0)
    assert kafka.location == SourceLocation("orders.py", line_of(EXAMPLE, "read_kafka"))
    assert kafka.options["kafka.isolation.level"] == "read_committed"
    assert kafka.options["failOnDataLoss"] == "true"
    assert kafka.options["maxOffsetsPerTrigger"] == str(KAFKA_MAX_OFFSETS_PER_TRIGGER)
    (delta,) = flow(plan, "silver").sources
    assert (delta.kind, delta.table) == ("delta", TableName("default", "bronze"))
    assert delta.options["maxBytesPerTrigger"] == str(DELTA_MAX_BYTES_PER_TRIGGER)
    assert delta.location == SourceLocation("orders.py", line_of(EXAMPLE, "readStream.table"))


def test_readers_written_by_hand_stand_under_the_protocol(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    plan = planned(f'''
@hr.table
def raw():
    reader = spark.readStream.format("kafka").option("subscribe", "b, a")
    return reader.option("kafka.bootstrap.servers", "127.0.0.1:9").load()

@hr.table
def files():
    return spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 7).json("{tmp_path}/in")
''')
    (kafka,) = flow(plan, "raw").sources
    assert kafka.topics == ("b", "a")
    assert kafka.options["kafka.isolation.level"] == "read_committed"
    assert kafka.options["failOnDataLoss"] == "true"
    (files,) = flow(plan, "files").sources
    assert (files.kind, files.path) == ("files", f"{tmp_path}/in")
    assert "mode" not in files.options and files.options["maxFilesPerTrigger"] == "7"


def test_properties_say_whose_the_table_is_and_where_records_keep_their_place(planned: Planned) -> None:
    plan = planned(EXAMPLE)
    opened = {s.table.name.name: s for level in plan.levels for s in level if isinstance(s, OpenTableStage)}
    properties = opened["silver"].properties
    assert properties["headrace.pipeline"] == "shop"
    assert properties["headrace.dataset"] == "default.silver"
    assert properties["headrace.kind"] == "streaming_table"
    assert json.loads(properties["headrace.coordinates"])["offset"] == "_source.offset"
    assert properties["headrace.timestamp"] == "_source.timestamp"


def test_a_reader_at_module_level_stands_under_the_protocol_too(planned: Planned) -> None:
    plan = planned("""
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
records = reader.option("subscribe", "t").load()

@hr.table
def raw():
    return records
""")
    (kafka,) = flow(plan, "raw").sources
    assert kafka.options["kafka.isolation.level"] == "read_committed"
    assert kafka.options["failOnDataLoss"] == "true"


def test_a_self_union_has_the_sources_that_spark_counts(
    planned: Planned, built: Callable[..., DataFrame], spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("in", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text('{"id": 1}')
    plan = planned(f'''
def read(name):
    return spark.readStream.schema("id LONG").json(f"{tmp_path}/{{name}}")

@hr.table
def twice():
    one = read("in")
    return one.union(read("other")).union(one)
''')
    sources = flow(plan, "twice").sources
    assert [(s.index, s.folder, s.read) for s in sources] == [(0, 0, 0), (1, 1, 1), (2, 0, 0)]
    checkpoint = tmp_path / "checkpoint"
    frame = built(spark.newSession(), plan, "twice")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(60)
    offsets = (checkpoint / "offsets" / "0").read_text().splitlines()[2:]
    assert len(offsets) == len(sources)
    assert {p.name for p in (checkpoint / "sources").iterdir()} == {str(s.folder) for s in sources}


JOINED = """
@hr.table
def pairs():
    events = spark.readStream.table("events").withWatermark("timestamp", "1 hour")
    a, b = events.alias("a"), events.alias("b")
    near = F.expr("a.id = b.id AND a.timestamp BETWEEN b.timestamp AND b.timestamp + INTERVAL 1 HOUR")
    return a.join(b, near).select("a.id")
"""
READ = 'spark.readStream.table("events")'
EVENTS = """
@hr.table
def events():
    return hr.read_kafka("e", format="json", schema="id LONG, timestamp TIMESTAMP").drop("_source")
"""


def test_a_join_of_a_data_frame_with_itself_is_one_read(planned: Planned) -> None:
    plan = planned(EVENTS + JOINED)
    assert [(s.index, s.folder, s.read) for s in flow(plan, "pairs").sources] == [(0, 0, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("one", "two", "source"),
    [
        (READ, READ, None),
        (READ, 'spark.sql("SELECT * FROM STREAM events")', None),
        (
            READ,
            READ.replace("readStream", 'readStream.option("skipChangeCommits", True)'),
            "the table default.events",
        ),
        (
            'spark.readStream.schema("id LONG").json("landing")',
            'spark.readStream.schema("id LONG").json(f"file://{root}/landing/").where("id > 1")',
            "the folder {root}/landing",
        ),
        ('hr.read_kafka("a")', 'hr.read_kafka("b,a")', "the topic `a`"),
        ('hr.read_kafka("a")', 'hr.read_kafka(topic=None, pattern="[ab]")', "the topic `a`"),
        (
            'hr.read_kafka(pattern="[ab]")',
            'hr.read_kafka(pattern="[ab]", starting_offsets="latest")',
            "the pattern `[ab]`",
        ),
        ('hr.read_kafka("a")', 'hr.read_kafka("b")', None),
        ('hr.read_kafka(pattern="a.*")', 'hr.read_kafka(pattern="b.*")', None),
    ],
)
def test_two_reads_of_one_source_are_refused_with_both_lines(
    planned: Planned, fault: Fault, settings: ProjectSettings, one: str, two: str, source: str | None
) -> None:
    (settings.root / "landing").mkdir()
    code = f"root = {str(settings.root)!r}\n{EVENTS}"
    code += f"@hr.table\ndef both():\n    one = {one}\n    two = {two}\n    return one.union(two)\n"
    if source is None:
        sources = flow(planned(code), "both").sources
        assert len(sources) == 2
        assert len({one.read for one in sources}) == (1 if "events" in two else 2)
        return
    error = fault(code)
    assert (error.code, error.params["source"]) == ("SOURCE_READ_TWICE", source.format(root=settings.root))
    assert error.location is not None and error.location.path == "orders.py"
    assert "orders.py:" in error.facts[0]


@pytest.mark.parametrize(
    "query",
    [
        'spark.readStream.table("events").select("id", "_metadata.file_name")',
        'spark.sql("SELECT *, _metadata.file_path AS path FROM STREAM events")',
    ],
)
def test_the_hidden_column_of_files_is_refused_where_a_table_is_streamed(fault: Fault, query: str) -> None:
    code = f"{EVENTS}@hr.table\ndef wrong():\n    return {query}\n"
    error = fault(code)
    assert (error.code, error.params["column"]) == ("COLUMN_NOT_FOUND", "_metadata")
    assert error.location is not None and error.location.line == line_of(code, "_metadata")
    assert "where the files are read" in error.remedies[0]


@pytest.mark.parametrize(
    "query",
    [
        'spark.table("orders")',
        'spark.read.table("orders")',
        'spark.read.table("spark_catalog.default.orders")',
        'spark.read.table("LIVE.orders")',
        'spark.sql("SELECT * FROM orders")',
        'spark.sql("SELECT * FROM spark_catalog.default.orders AS o WHERE o.id > 1")',
        'spark.sql("SELECT * FROM LIVE.orders")',
        'spark.sql("WITH o AS (SELECT * FROM orders) SELECT * FROM o")',
        'spark.sql("SELECT id, amount FROM range(3) JOIN orders USING (id)")',
        'spark.sql("SELECT * FROM range(3) WHERE id IN (SELECT id FROM orders)")',
        'spark.sql("SELECT id, (SELECT max(id) FROM LIVE.orders) AS top FROM range(3)")',
        'spark.range(3).where("id IN (SELECT id FROM LIVE.orders)")',
        'spark.range(3).selectExpr("id", "(SELECT max(id) FROM LIVE.orders) AS top")',
        'spark.range(3).withColumn("known", F.expr("id IN (SELECT id FROM LIVE.orders)"))',
        'spark.sql("SELECT * FROM orders VERSION AS OF 3")',
        'spark.sql("SELECT * FROM {frame}", frame=spark.table("orders"))',
        'spark.sql("SELECT * FROM orders WHERE id > :low", {"low": 3})',
        'spark.read.option("versionAsOf", 3).table("orders")',
        'spark.read.table("ORDERS")',
        'spark.sql("SELECT o.id FROM Default.Orders o")',
        'spark.read.format("delta").load(f"{hr_storage}/tables/default/orders")',
        'spark.sql(f"SELECT * FROM delta.`{hr_storage}/tables/default/orders`")',
        '__import__("pyspark").sql.SparkSession.builder.getOrCreate().table("orders")',
        '__import__("pyspark").sql.SparkSession.active().table("orders")',
    ],
)
def test_a_batch_read_is_found_however_it_is_written(
    planned: Planned, settings: ProjectSettings, query: str
) -> None:
    plan = planned(
        f'hr_storage = "{settings.storage.root}"\n{ORDERS}\n'
        f"@hr.materialized_view\ndef copy():\n    return {query}\n"
    )
    (read,) = plan.refreshes[0].reads
    assert (str(read.table), read.streaming, read.declared) == ("default.orders", False, True)
    assert read.location.path == "orders.py"


@pytest.mark.parametrize(
    "query",
    [
        'spark.readStream.table("orders")',
        'spark.readStream.table("spark_catalog.default.orders")',
        'spark.readStream.option("ignoreDeletes", "true").table("orders")',
        'spark.sql("SELECT * FROM STREAM orders")',
        'spark.sql("SELECT o.* FROM STREAM(default.orders) AS o WHERE o.id > 1")',
        'spark.sql("SELECT * FROM STREAM orders WITH (maxFilesPerTrigger = 3)")',
        'spark.sql("SELECT * FROM STREAM(orders) WITH (ignoreDeletes = true, maxFilesPerTrigger = 3)")',
        'spark.readStream.format("delta").load(f"{hr_storage}/tables/default/orders")',
        'spark.readStream.format("delta").option("path", f"{hr_storage}/tables/default/orders").load()',
        'spark.sql(f"SELECT * FROM STREAM delta.`{hr_storage}/tables/default/orders`")',
    ],
)
def test_a_stream_is_found_however_it_is_written(
    planned: Planned, settings: ProjectSettings, query: str
) -> None:
    source = f'hr_storage = "{settings.storage.root}"\n{ORDERS}\n@hr.table\ndef copy():\n    return {query}\n'
    copy = flow(planned(source), "copy")
    (read,) = copy.reads
    assert (str(read.table), read.streaming) == ("default.orders", True)
    (found,) = copy.sources
    assert (found.kind, found.table) == ("delta", TableName("default", "orders"))
    assert found.location == SourceLocation("orders.py", line_of(source, query))
    assert "maxFilesPerTrigger" in found.options
    assert not any(key.startswith("headrace.") for key in found.options)
    assert found.erasures_only == ("ignoreDeletes" not in query)


def test_the_change_feed_has_its_columns(planned: Planned) -> None:
    plan = planned(f"""{ORDERS}
@hr.table
def history():
    return spark.readStream.option("readChangeFeed", "true").table("orders")
""")
    assert columns(plan, "history")[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    assert flow(plan, "history").sources[0].table == TableName("default", "orders")


SHAPES = [
    'orders.select(upper("text").alias("u"), loud("text").alias("l"))',
    'orders.mapInPandas(lambda frames: frames, "id LONG, amount DOUBLE, text STRING")',
    'orders.groupBy("id").applyInPandas(lambda frame: frame, "id LONG, amount DOUBLE, text STRING")',
    'orders.groupBy("id").pivot("text", ["a", "b"]).agg(F.sum("amount"))',
    'orders.cube("id", "text").agg(F.expr("count(*) AS n"), F.grouping_id().alias("g"))',
    'orders.select("id", F.row_number().over(Window.partitionBy("id").orderBy(F.desc("amount"))).alias("n"))',
    'orders.sample(0.5, seed=3).dropDuplicates(["id"]).orderBy("id").limit(3)',
    'orders.select(F.array("id"), F.create_map("text", "id"), F.lit(Decimal("1.5")), F.lit(date(2026, 1, 1)))'
    '.toDF("a", "b", "c", "d")',
    'orders.join(spark.createDataFrame([(1, "x")], "id LONG, y STRING"), "id").hint("broadcast")',
    'orders.join(spark.createDataFrame(pandas.DataFrame({"id": [1]})), "id")',
    'orders.join(spark.createDataFrame([(1, 450), (2, 1.5)], "id LONG, y FLOAT"), "id")',
    'orders.withColumn("e", F.explode(F.split("text", ",")))',
    'orders.select(F.parse_json("text").alias("v"), F.current_timestamp().alias("now"), F.rand().alias("r"))',
    "orders.unionByName(orders).intersect(orders).exceptAll(orders)",
    'orders.unpivot(["id"], ["amount"], "k", "v")',
    'orders.where(F.col("amount") > spark.table("orders").agg(F.max("amount")).scalar())',
    'spark.sql("SELECT * FROM VALUES (1, INTERVAL 1 DAY) AS t(a, b)").drop("b")',
    'spark.sql("SELECT o.id, x.n FROM orders o, '
    'LATERAL (SELECT count(*) AS n FROM orders p WHERE p.id = o.id) x")',
    'spark.sql("FROM orders |> WHERE id > 1 |> AGGREGATE sum(amount) AS s GROUP BY id")',
    'spark.sql("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) '
    'SELECT * FROM r")',
    'spark.sql("WITH a AS (SELECT * FROM orders), b AS (SELECT id FROM a) '
    'SELECT * FROM a JOIN b USING (id)")',
    "spark.sql(\"SELECT * FROM orders PIVOT (sum(amount) FOR text IN ('a', 'b'))\")",
    'spark.sql("SELECT id, transform(array(id), x -> x + 1) AS t FROM orders TABLESAMPLE (10 PERCENT)")',
    # Spark's JSON of this plan would be two gigabytes.
    'orders.select(functools.reduce(lambda rest, n: F.when(F.col("id") == n, n).otherwise(rest), range(20), '
    'F.lit(0)).alias("n"))',
]


def test_queries_of_every_shape_are_planned_twice_alike(planned: Planned) -> None:
    source = """
import functools
from datetime import date
from decimal import Decimal
import pandas
from pyspark.sql import Window

@F.udf("string")
def upper(text):
    return text.upper()

@F.pandas_udf("string")
def loud(text):
    return text + "!"

@hr.table
def orders():
    return hr.read_kafka("o", format="json", schema="id LONG, amount DOUBLE, text STRING").drop("_source")
""" + "".join(
        f"""
@hr.materialized_view
def v{number}():
    orders = spark.table("orders")
    return {shape}
"""
        for number, shape in enumerate(SHAPES)
    )
    plan = planned(source)
    assert len(plan.refreshes) == len(SHAPES)
    assert len(set(fingerprints(plan))) == len(SHAPES) + 1
    assert fingerprints(planned(source)) == fingerprints(plan)


OPAQUE = {
    'spark.range(3).withColumn("l", loud(F.lit("x")))': True,
    'spark.range(3).mapInPandas(lambda frames: frames, "id LONG")': True,
    'spark.createDataFrame([(1, "x")], "id LONG, y STRING")': True,
    "Numbers(F.lit(3))": True,
    'spark.range(3).where(F.lit(1) < spark.createDataFrame([(1,)], "id LONG").agg(F.max("id")).scalar())': (
        True
    ),
    'spark.range(3).withColumn("n", F.explode(F.array(F.lit(1))))': False,
}


def test_changed_code_changes_the_fingerprint_where_the_plan_does_not_show_it(planned: Planned) -> None:
    for more in ("", BRANCH):
        source = """
@F.udf("string")
def loud(text):
    return text + "!"

@F.udtf(returnType="n INT")
class Numbers:
    def eval(self, end):
        yield end,
""" + "".join(
            f"\n@hr.materialized_view\ndef v{number}():\n    return ({query}){more}\n"
            for number, query in enumerate(OPAQUE)
        )
        before, after = (fingerprints(planned(text)) for text in (source, source.replace('"!"', '"?"')))
        changed = [one != other for one, other in zip(before, after, strict=True)]
        assert dict(zip(OPAQUE, changed, strict=True)) == OPAQUE


def test_a_delta_table_elsewhere_is_a_source_of_its_own(
    planned: Planned, spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/there` (id LONG) USING delta")
    plan = planned(f'''
@hr.table
def copy():
    return spark.readStream.format("delta").load("{tmp_path}/there")
''')
    (source,) = flow(plan, "copy").sources
    assert (source.kind, source.table, source.path) == ("delta", None, f"{tmp_path}/there")
    assert source.options["maxBytesPerTrigger"] == str(DELTA_MAX_BYTES_PER_TRIGGER)
    assert flow(plan, "copy").reads == ()


def test_a_flow_is_resolved_under_its_own_settings(planned: Planned, spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.caseSensitive")
    plan = planned(f"""{ORDERS}
@hr.materialized_view(spark_conf={{"spark.sql.decimalOperations.allowPrecisionLoss": "false"}})
def a():
    return spark.sql("SELECT CAST(1 AS DECIMAL(38, 10)) * CAST(1 AS DECIMAL(38, 10)) AS x")

@hr.materialized_view
def b():
    return spark.sql("SELECT CAST(1 AS DECIMAL(38, 10)) * CAST(1 AS DECIMAL(38, 10)) AS x")
""")
    a, b = (plan.schemas[TableName("default", name)]["fields"][0]["type"] for name in ("a", "b"))
    assert a != b
    assert spark.conf.get("spark.sql.caseSensitive") == before


def test_a_setting_that_spark_refuses(fault: Fault) -> None:
    error = fault(f"""{ORDERS}
@hr.materialized_view(spark_conf={{"spark.sql.warehouse.dir": "/x"}})
def a():
    return spark.range(3)
""")
    assert (error.code, error.params["setting"]) == ("QUERY_FAILED", "spark.sql.warehouse.dir")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("spark.sql.shufle.partitions", "spark.sql.shuffle.partitions"),
        ("spark.databricks.delta.optimize.maxFilesize", "spark.databricks.delta.optimize.maxFileSize"),
        ("spark.sql.streaming.stateStore.rocksdb.compactOnCommit", None),
        ("spark.databricks.delta.properties.defaults.appendOnly", None),
        ("spark.sql.catalog.spark_catalog2", None),
    ],
)
def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(
    planned: Planned, fault: Fault, given: str, meant: str | None
) -> None:
    code = f"""{ORDERS}
@hr.materialized_view(spark_conf={{"{given}": "4"}})
def a():
    return spark.range(3)
"""
    if meant is None:
        assert planned(code).refreshes
        return
    error = fault(code)
    assert (error.code, error.params["setting"]) == ("OPTION_UNKNOWN", given)
    assert error.summary == f"Unknown Spark setting `{given}`"
    assert any(f"`{meant}`" in remedy for remedy in error.remedies)


def test_a_default_property_that_would_repeat_batches_is_refused(fault: Fault) -> None:
    setting = "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration"
    code = f"""{ORDERS}
@hr.materialized_view(spark_conf={{"{setting}": "1 day"}})
def a():
    return spark.range(3)
"""
    error = fault(code)
    assert (error.code, error.params["property"]) == ("PROPERTY_FORBIDDEN", setting)


def test_a_table_without_the_statistics_of_its_files_is_refused(fault: Fault) -> None:
    setting = "spark.databricks.delta.stats.collect"
    code = f"""{ORDERS}
@hr.materialized_view(spark_conf={{"{setting}": "false"}})
def a():
    return spark.range(3)
"""
    error = fault(code)
    assert (error.code, error.params["option"]) == ("OPTION_UNSUPPORTED", setting)


@pytest.mark.parametrize("decorators", ["import headrace as d", "from pyspark import pipelines as d"])
def test_queries_declared_in_a_loop_keep_their_own_values(
    decorators: str, planned: Planned, built: Callable[..., DataFrame], spark: SparkSession
) -> None:
    source = f"""
{decorators}

for k in [1, 2, 3]:
    @d.temporary_view(name=f"view_{{k}}")
    def g():
        return spark.range(k)

    @d.materialized_view(name=f"loop_{{k}}")
    def f():
        same = F.udf(lambda n: n * k, "long")
        return spark.read.table(f"view_{{k}}").withColumn("x", same("id")).join(rows(), "id", "left")

def rows():
    return spark.range(k)
"""
    plan = planned(source)
    frames = {k: built(spark, plan, f"default.loop_{k}").orderBy("id").collect() for k in (1, 2, 3)}
    assert {k: [row.x for row in rows] for k, rows in frames.items()} == {1: [0], 2: [0, 2], 3: [0, 3, 6]}
    (note,) = plan.notes
    assert note.level == "warning" and "`rows`" in note.text and "`k`" in note.text
    assert note.location == SourceLocation("orders.py", line_of(source, "def rows"))


# -- temporary views


VIEWS = f"""{ORDERS}
@hr.temporary_view
def big():
    return spark.readStream.table("orders").where("amount > 100")

@hr.temporary_view
def known():
    return spark.range(3).withColumnRenamed("id", "customer")
"""


def test_a_temporary_view_is_its_own_query_to_whoever_reads_it(planned: Planned) -> None:
    plan = planned(f"""{VIEWS}
@hr.table
def a():
    return spark.readStream.table("big")

@hr.table
def b():
    return spark.sql("SELECT b.id FROM STREAM big AS b JOIN known ON b.id = known.customer")
""")
    for name in ("a", "b"):
        one = flow(plan, name)
        assert [(str(read.table), read.streaming) for read in one.reads] == [("default.orders", True)]
        assert [source.table for source in one.sources] == [TableName("default", "orders")]
    assert flow(plan, "a").through == (TableName("default", "big"),)
    assert {view.view.name.name for view in plan.views} == {"big", "known"}


@pytest.mark.parametrize(
    ("decorator", "query"),
    [
        ("materialized_view", 'spark.read.table("big")'),
        ("materialized_view", 'spark.sql("SELECT * FROM big")'),
        ("table", 'spark.readStream.table("known")'),
        ("table", 'spark.sql("SELECT * FROM STREAM known")'),
    ],
)
def test_a_streaming_view_is_no_batch_and_a_batch_no_stream(fault: Fault, decorator: str, query: str) -> None:
    source = f"{VIEWS}\n@hr.{decorator}\ndef wrong():\n    return {query}\n"
    error = fault(source)
    assert error.code == "VIEW_READ_MISMATCH"
    assert error.location is not None
    assert error.location.line == line_of(source, query)


# -- what is derived


PLACES = {
    'hr.read_kafka("t")': "_source.offset",
    'hr.read_kafka("t").select("value", F.col("_source.topic").alias("t"),'
    ' F.col("_source.partition").alias("p"), F.col("_source.offset").alias("o"))': "o",
    'hr.read_kafka("t").select(F.col("_source").dropFields("key", "headers").alias("at"))': "at.offset",
    'hr.read_kafka("t").withColumn("x", F.lit(1)).drop("key").withColumnRenamed("_source", "s")': "s.offset",
    'hr.read_kafka("t").withWatermark("_source.timestamp", "1 hour") if False else hr.read_kafka("t")': (
        "_source.offset"
    ),
    'hr.read_kafka("t").select("_source.*")': "offset",
    'hr.read_kafka("t").select("_source.*").withColumn("partition", F.expr("CAST(partition AS LONG)"))': (
        "offset"
    ),
    'hr.read_kafka("t", format="json", schema="id LONG").alias("a").select("a.*").repartition(2)': (
        "_source.offset"
    ),
    'hr.read_kafka("t").where("key IS NOT NULL")': None,
    'hr.read_kafka("t").withColumn("x", F.explode(F.array(F.lit(1), F.lit(2))))': None,
    'hr.read_kafka("t").select("value", "_source.topic", "_source.offset")': None,
    'hr.read_kafka("t").selectExpr("_source.topic", "_source.partition", "_source.offset + 1 AS o")': None,
    'hr.read_kafka("t").union(hr.read_kafka("u"))': None,
    'hr.read_kafka("t").dropDuplicates(["key"])': None,
    'hr.read_kafka("t").join(spark.range(3), F.lit(True), "left")': None,
}

BRANCH = '.withColumn("branch", F.struct(F.when(F.lit(True), 1).otherwise(F.when(F.lit(False), 2))))'
"""A plan with CASE WHEN is read in another way."""


def test_the_place_of_each_record_is_followed_through_the_query(planned: Planned) -> None:
    for more in ("", BRANCH):
        source = "".join(
            f"\n@hr.table\ndef t{number}():\n    return ({query}){more}\n"
            for number, query in enumerate(PLACES)
        )
        plan = planned(source)
        found = {
            query: planned_flow.coordinates.columns["offset"] if planned_flow.coordinates else None
            for query, planned_flow in zip(PLACES, plan.flows, strict=True)
        }
        assert found == PLACES


def test_the_place_is_followed_through_tables_and_the_users_word_wins(planned: Planned) -> None:
    plan = planned("""
@hr.table
def a():
    return hr.read_kafka("t").select("value", "_source")

@hr.table
def b():
    return spark.readStream.table("a").select(F.col("_source.offset").alias("o"), "_source")

@hr.table
def c():
    return spark.sql("SELECT o, _source.partition AS p, _source.topic AS t FROM STREAM b")

@hr.table(table_properties={"headrace.coordinates": '{"topic": "x", "partition": "y", "offset": "z"}'})
def d():
    return spark.sql("SELECT t AS x, p AS y, o + 1 AS z FROM STREAM c WHERE p > 0")
""")
    assert flow(plan, "b").coordinates == coordinates("_source.topic", "_source.partition", "_source.offset")
    assert flow(plan, "b").timestamp == "_source.timestamp"
    assert flow(plan, "c").coordinates == coordinates("t", "p", "o")
    assert flow(plan, "c").timestamp is None
    assert flow(plan, "d").coordinates == coordinates("x", "y", "z")


@pytest.mark.parametrize(
    "properties",
    [
        '{"delta.enableChangeDataFeedd": "true"}',
        '{"delta.logRetentionDuration": "often"}',
        '{"pipelines.cdc.tombstoneGCThresholdInSeconds": "2 days"}',
    ],
)
def test_a_property_with_a_wrong_name_or_value_is_named(fault: Fault, properties: str) -> None:
    error = fault(f'@hr.table(table_properties={properties})\ndef a():\n    return hr.read_kafka("t")\n')
    assert error.code == "PROPERTY_INVALID"
    name = properties.split('"')[1]
    assert error.location == SourceLocation("orders.py", FIRST, 30, len(name))


STATEFUL = {
    'hr.read_kafka("t")': False,
    'hr.read_kafka("t").dropDuplicates(["key"])': True,
    'hr.read_kafka("t").select("key", "_source.timestamp").withWatermark("timestamp", "1 minute")'
    '.groupBy(F.window("timestamp", "1 minute")).count()': True,
    'hr.read_kafka("t").join(hr.read_kafka("u"), "key").select("key")': True,
    'hr.read_kafka("t").join(spark.range(3).groupBy("id").count(), F.lit(True)).select("key")': False,
    'hr.read_kafka("t").limit(3)': True,
}


def test_state_is_seen_in_the_plan(planned: Planned) -> None:
    for more in ("", BRANCH):
        source = "".join(
            f"\n@hr.table\ndef t{number}():\n    return ({query}){more}\n"
            for number, query in enumerate(STATEFUL)
        )
        plan = planned(source)
        assert {q: f.stateful for q, f in zip(STATEFUL, plan.flows, strict=True)} == STATEFUL


def fingerprints(plan: Plan) -> list[str]:
    return [one.fingerprint for one in plan.flows] + [one.fingerprint for one in plan.refreshes]


def test_a_fingerprint_is_equal_until_the_query_means_another_thing(planned: Planned) -> None:
    with_code = (
        EXAMPLE
        + """
@F.udf("string")
def upper(text):
    return text.upper()

@hr.materialized_view
def loud():
    return spark.read.table("silver").select(upper("name").alias("name"))
"""
    )
    first, second = planned(with_code), planned("\n\n" + with_code)
    prints, same = fingerprints(first), fingerprints(second)
    assert prints[:3] == same[:3]
    assert len(set(prints)) == 4
    other_topic = planned(with_code.replace('read_kafka("sales")', 'read_kafka("sales2")'))
    assert flow(other_topic, "bronze").fingerprint != prints[0]
    assert flow(other_topic, "silver").fingerprint == prints[1]
    other_code = planned(with_code.replace("text.upper()", "text.lower()"))
    assert other_code.refreshes[-1].fingerprint != prints[-1]


def test_queries_do_not_see_each_others_views(fault: Fault) -> None:
    error = fault(f"""{ORDERS}
@hr.materialized_view
def one():
    spark.table("orders").createOrReplaceTempView("scratch")
    return spark.sql("SELECT * FROM scratch")

@hr.materialized_view
def two():
    return spark.sql("SELECT * FROM scratch")
""")
    assert (error.code, error.params["table"]) == ("TABLE_NOT_FOUND", "default.scratch")
    assert error.params["reader"] == "default.two"


def test_a_session_of_a_modules_own_reads_as_the_flow_does(planned: Planned) -> None:
    plan = planned(f"""
from pyspark.sql import SparkSession
session = SparkSession.builder.getOrCreate()
{ORDERS}
@hr.materialized_view
def copy():
    return session.table("orders").join(session.read.table("orders").select("id"), "id")
""")
    assert {str(read.table) for read in plan.refreshes[0].reads} == {"default.orders"}


def test_a_table_may_look_up_its_own_rows(planned: Planned) -> None:
    plan = planned("""
@hr.table(schema="id LONG, amount DOUBLE")
def orders():
    new = hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE").drop("_source")
    return new.join(spark.read.table("orders").select("id"), "id", "left_anti")
""")
    assert flow(plan, "orders").reads_target


# -- what is wrong


def test_a_missing_table_is_named_with_the_one_that_was_meant(fault: Fault) -> None:
    source = f"""{ORDERS}
@hr.table
def big():
    return spark.readStream.table("order")
"""
    error = fault(source)
    assert error.code == "TABLE_NOT_FOUND"
    assert error.location == SourceLocation("orders.py", line_of(source, '"order")'), 36, 5)
    assert "`orders` (orders.py:" in error.remedies[0]


@pytest.mark.parametrize(
    "query",
    [
        'spark.readStream.format("delta").load("gs://bucket/orders")',
        'spark.readStream.format("delta").option("path", "gs://bucket/orders").load()',
        'spark.sql("SELECT * FROM STREAM delta.`gs://bucket/orders`")',
    ],
)
def test_a_stream_over_a_table_in_an_object_store_is_refused_at_its_line(fault: Fault, query: str) -> None:
    source = f"@hr.table\ndef copy():\n    return {query}\n"
    error = fault(source)
    assert (error.code, error.params["supported"]) == ("STORAGE_UNSUPPORTED", ["file", "s3"])
    assert error.location is not None and error.location.line == line_of(source, "return")


@pytest.mark.parametrize(
    "query",
    [
        'spark.read.format("delta").load("oss://bucket/orders")',
        'spark.sql("SELECT * FROM delta.`oss://bucket/orders`")',
    ],
)
def test_a_batch_read_from_an_object_store_is_left_to_spark(fault: Fault, query: str) -> None:
    error = fault(f"@hr.materialized_view\ndef copy():\n    return {query}\n")
    assert error.code != "STORAGE_UNSUPPORTED"
    assert 'No FileSystem for scheme "oss"' in error.summary, "Spark has tried to read it"


def test_a_missing_table_in_sql_is_found_within_the_text(fault: Fault) -> None:
    source = f'''{ORDERS}
@hr.materialized_view
def big():
    return spark.sql("""
        SELECT *
        FROM ordersss
    """)
'''
    error = fault(source)
    assert (error.code, error.params["suggestion"]) == ("TABLE_NOT_FOUND", "orders")
    assert error.location == SourceLocation("orders.py", line_of(source, "ordersss"), 14, 8)


def test_a_circle_is_told_with_its_places(fault: Fault) -> None:
    source = """
@hr.materialized_view
def a():
    return spark.table("b")

@hr.materialized_view
def b():
    return spark.sql("SELECT * FROM c")

@hr.temporary_view
def c():
    return spark.read.table("a")
"""
    error = fault(source)
    assert (error.code, error.params["cycle"]) == ("CYCLE", ["default.a", "default.b", "default.c"])
    places = [line_of(source, text) for text in ('table("b")', "FROM c", 'table("a")')]
    assert [f"orders.py:{line}" in fact for line, fact in zip(places, error.facts, strict=True)] == [True] * 3


def test_a_stream_of_its_own_table_is_a_circle(fault: Fault) -> None:
    error = fault("""
@hr.table(schema="id LONG")
def a():
    return spark.readStream.table("a")
""")
    assert (error.code, error.params["cycle"]) == ("CYCLE", ["default.a"])


FAULTS = {
    "BATCH_QUERY_FOR_STREAMING_TABLE": '@hr.table\ndef wrong():\n    return spark.table("orders")  # here',
    "STREAMING_QUERY_FOR_VIEW": (
        '@hr.materialized_view\ndef wrong():\n    return spark.readStream.table("orders")  # here'
    ),
    "STREAMING_UNSUPPORTED": (
        '@hr.table\ndef wrong():\n    return spark.readStream.table("orders").orderBy("id")  # here'
    ),
    "SOURCE_UNSUPPORTED": (
        '@hr.table\ndef wrong():\n    s = spark.readStream.format("socket").option("port", 9)\n'
        '    return s.option("host", "localhost").load()  # here'
    ),
    "OPTION_UNSUPPORTED": (
        '@hr.table\ndef wrong():\n    r = spark.readStream.format("delta").option("failOnDataLoss", False)\n'
        '    return r.table("orders")  # here'
    ),
    "OPTION_UNKNOWN": (
        '@hr.table\ndef wrong():\n    r = spark.readStream.format("kafka").option("subscibe", "t")\n'
        "    return r.load()  # here"
    ),
    "OPTION_INVALID": (
        '@hr.table\ndef wrong():\n    r = spark.readStream.format("kafka").option("subscribe", "t")\n'
        '    return r.option("startingOffsets", "middle").load()  # here'
    ),
    "SCHEMA_MISMATCH": (
        '@hr.table(schema="id LONG, amount INT")  # here\ndef wrong():\n'
        '    return spark.readStream.table("orders")'
    ),
    "SCHEMA_INVALID": (
        '@hr.table(schema="id LONGG")  # here\ndef wrong():\n    return spark.readStream.table("orders")'
    ),
    "COLUMN_NOT_FOUND": (
        '@hr.table(cluster_by=["idd"])  # here\ndef wrong():\n    return spark.readStream.table("orders")'
    ),
    "COLUMN_INVALID": (
        '@hr.materialized_view\ndef wrong():  # here\n    return spark.sql("SELECT NULL AS n")'
    ),
    "QUERY_INVALID": "@hr.materialized_view\ndef wrong():  # here\n    spark.range(3)",
    "QUERY_FAILED": "@hr.materialized_view\ndef wrong():\n    return 1 / 0  # here",
}


@pytest.mark.parametrize("code", FAULTS)
def test_what_is_wrong_is_said_with_its_place(fault: Fault, code: str) -> None:
    source = f"{ORDERS}\n{FAULTS[code]}\n"
    error = fault(source)
    assert error.code == code
    assert error.location is not None
    assert (error.location.path, error.location.line) == ("orders.py", line_of(source, "# here"))
    assert error.remedies or code == "QUERY_FAILED"


MISSING_COLUMNS = {
    'spark.table("orders").select("id",\n        "amuont")': ("amuont", "amount"),
    "spark.table(\"orders\").where('amuont > 1')": ("amuont", "amount"),
    'spark.table("orders").select(\n        F.col("Ammount") + 1)': ("Ammount", "amount"),
    'spark.sql("SELECT id,\\n orders.amont FROM orders")': ("orders.amont", "amount"),
    'spark.table("orders").select("_source.topik")': ("topik", "topic"),
    'spark.table("orders").select("zzzzzz")': ("zzzzzz", None),
}


def test_a_column_that_does_not_exist_is_named_with_the_near_one(fault: Fault) -> None:
    source = ORDERS + "".join(
        f"\n@hr.materialized_view\ndef v{number}():\n    return {query}\n"
        for number, query in enumerate(MISSING_COLUMNS)
    )
    errors = fault(source).params["errors"]
    assert [one["code"] for one in errors] == ["COLUMN_NOT_FOUND"] * len(MISSING_COLUMNS)
    for error, (column, near) in zip(errors, MISSING_COLUMNS.values(), strict=True):
        assert (error["params"]["column"], error["params"]["suggestion"]) == (column, near)
        name = column.rpartition(".")[2]
        line = (HEAD + source).splitlines()[error["location"]["line"] - 1]
        assert name in line, error
        assert "SELECT" in line or line[error["location"]["column"] - 1 :].startswith(column)
        assert not any(
            "Project" in text or "SQLSTATE" in text for text in [error["summary"], *error["facts"]]
        )


def test_a_function_in_place_of_a_tables_name_is_named(fault: Fault) -> None:
    source = f"""{ORDERS}
@hr.materialized_view
def a():
    return spark.read.table(orders)  # one

@hr.materialized_view
def b():
    return spark.table(7)

@hr.table
def c():
    return spark.readStream.table(tableName=orders)
"""
    errors = fault(source).params["errors"]
    assert [one["summary"] for one in errors] == [
        "spark.read.table() needs a name, not the function `orders`",
        "spark.table() needs a name, not a int",
        "spark.readStream.table() needs a name, not the function `orders`",
    ]
    assert errors[0]["remedies"] == ['spark.read.table("orders")']
    assert errors[0]["location"]["line"] == line_of(source, "# one")


def test_relative_paths_start_at_the_pipelines_folder(
    planned: Planned, built: Callable[..., DataFrame], spark: SparkSession, settings: ProjectSettings
) -> None:
    (settings.root / "in").mkdir()
    (settings.root / "in" / "a.json").write_text('{"id": 1}')
    (settings.root / "in" / "b.csv").write_text("2")
    spark.range(3).write.format("delta").save(str(settings.root / "elsewhere"))
    plan = planned("""
at_load = spark.read.json("in/a.json").count()

@hr.table
def streamed():
    return spark.readStream.schema("id LONG").json("in")

@hr.table
def changed():
    return spark.readStream.format("delta").load("elsewhere")

@hr.materialized_view
def batch():
    json = spark.read.json("in/a.json").union(spark.read.schema("id LONG").json(["in/a.json"]))
    loaded = spark.read.format("json").load("./in/a.json").union(
        spark.read.format("csv").schema("id LONG").option("path", "in/b.csv").load())
    sql = spark.sql("SELECT id FROM json.`in/a.json` UNION ALL SELECT id FROM delta.`elsewhere`")
    delta = spark.read.load("elsewhere", format="delta").union(spark.read.text("in/b.csv").select(F.lit(9)))
    return json.union(loaded).union(sql).union(delta).withColumn("n", F.lit(at_load))
""")
    assert flow(plan, "streamed").sources[0].path == str(settings.root / "in")
    assert flow(plan, "changed").sources[0].path == str(settings.root / "elsewhere")
    rows = built(spark, plan, "default.batch").collect()
    assert sorted(row.id for row in rows) == sorted([1, 1, 1, 2, 1, 0, 1, 2, 0, 1, 2, 9])
    assert {row.n for row in rows} == {1}


@pytest.mark.parametrize(
    ("relation", "code"),
    [
        ("STREAM orders WITH (startVersion = 0)", "OPTION_UNKNOWN"),
        ("orders WITH (maxFilesPerTrigger = 1)", "OPTION_UNKNOWN"),
        ("STREAM(orders) WITH (failOnDataLoss = false)", "OPTION_UNSUPPORTED"),
        ("STREAM orders WITH ('startingVersion' = 'one')", "OPTION_INVALID"),
        ("STREAM delta.`/nowhere` WITH (startVersion = 0)", "OPTION_UNKNOWN"),
    ],
)
def test_options_in_sql_are_looked_at_like_those_of_a_reader(fault: Fault, relation: str, code: str) -> None:
    source = (
        f'{ORDERS}\n@hr.materialized_view\ndef wrong():\n    return spark.sql("""\n'
        f'    SELECT *\n    FROM {relation}""")\n'
    )
    error = fault(source)
    assert error.code == code
    assert error.location is not None
    assert (error.location.path, error.location.line) == ("orders.py", line_of(source, relation))


PARSED = {
    "python": "values.select(F.from_json('t', 'a INT').alias('r'))",
    "imported before": "values.select(from_json('t', 'a INT').alias('r'))",
    "selectExpr": "values.selectExpr([\"from_json(t, 'a INT') AS r\"])",
    "filter": "values.where(\"from_json(t, 'a INT').a IS NULL\").selectExpr('struct(t) AS r')",
    "sql": "spark.sql(\"SELECT from_json(t, 'a INT') AS r FROM {v}\", v=values)",
    "csv": "values.select(F.from_csv('t', 'a INT').alias('r'))",
    "mode": "values.select(F.from_json('t', 'a INT', {'mode': 'PERMISSIVE'}).alias('r'))",
}
STRICT = {
    "failfast": "values.select(F.from_json('t', 'a INT', {'mode': 'FAILFAST'}).alias('r'))",
    "ours": "values.select(hr.parse_json('t', 'a INT').alias('r'))",
}


def test_what_a_query_parses_by_itself_keeps_sparks_semantics(
    planned: Planned, built: Callable[..., DataFrame], spark: SparkSession
) -> None:
    head = "from pyspark.sql.functions import from_json\n"
    values = "spark.sql(\"SELECT * FROM VALUES ('{bad') AS v(t)\")"
    plan = planned(
        head
        + "".join(
            f"@hr.materialized_view\ndef v{number}():\n    values = {values}\n"
            f"    return {query}.select(F.to_json('r').alias('r'))\n"
            for number, query in enumerate([*PARSED.values(), *STRICT.values()])
        )
    )
    for number, name in enumerate(PARSED):
        (row,) = built(spark, plan, f"default.v{number}").collect()
        assert row.r == ('{"t":"{bad"}' if name == "filter" else "{}"), name
    for number in range(len(PARSED), len(PARSED) + len(STRICT)):
        with pytest.raises(Exception, match=r"MALFORMED_RECORD_IN_PARSING|HEADRACE_BAD_RECORD"):
            built(spark, plan, f"default.v{number}").collect()


ACTIONS = [
    'spark.table("orders").collect()',
    'spark.table("orders").first()',
    'spark.table("orders").count()',
    'spark.table("orders").toPandas()',
    'spark.table("orders").isEmpty()',
    'spark.table("orders").show()',
    'spark.table("orders").rdd',
    'spark.table("orders").write.saveAsTable("x")',
    'spark.table("orders").writeTo("x").append()',
    'spark.readStream.table("orders").writeStream.start()',
    'spark.table("orders").groupBy("id").pivot("amount").count()',
    'spark.sql("INSERT INTO orders VALUES (1, 2.0)")',
    'spark.sql("CREATE TABLE x (id LONG)")',
]


def test_a_query_that_computes_is_refused_at_its_line(fault: Fault) -> None:
    source = ORDERS + "".join(
        f"\n@hr.materialized_view\ndef v{number}():\n    {action}\n    return spark.range(3)\n"
        for number, action in enumerate(ACTIONS)
    )
    error = fault(source)
    assert error.code == "PLAN_FAILED"
    errors = error.params["errors"]
    assert [one["code"] for one in errors] == ["ACTION_IN_QUERY"] * len(ACTIONS)
    assert [one["location"]["line"] for one in errors] == [line_of(source, action) for action in ACTIONS]


def test_what_says_what_a_table_is_may_be_used_in_a_query(planned: Planned) -> None:
    plan = planned(f"""{ORDERS}
regions = [row.id for row in spark.range(2).collect()]

@hr.materialized_view
def fine():
    frame = spark.table("orders")
    frame.createOrReplaceTempView("mine")
    known = spark.createDataFrame([(r, "x") for r in regions], "id LONG, name STRING")
    wide = frame.groupBy("id").pivot("amount", [1.0, 2.0]).count()
    frame.printSchema(); frame.columns; frame.schema; frame.isStreaming
    return spark.sql("SELECT * FROM mine").join(known, "id").join(wide, "id")
""")
    assert columns(plan, "fine")[0] == "id"


def test_everything_that_is_wrong_is_said_at_once_and_each_thing_once(fault: Fault) -> None:
    error = fault("""
@hr.materialized_view
def a():
    return spark.table("nothing")

@hr.materialized_view
def b():
    return spark.table("a")

@hr.materialized_view
def c():
    return spark.table("a").select("x")

@hr.materialized_view
def d():
    return spark.range(3).select("x")
""")
    assert error.code == "PLAN_FAILED"
    assert [one["code"] for one in error.params["errors"]] == ["TABLE_NOT_FOUND", "COLUMN_NOT_FOUND"]


@pytest.mark.parametrize(
    "sql", ["SELECT id, amunt FROM STREAM spark_catalog.default.orders", "SELECT id, FROM orders"]
)
def test_a_fault_in_sql_is_shown_within_the_text(fault: Fault, sql: str) -> None:
    source = f'{ORDERS}\n@hr.table\ndef wrong():\n    return spark.sql("{sql}")\n'
    error = fault(source)
    assert error.code == ("COLUMN_NOT_FOUND" if "amunt" in sql else "QUERY_FAILED")
    assert error.location is not None
    assert error.location.line == line_of(source, sql)
    line = (HEAD + source).split("\n")[error.location.line - 1]
    if "amunt" in sql:
        assert error.location.column == line.index("amunt") + 1
    else:
        assert error.location.column is not None or any("column" in fact for fact in error.facts)


def test_a_failure_in_a_function_that_a_query_calls_is_placed_there(
    fault: Fault, settings: ProjectSettings
) -> None:
    source = """
def helper():
    return {}["missing"]

@hr.materialized_view
def wrong():
    return helper()
"""
    error = fault(source)
    assert (error.code, error.params["exception"]) == ("QUERY_FAILED", "KeyError")
    assert error.location == SourceLocation("orders.py", line_of(source, '{}["missing"]'))


def test_flows_that_disagree_about_a_column(fault: Fault) -> None:
    error = fault("""
hr.create_streaming_table("orders")

@hr.append_flow(target="orders")
def a():
    return hr.read_kafka("a", format="json", schema="id LONG")

@hr.append_flow(target="orders")
def b():
    return hr.read_kafka("b", format="json", schema="id STRING")
""")
    assert (error.code, error.params["column"]) == ("FLOW_SCHEMAS_DIFFER", "id")


# -- the storage


def make_table(
    spark: SparkSession, settings: ProjectSettings, name: str, ddl: str, **properties: str
) -> None:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    path = settings.storage.table(TableName("default", name))
    spark.sql(f"CREATE TABLE delta.`{path}` ({ddl}) USING delta TBLPROPERTIES ({listed})")


OURS = {"headrace.pipeline": "shop", "headrace.kind": "streaming_table"}


def test_tables_of_the_storage_are_read_without_being_declared(
    planned: Planned, fault: Fault, spark: SparkSession, settings: ProjectSettings
) -> None:
    make_table(spark, settings, "customers", "id LONG, name STRING", **{**OURS, "headrace.pipeline": "crm"})
    make_table(spark, settings, "totals", "id LONG", **{"headrace.kind": "materialized_view"})
    source = '@hr.table\ndef copy():\n    return spark.readStream.table("customers")\n'
    plan = planned(source)
    assert columns(plan, "copy") == ["id", "name"]
    assert [(read.table.name, read.declared) for read in flow(plan, "copy").reads] == [("customers", False)]
    notes = planned(source.replace("customers", "totals")).notes
    assert "materialized view `totals`" in next(note.text for note in notes if "a stream reads" in note.text)


def test_a_table_that_the_users_code_registered_is_found(planned: Planned, tmp_path: Path) -> None:
    plan = planned(f"""
place = "{tmp_path}/lookup"
spark.sql(f"CREATE TABLE IF NOT EXISTS plan_lookup USING parquet LOCATION '{{place}}' AS SELECT 1 AS k")

@hr.materialized_view
def copy():
    return spark.table("plan_lookup")
""")
    assert columns(plan, "copy") == ["k"]


def test_changes_say_what_a_run_would_do(
    planned: Planned, spark: SparkSession, settings: ProjectSettings
) -> None:
    make_table(spark, settings, "orders", "id INT, gone STRING, _source STRING", team="x", **OURS)
    make_table(spark, settings, "old", "id LONG", **OURS)
    make_table(spark, settings, "foreign", "id LONG", **{"headrace.pipeline": "crm"})
    plan = planned(ORDERS.replace("@hr.table", '@hr.table(table_properties={"team": "y"})'))
    assert plan.changes is not None
    texts = {(c.dataset.name, c.kind): [] for c in plan.changes}  # type: ignore[var-annotated]
    for change in plan.changes:
        texts[change.dataset.name, change.kind].append(change.text)
    altered = " | ".join(texts["orders", "alter"])
    assert "adds the column amount DOUBLE" in altered
    # A run refuses to change the type of a column, and so it is kept.
    kept = " | ".join(texts["orders", "keep"])
    assert "the column id is INT in the table and BIGINT in the query" in kept
    assert "keeps the column gone" in kept
    assert "sets team = y (was x)" in altered
    (kept,) = texts["old", "keep"]
    assert kept.startswith("no file declares it any more; the table is kept. To remove it: ")
    assert "`headrace tables old --remove`" in kept
    assert "foreign" not in {dataset for dataset, _ in texts}
    assert planned(ORDERS, offline=True).changes is None
    # A table that is new may be another one under a new name.
    (kept,) = (
        one.text
        for one in planned(ORDERS.replace("def orders(", "def sales(")).changes or ()
        if one.dataset.name == "old"
    )
    assert 'declare the table with name="old"' in kept


# -- at run time


def test_a_run_builds_the_same_query_over_the_real_tables(
    planned: Planned,
    built: Callable[..., DataFrame],
    spark: SparkSession,
    settings: ProjectSettings,
    tmp_path: Path,
) -> None:
    plan = planned("""
@hr.table
def orders():
    return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE").drop("_source")

@hr.temporary_view
def big():
    return spark.readStream.table("orders").where("amount > 100")

@hr.table
def copy():
    return spark.sql("SELECT * FROM STREAM big")

@hr.table
def direct():
    return spark.sql("SELECT o.id FROM STREAM(spark_catalog.default.orders) AS o WHERE o.amount > 100")

@hr.materialized_view
def total():
    return spark.sql("SELECT sum(amount) AS total FROM spark_catalog.default.orders")
""")
    session = spark.newSession()
    make_table(spark, settings, "orders", "id LONG, amount DOUBLE", **OURS)
    path = settings.storage.table(TableName("default", "orders"))
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 50.0), (2, 150.0)")
    session.sql(f"CREATE TABLE orders USING delta LOCATION '{path}'")
    try:
        total = built(session, plan, "default.total")
        assert [row.total for row in total.collect()] == [200.0]
        for name in ("copy", "direct"):
            stream = built(session, plan, name)
            assert stream.isStreaming
            writer = stream.writeStream.format("memory").queryName(f"plan_{name}")
            writer = writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
            assert writer.start().awaitTermination(60)
            rows = stream.sparkSession.sql(f"SELECT id FROM plan_{name}").collect()
            assert [row.id for row in rows] == [2]
    finally:
        session.sql("DROP TABLE orders")


def test_outside_of_a_pipeline_pyspark_is_as_it_was(spark: SparkSession, planned: Planned) -> None:
    planned(EXAMPLE)
    assert spark.range(3).count() == 3
    assert spark.sql("SELECT 1 AS a").collect()[0].a == 1
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table("bronze")
