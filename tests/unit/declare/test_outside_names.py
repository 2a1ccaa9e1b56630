"""Names and paths of other systems are found in the files, before anything runs."""

from __future__ import annotations

from pathlib import Path

from headrace.declare.outside_names import entry_lines, find_names, find_outside

PYTHON = '''
import dlt

LANDING = "/Volumes/main/shop/landing"

@dlt.table(name="main.shop.orders")
def orders():
    return spark.readStream.table("project.source.orders").join(spark.table("main.shop.orders"), "id")

@dlt.table
def lines():
    return spark.sql(f"""
        SELECT * FROM samples.shop.lines l
        JOIN {other}.shop.rest r ON l.id = r.id -- FROM a.b.c
        WHERE extract(YEAR FROM l.at.x.y) > 1""").join(spark.read.json(f"dbfs:/raw/{day}"), "id")
'''
SQL = """
-- reads from old.x.y
CREATE STREAMING TABLE main.shop.visits AS SELECT * FROM STREAM(`web`.logs.visits);
CREATE MATERIALIZED VIEW v AS SELECT count(*) FROM main.shop.visits, delta.`s3a://bucket/t`;
"""


def test_tables_and_paths_of_other_systems_become_entries_to_fill_in(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PYTHON)
    (tmp_path / "b.sql").write_text(SQL)
    found = find_outside([tmp_path / "a.py", tmp_path / "b.sql"], tmp_path)
    assert list(entry_lines(found)) == [
        "tables:",
        "  project.source.orders: ./orders   # a.py:8",
        "  samples.shop.lines: ./lines   # a.py:13",
        "  web.logs.visits: ./visits   # b.sql:3",
        "paths:",
        '  "dbfs:": ./dbfs   # a.py:15',
        "  /Volumes: ./volumes   # a.py:4",
        "  s3a://bucket: ./bucket   # b.sql:4",
    ]


KNOWN = '''
import dlt

CATALOG = spark.conf.get("catalog", "main")
RAW = f"{CATALOG}.raw"
SOURCE = dbutils.widgets.get("source")
day = spark.conf.get("day")
LANDING = dbutils.widgets.get("landing")

for name in ["a", "b"]:
    @dlt.table(name=f"{name}_bronze")
    def bronze():
        return spark.readStream.table(f"{RAW}.orders")

@dlt.view
def seen():
    return spark.sql(f"""
        WITH recent AS (SELECT * FROM {CATALOG}.raw.visits)
        SELECT EXTRACT(YEAR FROM at) FROM recent JOIN a_bronze USING (id) JOIN lookups
        ON x IS DISTINCT FROM y""")

@dlt.table
def gold():
    return dlt.read("seen").join(spark.table("shop.prices"), "id").join(spark.table(SOURCE), "id")

dlt.create_sink("out", "delta", {"tableName": "other.gold.orders"})
'''


def test_names_are_known_from_constants_and_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(KNOWN)
    query = "SELECT * FROM ${source}.raw.lines WHERE a = '${mine}${when}'"
    (tmp_path / "b.sql").write_text(f"SET mine = x;\nCREATE MATERIALIZED VIEW v AS {query};")
    files = [tmp_path / "a.py", tmp_path / "b.sql"]
    found = find_names(files, tmp_path, {"source": "web", "landing": "/Volumes/in"}, short=True)
    assert list(entry_lines(found.outside)) == [
        "tables:",
        "  lookups: ./lookups   # a.py:19",
        "  main.raw.orders: ./orders   # a.py:13",
        "  main.raw.visits: ./visits   # a.py:18",
        "  other.gold.orders: ./orders   # a.py:26",
        "  shop.prices: ./prices   # a.py:24",
        "  web.raw.lines: ./lines   # b.sql:2",
        "  web: ./web   # a.py:24",
        "paths:",
        "  /Volumes: ./volumes   # a.py:8",
    ]
    assert {key: str(at) for key, at in found.keys.items()} == {"day": "a.py:7", "when": "b.sql:2"}


BROKERS = """
SPACE = spark.conf.get("space")
HOST = spark.conf.get("host")
OPTIONS = {
    "kafka.bootstrap.servers": f"{SPACE}.servicebus.windows.net:9093",
    "kafka.security.protocol": "SASL_SSL",
}
reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", f"{HOST}:9092,b2:9092")
OPTIONS["kafka.bootstrap.servers"] = "embedded"
dp.create_sink("out", "kafka", {"kafka.bootstrap.servers": spark.conf.get("unknown"), "topic": "out"})
spark.sql("SELECT * FROM read_kafka(bootstrapServers => 'k1:9092', subscribe => 'orders')")
hr.read_kafka("orders", options={"kafka.bootstrap.servers": ADDRESS})
"""


def test_the_addresses_of_brokers_are_found_also_if_a_part_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BROKERS)
    found = find_names([tmp_path / "a.py"], tmp_path, {"host": "b1"})
    assert {servers: str(at) for servers, at in found.brokers.items()} == {
        "*.servicebus.windows.net:9093": "a.py:5",
        "b1:9092,b2:9092": "a.py:8",
        "k1:9092": "a.py:11",
    }


PROSE = '''
import dlt

def read(path):
    """Create a stream from a folder; select it from the landing zone."""
    return spark.readStream.format("cloudFiles").load(path)

@dlt.table(comment="Select the orders from the shop")
def orders():
    return read("./in")
'''
PROSE_SQL = """
/* moved from web
   on Monday */
CREATE STREAMING TABLE raw COMMENT "loaded incrementally from cloud storage,
  it wasn't joined with join keys" TBLPROPERTIES ('from' = 'from the hub -- see notes') AS
SELECT *, 'taken from app' AS note FROM STREAM `the web`;
"""


def test_words_in_comments_and_literals_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PROSE)
    (tmp_path / "b.sql").write_text(PROSE_SQL)
    found = find_names([tmp_path / "a.py", tmp_path / "b.sql"], tmp_path, {}, short=True)
    assert list(entry_lines(found.outside)) == ["tables:", "  the web: ./the web   # b.sql:6"]
