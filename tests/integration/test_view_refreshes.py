"""How a pipeline refreshes its views: by what has changed, if their policy and their query allow it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.parquet as pq
import pytest

from headrace.cli.main import run as cli
from headrace.increments import costs
from headrace.maintain.holders import find_holders
from headrace.model.events import ViewRefreshed
from headrace.model.names import TableName
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.run import increments
from headrace.run.views import ViewRunner
from headrace.storage.layout import locate
from headrace.storage.table_log import newest_commits
from proof.shop import BRONZE, SILVER, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

SUMS = """def sums():
    sales = spark.read.table("silver").groupBy("name")
    return sales.agg(F.sum("sales").alias("sales"), F.count("sales").alias("sold"), F.count("*").alias("n"))
"""
VIEWS = f"""
@hr.materialized_view(refresh_policy="incremental")
{SUMS}
@hr.materialized_view(refresh_policy="incremental")
def large():
    return spark.read.table("silver").where("sales > 3").select("id", "name")

@hr.materialized_view(refresh_policy="incremental")
def ranked():
    rank = "rank() OVER (PARTITION BY name ORDER BY offset, partition)"
    return spark.sql(f"SELECT id, name, {{rank}} AS r FROM silver")

@hr.materialized_view(refresh_policy="incremental")
def names():
    return spark.read.table("sums").where("n > 1").select("name", "n")

@hr.materialized_view(refresh_policy="incremental")
def newest():
    return spark.sql("SELECT id, name FROM silver ORDER BY offset DESC LIMIT 3")

@hr.materialized_view
def usual():
    return spark.read.table("silver").groupBy("name").count()
"""
STRICT = """
@hr.materialized_view(refresh_policy="incremental_strict")
def strict():
    return spark.sql("SELECT id, name FROM silver ORDER BY offset DESC LIMIT 3")
"""


AUTO = f"""
@hr.materialized_view
{SUMS}
@hr.materialized_view
{SUMS.replace("def sums", "def totals")}
@hr.materialized_view(refresh_policy="incremental")
def everybody():
    return spark.read.table("silver").select("id", "name")

hr.create_streaming_table("copied")

@hr.temporary_view
def changes():
    return hr.read_changes("sums")

hr.create_auto_cdc_flow(
    target="copied", source="changes", keys=["name"], sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    except_column_list=["_change_type", "_commit_version", "_commit_timestamp"],
)

@hr.materialized_view(refresh_policy="full")
def usual():
    return spark.read.table("silver").groupBy("name").count()
