"""Tables of other pipelines, and of nobody's, are read like a pipeline's own: nothing lost, nothing twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import HeadraceError
from headrace.project.pipeline import Pipeline
from proof.shop import Shop
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

READER = """
import headrace as hr
from headrace import spark

@hr.table
def silver():
    return spark.readStream.format("delta"){options}.load("{path}")
"""

SHARED = """
import headrace as hr
from headrace import spark

table = spark.readStream.format("delta"){options}.load("{path}")

@hr.table
def silver():
    return table

@hr.table(spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
def zoned():
    return table.selectExpr("id", "current_timezone() AS zone")
"""

IN_SQL = """
import headrace as hr
from headrace import spark

@hr.table
def silver():
    return spark.sql("SELECT * FROM STREAM delta.`{path}`{options}")
"""


def write(shop: Shop, path: Path, options: str = "", code: str = READER) -> None:
    shop.write(code.replace("{options}", options).replace("{path}", str(path)))


def rows(shop: Shop, table: str = "silver") -> int:
    return int(deltalake.DeltaTable(shop.table(table)).to_pyarrow_table().num_rows)


def test_the_table_of_another_pipeline_is_read_once_and_proven(make_shop: Callable[..., Shop]) -> None:
    upstream, shop = make_shop(), make_shop()
    write(shop, upstream.table("bronze"))
    with Pipeline.load(shop.root) as pipeline, pytest.raises(HeadraceError) as caught:
        pipeline.plan()
    assert (caught.value.code, caught.value.location and caught.value.location.line) == ("TABLE_NOT_FOUND", 7)

    upstream.produce(30)
    upstream.run_well()
    shop.run_well()
    assert [flow.outcome for flow in shop.run_well().flows] == ["up to date"]
    upstream.produce(30)
    upstream.run_well()
    with Pipeline.load(shop.root) as pipeline:
        (status,) = pipeline.status().datasets
    assert status.flows[0].lag == 30
    shop.run_well()
    assert rows(shop) == 60
    proof = shop.verify()
    grades = {grade.grade: grade for grade in proof.datasets[0].flows[0].grades}
    assert grades["records"].verdict == "proven", grades["records"]

    with Pipeline.load(upstream.root) as pipeline:
        pipeline.full_refresh(["bronze"])
    error = shop.refused()
    assert error.code == "UPSTREAM_REWRITTEN"
    assert any("full-refresh" in remedy for remedy in error.remedies)
    with Pipeline.load(shop.root) as pipeline:
        pipeline.full_refresh(["silver"])
    assert rows(shop) == 60

    shutil.rmtree(upstream.storage.root)
    upstream.run_well()
    error = shop.refused()
    assert error.code == "SOURCES_CHANGED"


@pytest.mark.guarantee
def test_commits_that_a_log_has_lost_before_they_were_read_are_refused(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "foreign"
    append(path, 0)
    write(shop, path)
    shop.run_well()
    for number in (1, 2, 3):
        append(path, number)
    deltalake.DeltaTable(path).create_checkpoint()
    for version in (0, 1, 2):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    error = shop.refused()
    assert error.code == "UPSTREAM_LOG_EXPIRED"
    assert any("full-refresh" in remedy for remedy in error.remedies)


def append(path: Path, number: int) -> None:
    deltalake.write_deltalake(path, pa.table({"id": [number * 10 + one for one in range(10)]}), mode="append")


def test_a_stream_that_two_flows_share_starts_at_a_moment_and_follows_what_came_since(
    shop: Shop, tmp_path: Path
) -> None:
    path = tmp_path / "foreign"
    append(path, 0)
    moment = datetime.now(UTC)
    until(lambda: datetime.now(UTC).timestamp() > moment.timestamp() + 0.05, "the clock goes on")
    append(path, 1)
    write(shop, path, f'.option("startingTimestamp", "{moment:%Y-%m-%d %H:%M:%S.%f}")', SHARED)
    shop.run_well()
    assert (rows(shop), rows(shop, "zoned")) == (10, 10)
    append(path, 2)
    shop.run_well()
    assert (rows(shop), rows(shop, "zoned")) == (20, 20)
    zones = deltalake.DeltaTable(shop.table("zoned")).to_pyarrow_table()["zone"].to_pylist()
    assert set(zones) == {"Asia/Tokyo"}
    deltalake.DeltaTable(path).update({"id": "id + 1000"}, predicate="id = 5")
    deltalake.DeltaTable(path).update({"id": "id + 1000"}, predicate="id = 15")
    assert [error.code for error in shop.run().errors] == ["UPSTREAM_REWRITTEN"] * 2
    assert (rows(shop), rows(shop, "zoned")) == (20, 20)


def test_rows_that_were_changed_before_the_first_batch_are_refused_from_a_moment_on(
    shop: Shop, tmp_path: Path
) -> None:
    path = tmp_path / "foreign"
    append(path, 0)
    moment = datetime.now(UTC)
    until(lambda: datetime.now(UTC).timestamp() > moment.timestamp() + 0.05, "the clock goes on")
    append(path, 1)
    deltalake.DeltaTable(path).update({"id": "id + 1000"}, predicate="id = 15")
    write(shop, path, f'.option("startingTimestamp", "{moment:%Y-%m-%d %H:%M:%S.%f}")')
    assert shop.refused().code == "UPSTREAM_REWRITTEN"


UNION = """
import headrace as hr
from headrace import spark

@hr.table
def silver():
    return {tables}
"""


def test_a_table_that_leaves_a_query_is_known_when_it_comes_back(shop: Shop, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    def read(*paths: Path) -> None:
        tables = [f'spark.readStream.format("delta").load("{path}")' for path in paths]
        shop.write(UNION.replace("{tables}", ".union(".join(tables) + ")" * (len(tables) - 1)))

    for path in (one, two):
        append(path, 0)
    shutil.copytree(two, tmp_path / "copy")
    append(two, 1)
    read(one, two)
    shop.run_well()
    read(one)
    shop.run_well(reset="silver")
    for path in (one, two):
        append(path, 2)
    read(two, one)
    shop.run_well(reset="silver")
    assert rows(shop) == 50
    assert shop.verify().proven

    read(one)
    shop.run_well(reset="silver")
    shutil.rmtree(two)
    (tmp_path / "copy").rename(two)
    for number in (3, 4, 5):
        append(two, number)
    read(one, two)
    error = shop.refused(reset="silver")
    assert (error.code, str(two) in error.summary) == ("UPSTREAM_REWRITTEN", True)


def test_a_start_that_sql_gives_is_where_the_stream_starts(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    append(path, 0)
    append(path, 1)
    write(shop, path, " WITH (startingVersion = 1, maxFilesPerTrigger = 5)", IN_SQL)
    shop.run_well()
    append(path, 2)
    shop.run_well()
    assert rows(shop) == 20
    assert shop.verify().proven


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ('.option("startingVersion", "one")', "OPTION_INVALID"),
        ('.option("startingVersion", 0).option("startingTimestamp", "2020-01-01")', "OPTION_INVALID"),
        ('.option("startVersion", 0)', "OPTION_UNKNOWN"),
        ('.option("startingVersion", 99)', "START_INVALID"),
        ('.option("startingTimestamp", "2999-01-01")', "START_INVALID"),
        ('.option("readChangeFeed", "true")', "CHANGE_FEED_MISSING"),
    ],
)
def test_a_start_that_a_table_does_not_have_is_refused(
    shop: Shop, tmp_path: Path, options: str, code: str
) -> None:
    append(tmp_path / "foreign", 0)
    write(shop, tmp_path / "foreign", options)
    if "Timestamp" not in options:
        assert shop.foreseen() == [code]
    error = shop.refused()
    assert error.code == code, error.to_dict()
    assert error.location is not None and error.location.path == "shop.py"
