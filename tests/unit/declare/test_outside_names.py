"""Names and paths of other systems are found in the files, before anything runs."""

from __future__ import annotations

from pathlib import Path

from headrace.declare.outside_names import entry_lines, find_outside

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