"""
CHECKED = {
    **dict.fromkeys(
        ("sums", "totals"), "SELECT name, sum(sales), count(sales), count(*) FROM {silver} GROUP BY name"
    ),
    "large": "SELECT id, name FROM {silver} WHERE sales > 3",
    "ranked": "SELECT id, name, rank() OVER (PARTITION BY name ORDER BY offset, partition) FROM {silver}",
    "everybody": "SELECT id, name FROM {silver}",
    "names": "SELECT name, count(*) FROM {silver} GROUP BY name HAVING count(*) > 1",
    "usual": "SELECT name, count(*) FROM {silver} GROUP BY name",
}


def _strategy(shop: Shop, view: str) -> str:
    refreshes = (one.metadata for one in newest_commits(locate(shop.table(view))) if one.refreshes_view)
    metadata = next(refreshes) or {}
    return str(metadata.get("increment", {"strategy": "full"})["strategy"])


def check_views(shop: Shop, spark: SparkSession) -> None:
    """Each view has the rows of its query, computed from the table that it reads."""
    silver = f"delta.`{shop.table('silver')}`"
    for name, text in CHECKED.items():
        if not shop.table(name).exists():
            continue
        expected = Counter(map(tuple, spark.sql(text.format(silver=silver)).collect()))
        found = spark.read.format("delta").load(str(shop.table(name)))
        assert Counter(map(tuple, found.collect())) == expected, name


def test_views_are_refreshed_by_what_has_changed(
    shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(40)
    shop.run_well()
    check_views(shop, spark)
    shop.produce(25)
    views = {one.dataset.name: one.outcome for one in shop.run_well().views}
    names = ("sums", "large", "ranked", "names", "newest", "usual")
    assert views == dict.fromkeys(("gold", *names), "refreshed")
    assert {name: _strategy(shop, name) for name in names} == {
        "sums": "merge",
        "large": "append",
        "ranked": "keys",
        "names": "keys",
        "newest": "full",
        "usual": "full",
    }
    check_views(shop, spark)
    shop.check()
    assert cli(["events", "--project", str(shop.root), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [one for one in events if "refresh" in one["details"]]
    refreshed = {one["dataset"].rpartition(".")[2]: one["details"]["refresh"] for one in found}
    assert refreshed["sums"]["strategy"] == "merge"
    assert (refreshed["sums"]["change"]["changed"], refreshed["large"]["change"]["removed"]) == (25, 0)
    why = (refreshed["newest"]["code"], refreshed["newest"]["reason"])
    assert why == ("OPERATOR_NOT_INCREMENTALIZABLE", "it uses LIMIT")
    assert (refreshed["usual"]["strategy"], refreshed["usual"]["code"]) == ("full", None)
    with Pipeline.load(shop.root) as pipeline:
        planned = Explanation(pipeline.plan())
    told = {one["dataset"].partition(".")[2]: one["refresh"] for one in planned.to_json()["datasets"]}
    assert {name: told[name]["strategies"] for name in names} == {
        "sums": ("merge", "keys"),
        "large": ("append", "keys"),
        "ranked": ("keys",),
        "names": ("append", "keys"),
        "newest": (),
        "usual": ("merge", "keys"),
    }
    text = planned.to_text(200)
    assert "refreshed as a whole: it uses LIMIT (OPERATOR_NOT_INCREMENTALIZABLE)" in text
    assert text.count("refreshed by") == 4 and "refreshed by merge or keys\n" in text
    # Rows that another writer deletes, and changes.
    spark.sql(f"DELETE FROM delta.`{shop.table('silver')}` WHERE id % 3 = 0")
    shop.run_well("sums", "large", "ranked", "names", "newest", "usual")
    assert _strategy(shop, "sums") == "merge"
    check_views(shop, spark)
    # A view that another writer has changed is computed anew.
    spark.sql(f"DELETE FROM delta.`{shop.table('sums')}` WHERE true")
    shop.run_well("sums")
    assert _strategy(shop, "sums") == "full"
    check_views(shop, spark)


def test_views_are_compared_with_their_queries(
    shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    for count in (40, 25):
        shop.produce(count)
        shop.run_well()

    def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
        code = cli(["verify", *arguments, "--recompute", "--project", str(shop.root), "--json"])
        found = json.loads(capsys.readouterr().out)["datasets"]
        return code, {one["dataset"].partition(".")[2]: one["query"] for one in found}

    code, whole = verify()
    assert (code, {whole[name]["verdict"] for name in ("sums", "large", "ranked", "names")}) == (
        0,
        {"proven"},
    )
    assert whole["silver"] is None
    _, some = verify("ranked", "--sample", "0.5")
    _, again = verify("ranked", "--sample", "0.5")
    assert 0 < some["ranked"]["figures"]["rows"] < whole["ranked"]["figures"]["rows"]
    assert some == again
    # A row with a wrong value, and one that is missing.
    large = f"delta.`{shop.table('large')}`"
    ids = [row.id for row in spark.sql(f"SELECT id FROM {large} ORDER BY id").collect()]
    spark.sql(f"UPDATE {large} SET name = 'nobody' WHERE id = {ids[0]}")
    spark.sql(f"DELETE FROM {large} WHERE id = {ids[1]}")
    code, found = verify("large")
    (finding,) = found["large"]["findings"]
    assert (code, finding["code"], finding["missing"], finding["extra"]) == (1, "VIEW_DIFFERS", 2, 1)
    assert f"1 row is extra, such as id = {ids[0]}, name = nobody" in finding["text"]
    # The version that the view was computed from is gone.
    silver = shop.table("silver")
    old = list(silver.glob("*.parquet"))
    spark.sql(f"INSERT OVERWRITE delta.`{silver}` SELECT * FROM delta.`{silver}`")
    for file in old:
        file.unlink()
    code, found = verify("ranked")
    assert (code, found["ranked"]["verdict"]) == (3, "unjudged")
    (reason,) = found["ranked"]["reasons"]
    assert "can no longer be read" in reason
    assert reason.endswith(f"headrace run {shop.database}.ranked")


def _with_expectations(policy: str) -> str:
    sums = SUMS.replace("def sums", f"def sums_{policy}")
    return f"""
@hr.materialized_view(refresh_policy="{policy}")
@hr.expect("many", "n > 9")
@hr.expect_or_fail("few", "n < 60")
{sums}
@hr.materialized_view(refresh_policy="{policy}")
@hr.expect("late", "offset > 3")
@hr.expect_or_drop("third", "id % 3 <> 0")
def kept_{policy}():
    return spark.read.table("silver").select("id", "offset")

