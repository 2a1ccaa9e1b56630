"""Flows that read the change data feed of a Delta table, and the refusals where that is not possible."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from headrace.errors import HeadraceError
from headrace.project.pipeline import Pipeline
from landing import VISITS, Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READS = """
import headrace as hr

@hr.table
def latest():
    return hr.read_changes("PATH")

@hr.table
def history():
    return hr.read_changes("PATH", images="all")

@hr.table
def late():
    return hr.read_changes("PATH", starting_version=2)

@hr.table
def plain():
    return spark.readStream.format("delta").option("readChangeFeed", "true").load("PATH")
"""
ROWS = """
@hr.table
def rows():
    return hr.read_table_stream("PATH", max_files_per_trigger=1)
"""


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def people(tmp_path: Path, spark: SparkSession) -> str:
    """A table of another job, with a change data feed from its second version on."""
    path = str(tmp_path / "people")
    spark.range(3).selectExpr("id", "'a' AS name").repartition(1).write.format("delta").save(path)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    return path


def merge(spark: SparkSession, path: str, *rows: tuple[int, str]) -> None:
    source = spark.createDataFrame(list(rows), "id LONG, name STRING")
    source.createOrReplaceTempView("changed_people")
    spark.sql(
        f"MERGE INTO delta.`{path}` AS t USING changed_people AS s ON t.id = s.id "
        "WHEN MATCHED AND s.name = '' THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def run(site: Site, *datasets: str) -> tuple[HeadraceError, ...]:
    with Pipeline.load(site.root) as pipeline:
        return tuple(pipeline.run(datasets).errors)


def changes(site: Site, table: str) -> list[tuple[Any, ...]]:
    return sorted((r["_commit_version"], r["id"], r["_change_type"], r["name"]) for r in site.rows(table))


def test_a_merged_table_is_read_by_its_change_feed(site: Site, people: str, spark: SparkSession) -> None:
    site.write(f"from headrace import spark\n{READS}{ROWS}".replace("PATH", people))
    assert run(site, "latest", "history", "plain", "rows") == ()
    whole = [(1, 0, "insert", "a"), (1, 1, "insert", "a"), (1, 2, "insert", "a")]
    assert changes(site, "latest") == changes(site, "history") == changes(site, "plain") == whole
    assert len(site.rows("rows")) == 3
    merge(spark, people, (0, "b"), (1, ""), (7, "c"))
    (error,) = run(site)
    merged = [(2, 0, "update_postimage", "b"), (2, 1, "delete", "a"), (2, 7, "insert", "c")]
    both = sorted([*merged, (2, 0, "update_preimage", "a")])
    assert changes(site, "latest") == whole + merged
    assert changes(site, "history") == changes(site, "plain") == whole + both
    assert changes(site, "late") == merged
    assert error.code == "UPSTREAM_REWRITTEN"
    assert error.location is not None and error.location.line == len(READS.splitlines()) + 5
    assert "hr.read_changes(" in error.remedies[0]
    with Pipeline.load(site.root) as pipeline:
        (refusal,) = pipeline.plan().refusals
    assert (refusal.code, refusal.location) == (error.code, error.location)
    feeds = ("latest", "history", "late", "plain")
    with Pipeline.load(site.root) as pipeline:
        assert pipeline.verify(feeds).proven
    assert run(site, *feeds) == ()
    assert changes(site, "latest") == whole + merged


def test_a_run_enables_the_feed_of_a_table_that_a_flow_reads(site: Site) -> None:
    visits = VISITS.replace("{more}", "")
    feed = '\n@hr.table\ndef feed():\n    return hr.read_changes("visits")\n'
    site.put("a.json", {"id": 1, "page": "p"})
    site.write(visits)
    site.run_well()
    site.write(visits + feed)
    with Pipeline.load(site.root) as pipeline:
        plan = pipeline.plan()
        (change,) = [one for one in plan.changes or () if one.name == "delta.enableChangeDataFeed"]
        assert (change.dataset.name, plan.refusals) == ("visits", ())
        assert [error.code for error in pipeline.plan(["feed"]).refusals] == ["CHANGE_FEED_MISSING"]
    site.run_well()
    site.put("b.json", {"id": 2, "page": "q"})
    site.run_well()
    assert sorted((row["id"], row["_change_type"]) for row in site.rows("feed")) == [
        (1, "insert"),
        (2, "insert"),
    ]
    assert site.verify().proven
    off = '@hr.table(table_properties={"delta.enableChangeDataFeed": "false"}, spark_conf='
    site.write(visits.replace("@hr.table(spark_conf=", off) + feed.replace("feed()", "other()"))
    with Pipeline.load(site.root) as pipeline:
        assert "CHANGE_FEED_MISSING" in [error.code for error in pipeline.plan().refusals]


def test_a_line_of_the_spec_enables_the_feed_for_another_pipeline(site: Site, tmp_path: Path) -> None:
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    path = site.storage.table(site.name())
    reader = Site(tmp_path / "reader")
    reader.write(f'import headrace as hr\n\n@hr.table\ndef feed():\n    return hr.read_changes("{path}")\n')
    with Pipeline.load(reader.root) as pipeline:
        (error,) = pipeline.plan().refusals
    assert (error.code, error.params["writer"]) == ("CHANGE_FEED_MISSING", "site")
    line = error.remedies[0].partition(":   ")[2]
    site.write_spec(**YAML(typ="safe").load(line))
    with Pipeline.load(site.root) as pipeline:
        assert "delta.enableChangeDataFeed" in [one.name for one in pipeline.plan().changes or ()]
    site.run_well()
    reader.run_well()
    site.put("b.json", {"id": 2, "page": "q"})
    site.run_well()
    reader.run_well()
    found = sorted((row["id"], row["_change_type"]) for row in reader.rows("feed"))
    assert found == [(1, "insert"), (2, "insert")]
    assert reader.verify().proven


def test_what_vacuum_or_new_columns_have_removed_is_refused(
    site: Site, people: str, spark: SparkSession
) -> None:
    site.write(f'import headrace as hr\n\n@hr.table\ndef feed():\n    return hr.read_changes("{people}")\n')
    site.run_well()
    merge(spark, people, (0, "b"))
    moved = Path(people) / "_change_data"
    shutil.move(moved, f"{people}_kept")
    assert site.error().code == "UPSTREAM_LOG_EXPIRED"
    shutil.move(f"{people}_kept", moved)
    site.run_well()
    table = f"delta.`{people}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    merge(spark, people, (0, "c"))
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO title")
    assert site.error().code == "UPSTREAM_SCHEMA_CHANGED"