@hr.materialized_view(refresh_policy="{policy}")
@hr.expect("top", "r < 3")
@hr.expect("known", "name IS NOT NULL")
def ranked_{policy}():
    rank = "rank() OVER (PARTITION BY name ORDER BY offset, partition)"
    return spark.sql(f"SELECT name, offset, {{rank}} AS r FROM silver")

@hr.materialized_view(refresh_policy="{policy}")
@hr.expect("some", "n > 0")
@hr.expect("other", "st.name <> 'struct'")
def named_{policy}():
    named = "st.name, named_struct('name', 'struct') AS st, count(*) AS n"
    return spark.sql(f"SELECT {{named}} FROM silver AS st GROUP BY st.name")
"""


def test_expectations_have_the_counts_of_the_whole_view(shop: Shop, spark: SparkSession) -> None:
    code = [BRONZE, SILVER, *map(_with_expectations, ("incremental", "full"))]
    shop.write(*code)
    failed, views = Counter[str](), ("sums", "kept", "ranked", "named")

    def refresh() -> dict[str, str]:
        """The strategies, after a comparison of the counts with those of the same views as a whole."""
        found = _refresh(shop)
        facts = ("rows", "dropped", "quarantined")
        for name in views:
            mine, whole = (found[f"{name}_{policy}"] for policy in ("incremental", "full"))
            assert [getattr(mine, one) for one in facts] == [getattr(whole, one) for one in facts]
            told = [[{**one, "dataset": ""} for one in each.expectations] for each in (mine, whole)]
            assert told[0] == told[1] and len(told[0]) == 2
            failed[name] += sum(one["failed"] for one in told[0])
        # The column `st` has the name of a table, so that an expectation could mean either.
        assert (found["named_incremental"].strategy, failed["named"]) == ("full", 0)
        return {name: found[f"{name}_incremental"].strategy for name in views[:3]}

    shop.produce(40)
    refresh()
    for _ in range(2):
        shop.produce(15)
        assert refresh() == {"sums": "merge", "kept": "append", "ranked": "keys"}
    silver = f"delta.`{shop.table('silver')}`"
    spark.sql(f"DELETE FROM {silver} WHERE id % 4 = 0")
    shop.produce(5)
    assert refresh() == {"sums": "merge", "kept": "full", "ranked": "keys"}
    # Another condition counts all rows again.
    shop.write(*(one.replace("n > 9", "n > 8") for one in code))
    shop.produce(5)
    assert refresh()["sums"] == "full"
    shop.produce(5)
    assert refresh()["sums"] == "merge"
    assert set(+failed) == {"sums", "kept", "ranked"}
    shop.produce(400)
    errors = {str(one.params["flow"]).rpartition("_")[2]: one for one in shop.run().errors}
    assert {one.code for one in errors.values()} == {"EXPECTATION_FAILED"}
    assert errors["incremental"].params["rows"] == errors["full"].params["rows"] > 0


def test_a_column_that_a_table_gets_while_a_refresh_begins_leads_to_the_whole_view(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(BRONZE, SILVER, VIEWS)
    shop.produce(20)
    shop.run_well()
    identity, altered = ViewRunner._identity, list[str]()

    def with_column(runner: ViewRunner, name: TableName) -> dict[str, Any]:
        found = identity(runner, name)
        if runner.view.name.name == "large" and not altered:
            altered.append("large")
            spark.sql(f"ALTER TABLE delta.`{shop.table('silver')}` ADD COLUMN more INT")
        return found

    monkeypatch.setattr(ViewRunner, "_identity", with_column)
    shop.produce(5)
    found = _refresh(shop)
    assert altered and found["large"].code == "DATA_SCHEMA_CHANGED"
    assert "is newer than the version" in str(found["large"].reason)
    check_views(shop, spark)
    _refresh(shop)
    check_views(shop, spark)


def test_a_strict_view_is_not_computed_as_a_whole(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, STRICT)
    shop.produce(10)
    (error,) = shop.run().errors
    assert error.code == "REFRESH_NOT_INCREMENTAL"
    assert "it uses LIMIT" in error.summary


def _rows(spark: SparkSession, shop: Shop, table: str) -> Counter[tuple[object, ...]]:
    rows = spark.read.format("delta").load(str(shop.table(table))).select("name", "sales", "sold", "n")
    return Counter(map(tuple, rows.collect()))


def _refresh(shop: Shop, *datasets: str) -> dict[str, ViewRefreshed]:
    """Run the pipeline; returns how each view was refreshed."""
    shop.events.clear()
    shop.run_well(*datasets)
    refreshed = [one for one in shop.events if isinstance(one, ViewRefreshed)]
    return {one.dataset.name: one for one in refreshed}


def test_a_view_is_refreshed_as_its_policy_and_the_state_of_its_tables_allow(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: dict[str, float] = {}
    monkeypatch.setattr(increments, "refresh_seconds", lambda _: seconds)
    monkeypatch.setattr(costs, "_CHANGED", 9.0)
    monkeypatch.setattr(costs, "SMALL_BYTES", 0)
    shop.write(BRONZE, SILVER, AUTO)
    silver = f"delta.`{shop.table('silver')}`"

    def produce(count: int) -> dict[str, ViewRefreshed]:
        shop.produce(count)
        found = _refresh(shop)
        check_views(shop, spark)
        # A flow follows the changes of a view, also those of a whole refresh.
        assert _rows(spark, shop, "copied") == _rows(spark, shop, "sums")
        assert found["usual"].strategy == "full" and found["usual"].code is None
        return found

    # A view of large tables follows them from its second refresh on.
    assert produce(20)["sums"].code == "FIRST_REFRESH"
    seconds["full"] = 100.0
    assert produce(5)["sums"].strategy == "merge"
    # One that takes a short time is computed as a whole, and nothing is said about it.
    seconds["full"] = 1.0
    small = produce(5)["sums"]
    assert (small.strategy, small.code, small.reason) == ("full", None, None)
    seconds["full"] = 100.0
    assert "did not record" in str(produce(5)["sums"].reason)
    merged = produce(5)
    assert (merged["sums"].strategy, merged["everybody"].strategy) == ("merge", "append")
    assert [(one.change or {})["changed"] for one in (merged["sums"], merged["everybody"])] == [5, 5]
    # An increment that fails is no failure of the view: here, it would read a lost file of the view.
    for file in shop.table("totals").glob("*.parquet"):
        file.unlink()
    assert "an increment failed" in str(produce(5)["totals"].reason)
    # A reader that cannot read deletion vectors gets none.
    spec = shop.root / "headrace.yml"
    text = spec.read_text()
    spec.write_text(json.dumps({**json.loads(text), "readers": ["delta-rs"]}))
    assert produce(5)["sums"].code == "CONFIGURATION_CHANGED"
    spec.write_text(text)
    with Pipeline.load(shop.root) as pipeline:
        assert not [one for one in pipeline.plan().changes or () if one.kind == "alter"]

    # The versions that the next refresh needs are kept.
    commit = next(one for one in newest_commits(locate(shop.table("sums"))) if one.refreshes_view)
    seen = (commit.metadata or {})["inputs"][str(TableName(shop.database, "silver"))]
    with Pipeline.load(shop.root) as pipeline:
        storage = pipeline.settings.storage
    held = find_holders(storage, TableName(shop.database, "silver"), seen["table_id"])
    names = {one.name.rpartition(".")[2] for one in held if one.kind == "view"}
    assert names == {"sums", "totals", "everybody", "gold"}
    assert {one.version for one in held if one.kind == "view"} == {seen["version"] + 1}

    # Erased rows leave the files of the view, which a deletion vector would keep.
    with Pipeline.load(shop.root) as pipeline:
        pipeline.erase(pipeline.plan_erasure("silver", "id % 5 = 2"))
    erased = produce(3)
    assert {erased[name].code for name in ("sums", "everybody")} == {"ROWS_ERASED"}
    files = deltalake.DeltaTable(str(shop.table("everybody"))).file_uris()
    ids = {one for file in files for one in pq.read_table(file)["id"].to_pylist()}
    assert ids and not [one for one in ids if one % 5 == 2 and one <= 30]  # more were produced since
    assert produce(3)["sums"].strategy == "merge"

    # Another column; rows that were deleted with their files; a table that went back to an older version.
    spark.sql(f"ALTER TABLE {silver} ADD COLUMN more INT")
    assert produce(3)["sums"].code in ("DATA_SCHEMA_CHANGED", "QUERY_FINGERPRINT_CHANGED")
    assert produce(3)["sums"].strategy == "merge"
    version = newest_commits(locate(shop.table("silver"))).__next__().version
    before = {path.name for path in shop.table("silver").glob("*.parquet")}
    spark.sql(f"DELETE FROM {silver} WHERE true")
    for name in before:
        (shop.table("silver") / name).unlink()
    assert produce(3)["sums"].code == "DATA_FILE_MISSING"
    spark.sql(f"DELETE FROM {silver} WHERE id % 2 = 0")
    assert produce(3)["sums"].strategy == "merge"
    spark.sql(f"RESTORE TABLE {silver} TO VERSION AS OF {version + 2}")
    restored = _refresh(shop, "sums", "totals", "everybody", "usual")
    assert (restored["sums"].code, restored["sums"].strategy) == ("CHANGE_SET_MISSING", "full")
    check_views(shop, spark)
