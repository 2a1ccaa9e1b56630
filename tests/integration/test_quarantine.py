"""Rows that fail an expectation: counted, dropped, moved to the quarantine table, or the end of the flow."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from headrace.cli.main import run
from headrace.maintain.condition import delete_log, plan_log_cleanup
from headrace.model.events import BatchCommitted
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.sinks.delta.quarantine import QuarantineTable
from headrace.sinks.target import BatchStamp
from headrace.storage.layout import locate
from headrace.storage.table_log import iter_commits
from headrace.storage.table_snapshot import load_snapshot
from proof.shop import Shop, rows
from waiting import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

ORDERS = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.table
{expectations}
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, name STRING, amount INT", \
max_offsets_per_trigger={limit})
"""

RECORDS = [
    {"id": 0, "name": "ada", "amount": 5},
    {"id": 1, "name": "bob", "amount": -5},
    {"id": 2, "name": None, "amount": 5},
    {"id": 3, "name": "eve", "amount": None},
    {"id": 4, "name": None, "amount": -1},
]


@pytest.fixture
def orders(make_shop: Callable[..., Shop]) -> Callable[..., Shop]:
    """A pipeline with one table of five records and these expectations."""

    def make(expectations: str, code: str = ORDERS, limit: int = 500_000) -> Shop:
        shop = make_shop(partitions=1)
        shop.write(code.replace("{expectations}", expectations), limit=limit)
        shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in RECORDS])
        return shop

    return make


def ids(shop: Shop, table: str = "orders") -> list[int]:
    return sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/{table}"))


def quarantined(shop: Shop, table: str = "orders") -> list[dict[str, Any]]:
    found = rows(shop, f"quarantine/{shop.database}/{table}")
    return sorted(found, key=lambda row: row["source"]["offset"])


def metadata(shop: Shop, table: str = "orders") -> dict[str, Any]:
    """The metadata of the newest commit that has some."""
    history = deltalake.DeltaTable(shop.table(table)).history()
    return json.loads(next(commit["userMetadata"] for commit in history if "userMetadata" in commit))


def test_an_expectation_only_counts(orders: Callable[..., Shop]) -> None:
    shop = orders('@hr.expect("positive", "amount > 0")\n@hr.expect("a name", "name IS NOT NULL")')
    shop.run_well()
    assert ids(shop) == [0, 1, 2, 3, 4]
    assert metadata(shop)["expectations"] == [
        {
            "name": "positive",
            "dataset": f"{shop.database}.orders",
            "action": "warn",
            "passed": 3,
            "failed": 2,
        },
        {"name": "a name", "dataset": f"{shop.database}.orders", "action": "warn", "passed": 3, "failed": 2},
    ]
    assert not (shop.root / "lake" / "quarantine").exists()


def test_a_row_is_in_the_table_or_dropped_also_where_the_condition_is_null(
    orders: Callable[..., Shop],
) -> None:
    """`NOT (a AND b)` would lose the row whose amount is NULL."""
    shop = orders('@hr.expect_all_or_drop({"positive": "amount > 0", "a name": "name IS NOT NULL"})')
    shop.run_well()
    assert ids(shop) == [0, 3]
    found = metadata(shop)
    assert (found["input"], found["accepted"], found["dropped"]) == (5, 2, 3)


def test_null_fails_where_the_expectation_or_the_spec_says_so(orders: Callable[..., Shop]) -> None:
    shop = orders('@hr.expect_or_drop("positive", "amount > 0", nulls="fail")')
    shop.run_well()
    assert ids(shop) == [0, 2]
    other = orders('@hr.expect_or_drop("positive", "amount > 0")')
    other.spec["expectations"] = {"nulls": "fail"}
    other.write(ORDERS.replace("{expectations}", '@hr.expect_or_drop("positive", "amount > 0")'))
    other.run_well()
    assert ids(other) == [0, 2]


def test_rejected_rows_go_to_the_quarantine_with_their_record_and_reasons(
    orders: Callable[..., Shop],
) -> None:
    shop = orders(
        '@hr.expect_or_quarantine("positive", "amount > 0")\n'
        '@hr.expect_or_drop("a name", "name IS NOT NULL")\n'
        '@hr.expect("small", "id < 4")'
    )
    shop.run_well()
    assert ids(shop) == [0, 3]
    found = metadata(shop)
    assert (found["input"], found["accepted"], found["quarantined"], found["dropped"]) == (5, 2, 2, 1)
    first, second = quarantined(shop)
    assert json.loads(first["row"])["id"] == 1
    assert [reason["name"] for reason in first["reasons"]] == ["positive"]
    # Every expectation that the row fails is a reason.
    assert [reason["name"] for reason in second["reasons"]] == ["positive", "a name", "small"]
    source = first["source"]
    assert (source["topic"], source["partition"], source["offset"]) == (shop.topic, 0, 1)
    assert json.loads(source["value"]) == RECORDS[1]
    assert first["update"] == shop.events[0].update
    assert (first["state"], first["flow"], first["batch"]) == ("quarantined", "orders", 0)
    assert first["checkpoint"] == found["checkpoint"]
    (read,) = json.loads(first["ranges"])
    assert read["until"] == found["sources"][0]["until"]
    (event,) = shop.happened(BatchCommitted)
    assert isinstance(event, BatchCommitted)
    assert (event.rows, event.quarantined, event.dropped) == (2, 2, 1)
    (judged,) = shop.verify().datasets[0].flows
    assert [grade.text.partition(";")[0] for grade in judged.grades[1:]] == [
        "5 in = 2 accepted + 2 quarantined + 1 dropped",
        "5 read from Kafka = 2 in the table + 2 in quarantine + 1 dropped",
    ]


def test_fail_stops_the_flow_before_anything_is_written(orders: Callable[..., Shop]) -> None:
    shop = orders(
        '@hr.expect_or_quarantine("a name", "name IS NOT NULL")\n@hr.expect_or_fail("positive", "amount > 0")'
    )
    (error,) = shop.run().errors
    text = str(error)
    assert error.code == "EXPECTATION_FAILED"
    assert "2 rows fail the expectation `positive`" in text
    assert f'{shop.topic}/0 offset 1: {{"id": 1, "name": "bob", "amount": -5}}' in text
    assert ids(shop) == []
    assert not (shop.root / "lake" / "quarantine").exists()
    assert error.location is not None and error.location.line == 8
    # With another condition the flow goes on with the same batch.
    shop.write(ORDERS.replace("{expectations}", '@hr.expect_or_quarantine("positive", "amount > 0")'))
    shop.run_well()
    assert ids(shop) == [0, 2, 3]
    assert [row["source"]["offset"] for row in quarantined(shop)] == [1, 4]


def test_batches_of_one_flow_share_a_quarantine(orders: Callable[..., Shop]) -> None:
    shop = orders('@hr.expect_or_quarantine("positive", "amount > 0")', limit=2)
    shop.run_well()
    assert [(row["batch"], row["source"]["offset"]) for row in quarantined(shop)] == [(0, 1), (2, 4)]


def test_a_full_refresh_empties_the_quarantine(orders: Callable[..., Shop]) -> None:
    shop = orders('@hr.expect_or_quarantine("positive", "amount > 0")')
    shop.run_well()
    before = {row["checkpoint"] for row in quarantined(shop)}
    with Pipeline.load(shop.root) as pipeline:
        assert "its quarantine is emptied" in "".join(pipeline.plan_refresh(["orders"]).lines())
        assert pipeline.full_refresh(["orders"]).outcome == "completed"
    assert [row["source"]["offset"] for row in quarantined(shop)] == [1, 4]
    assert before.isdisjoint(row["checkpoint"] for row in quarantined(shop))
    shop.verify()


UPSTREAM = """
@hr.table
@hr.expect_or_quarantine("positive", "amount > 0")
def totals():
    exact = F.expr("TIMESTAMP '2026-01-02 03:04:05.123456'").alias("at")
    return spark.readStream.table("orders").select("id", "amount", exact)
"""


OWN_STRUCTS = {
    "a _source of the user": (
        'withColumn("_source", F.struct(F.lit("x").alias("topic"), F.lit("no number").alias("partition"), '
        'F.lit("y").alias("offset"), F.lit(1).alias("path")))'
    ),
    "fields with dots": (
        'select("id", "amount", F.struct(F.col("_source.topic").alias("a.topic"), "_source.partition", '
        '"_source.offset").alias("place"))'
    ),
}


@pytest.mark.parametrize("query", OWN_STRUCTS.values(), ids=OWN_STRUCTS)
def test_structs_that_are_no_record_are_kept_in_the_row_alone(
    orders: Callable[..., Shop], query: str
) -> None:
    code = ORDERS.replace("limit})", f"limit}}).{query}")
    shop = orders('@hr.expect_or_quarantine("positive", "amount > 0")', code)
    shop.run_well()
    found = rows(shop, f"quarantine/{shop.database}/orders")
    assert sorted(json.loads(row["row"])["id"] for row in found) == [1, 4]
    assert [row["source"] for row in found] == [None, None]


def test_a_preview_leaves_out_rejected_rows_and_counts_them(
    orders: Callable[..., Shop], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = '@hr.expect_or_quarantine("positive", "amount > 0")\n@hr.expect("a name", "name IS NOT NULL")'
    shop = orders(rules, ORDERS + VIEW.replace("{view}", '@hr.expect_or_drop("small", "id < 3")'))
    monkeypatch.chdir(shop.root)
    assert run(["preview", "orders", "--columns", "id", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(row["id"] for row in found["rows"]) == [0, 2, 3]
    assert [(one["name"], one["passed"], one["failed"]) for one in found["expectations"]] == [
        ("positive", 3, 2),
        ("a name", 3, 2),
    ]
    assert run(["preview", "valid"]) == 0
    out = capsys.readouterr().out
    assert "2 rows of" in out, "the rows of a table that does not exist yet are accepted ones"
    assert "1 row of 3 fails the expectation `small`: dropped" in out


def test_a_row_on_which_a_condition_raises_is_quarantined_with_the_exception(
    orders: Callable[..., Shop],
) -> None:
    shop = orders('@hr.expect("other", "id >= 0")\n@hr.expect_or_drop("ratio", "1/(amount-5) > -1")')
    shop.run_well()
    assert ids(shop) == [1, 3, 4]
    found = quarantined(shop)
    assert [row["source"]["offset"] for row in found] == [0, 2]
    assert {(one["kind"], one["name"]) for row in found for one in row["reasons"]} == {
        ("exception", "DIVIDE_BY_ZERO")
    }
    assert found[0]["reasons"][0]["message"].startswith("expectation `ratio`: Division by zero.")
    shop.verify()


def test_quarantine_works_behind_the_first_table(orders: Callable[..., Shop]) -> None:
    """A row that no longer has its record is kept as the query returned it."""
    shop = orders("", ORDERS + UPSTREAM)
    shop.run_well()
    found = rows(shop, f"quarantine/{shop.database}/totals")
    assert sorted(json.loads(row["row"])["id"] for row in found) == [1, 4]
    assert all(row["source"] is None for row in found)
    assert all(json.loads(row["row"])["at"] == "2026-01-02T03:04:05.123456Z" for row in found)
    assert ids(shop, "totals") == [0, 2, 3]


RANDOM = """
@hr.table
@hr.expect_or_quarantine("low", "x < 0.5")
def drawn():
    many = F.explode(F.sequence(F.lit(1), F.lit(200)))
    return spark.readStream.table("orders").withColumn("n", many).select("id", "n", F.rand().alias("x"))
"""


def test_rows_of_a_query_that_is_not_deterministic_are_split_once(orders: Callable[..., Shop]) -> None:
    shop = orders("", ORDERS + RANDOM)
    shop.run_well()
    accepted = {(row["id"], row["n"]) for row in rows(shop, f"tables/{shop.database}/drawn")}
    kept_out = [json.loads(row["row"]) for row in rows(shop, f"quarantine/{shop.database}/drawn")]
    rejected = {(row["id"], row["n"]) for row in kept_out}
    assert len(accepted) + len(rejected) == 1_000
    assert not accepted & rejected


VIEW = """
@hr.materialized_view
{view}
def valid():
    return spark.read.table("orders").select("id", "amount")
"""


def test_a_view_that_stays_empty_is_refreshed_once(orders: Callable[..., Shop]) -> None:
    query = VIEW.replace("{view}", "").replace('"amount")', '"amount").where("id < 0")')
    shop = orders("", ORDERS + query)
    assert [shop.run_well().views[0].outcome for _ in range(2)] == ["refreshed", "up to date"]
    shop.ledger.produce_values(shop.topic, [(json.dumps(RECORDS[0]).encode(), 0)])
    assert [shop.run_well().views[0].outcome for _ in range(2)] == ["refreshed", "up to date"]
    shop.verify()


def test_a_materialized_view_counts_drops_and_quarantines(orders: Callable[..., Shop]) -> None:
    """Its quarantine is replaced at each refresh; another expectation makes another refresh."""
    rules = (
        '@hr.expect_or_quarantine("positive", "amount > 0")\n'
        '@hr.expect_or_drop("known", "amount IS NOT NULL")'
    )
    shop = orders("", ORDERS + VIEW.replace("{view}", rules))
    shop.run_well()
    assert ids(shop, "valid") == [0, 2]
    found = metadata(shop, "valid")
    assert (found["input"], found["accepted"], found["quarantined"], found["dropped"]) == (5, 2, 2, 1)
    assert [(one["name"], one["passed"], one["failed"]) for one in found["expectations"]] == [
        ("positive", 3, 2),
        ("known", 4, 1),
    ]
    kept_out = rows(shop, f"quarantine/{shop.database}/valid")
    assert sorted(json.loads(row["row"])["id"] for row in kept_out) == [1, 4]
    assert {row["update"] for row in kept_out} == {found["update"]}
    shop.verify()
    assert shop.run_well().views[0].outcome == "up to date"
    kept = shop.root / "lake" / "quarantine"
    kept.rename(shop.root / "away")
    with Pipeline.load(shop.root) as pipeline:
        (finding,) = pipeline.verify().findings
        assert finding.code == "QUARANTINE_DIFFERS" and "`headrace run`" in finding.text
        assert "its quarantine table is missing" in Explanation(pipeline.plan()).to_text()
    assert shop.run_well().views[0].outcome == "refreshed"
    shop.verify()
    shop.write(ORDERS.replace("{expectations}", "") + VIEW.replace("{view}", '@hr.expect("any", "id > 3")'))
    assert shop.run_well().views[0].outcome == "refreshed"
    assert ids(shop, "valid") == [0, 1, 2, 3, 4]
    assert rows(shop, f"quarantine/{shop.database}/valid") == []
    shop.write(
        ORDERS.replace("{expectations}", "") + VIEW.replace("{view}", '@hr.expect_or_fail("x", "id < 3")')
    )
    (error,) = shop.run().errors
    assert error.code == "EXPECTATION_FAILED"
    assert "2 rows fail the expectation `x`" in str(error)
    assert ids(shop, "valid") == [0, 1, 2, 3, 4]
    limited = VIEW.replace("@hr.materialized_view", '@hr.materialized_view(max_rejected="20%")')
    shop.write(ORDERS.replace("{expectations}", "") + limited.replace("{view}", rules))
    (error,) = shop.run().errors
    assert error.code == "MAX_REJECTED_EXCEEDED"
    assert "valid: 3 of 5 records of a refresh are rejected (60.0%), and max_rejected is 20%" in str(error)
    assert any(fact.startswith('{"id": ') for fact in error.facts), "rows of the view are shown"
    assert ids(shop, "valid") == [0, 1, 2, 3, 4]


TEMPORARY = """
@hr.temporary_view
{view}
def small():
    return spark.readStream.table("orders")

@hr.table
def copied():
    return spark.readStream.table("small").select("id")
"""
BATCH_VIEW = """
@hr.temporary_view
@hr.expect("big", "amount > 4")
@hr.expect_or_drop("named", "name IS NOT NULL")
def named():
    return spark.read.table("orders")

@hr.materialized_view
def names():
    return spark.read.table("named").union(spark.read.table("named")).select("name")
"""


def test_temporary_views_are_counted_for_each_query_that_reads_them(orders: Callable[..., Shop]) -> None:
    view = '@hr.expect("named", "name IS NOT NULL")\n@hr.expect_or_drop("positive", "amount > 0")'
    target = '@hr.table\n@hr.expect_or_quarantine("not 2", "id <> 2")'
    code = ORDERS + TEMPORARY.replace("{view}", view).replace("@hr.table", target) + BATCH_VIEW
    shop = orders("", code, limit=2)
    shop.run_well()
    assert ids(shop, "copied") == [0, 3]
    assert summed(shop, "copied") == {"not 2": (2, 1), "named": (3, 2), "positive": (3, 2)}
    assert summed(shop, "names") == {"big": (3, 2), "named": (3, 2)}
    # Without expectations of its own, a table has the counts, too.
    shop.write(ORDERS.replace("{expectations}", "") + TEMPORARY.replace("{view}", view) + BATCH_VIEW)
    shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in RECORDS])
    shop.run_well()
    assert ids(shop, "copied") == [0, 0, 2, 3, 3]
    assert summed(shop, "copied") == {"not 2": (2, 1), "named": (6, 4), "positive": (6, 4)}
    assert summed(shop, "names") == {"big": (9, 6), "named": (9, 6)}


def summed(shop: Shop, table: str) -> dict[str, tuple[int, int]]:
    """The passed and failed rows of each expectation, over all commits of a table."""
    found: dict[str, tuple[int, int]] = {}
    for commit in iter_commits(locate(shop.table(table))):
        for one in (commit.metadata or {}).get("expectations", ()):
            passed, failed = found.get(one["name"], (0, 0))
            found[one["name"]] = (passed + one["passed"], failed + one["failed"])
    return found


def test_a_temporary_view_drops_rows_or_stops_what_reads_it(orders: Callable[..., Shop]) -> None:
    code = ORDERS + TEMPORARY.replace("{view}", '@hr.expect_or_drop("positive", "amount > 0")')
    shop = orders("", code)
    shop.run_well()
    assert ids(shop, "copied") == [0, 2, 3]
    shop.write(
        ORDERS.replace("{expectations}", "")
        + TEMPORARY.replace("{view}", '@hr.expect_or_fail("x", "id < 3")')
    )
    shop.ledger.produce_values(shop.topic, [(json.dumps({"id": 9}).encode(), 0)])
    (error,) = shop.run().errors
    assert error.code == "EXPECTATION_FAILED", error
    assert "fails the expectation `x`" in str(error)
    assert '"id":9' in str(error)
    # What stops the flow is not dropped before.
    both = '@hr.expect_or_drop("known", "amount IS NOT NULL")\n@hr.expect_or_fail("x", "id < 3")'
    shop.write(ORDERS.replace("{expectations}", "") + TEMPORARY.replace("{view}", both))
    assert [error.code for error in shop.run().errors] == ["EXPECTATION_FAILED"]
    assert ids(shop, "copied") == [0, 2, 3]


def test_flows_of_one_table_replace_their_pending_rows_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """After a crash every flow of a table replaces rows of its own in the same quarantine."""
    columns = "n INT, flow STRING, checkpoint STRING, batch BIGINT"
    table = QuarantineTable(path=locate(tmp_path / "quarantine"), columns=columns)
    flows = [f"flow-{number}" for number in range(4)]
    start = threading.Barrier(len(flows))

    def write(flow: str, count: int) -> int:
        stamp = BatchStamp(pipeline="shop", flow=flow, checkpoint=f"c-{flow}", batch=0, ranges=())
        session = spark.newSession()
        values = [(n, flow, stamp.checkpoint, 0) for n in range(count)]
        rows = session.createDataFrame(values, table.columns)
        start.wait(DEADLINE_S)
        return table.write(session, rows, stamp, check_first=lambda: None)

    with ThreadPoolExecutor(len(flows)) as pool:
        assert list(pool.map(write, flows, [5] * 4)) == [5] * 4
        assert list(pool.map(write, flows, range(4))) == [0, 1, 2, 3]
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path / "quarantine"))
    kept = pa.table(
        found.execute("SELECT flow, count(*) AS rows FROM t GROUP BY flow").read_all()
    ).to_pylist()
    assert {row["flow"]: row["rows"] for row in kept} == {"flow-1": 1, "flow-2": 2, "flow-3": 3}


def test_the_log_of_a_quarantine_can_be_cleaned(spark: SparkSession, tmp_path: Path) -> None:
    """What stays begins with a checkpoint, which Delta writes every ten commits."""
    columns = "n INT, flow STRING, checkpoint STRING, batch BIGINT"
    table = QuarantineTable(path=locate(tmp_path / "quarantine"), columns=columns)

    def write(batch: int) -> None:
        stamp = BatchStamp(pipeline="shop", flow="f", checkpoint="c", batch=batch, ranges=())
        rows = spark.createDataFrame([(batch, "f", "c", batch)], columns)
        assert table.write(spark, rows, stamp, check_first=lambda: None) == 1

    for batch in range(11):
        write(batch)
    snapshot = load_snapshot(table.path)
    plan = plan_log_cleanup(table.path, snapshot, (), datetime.now(UTC))
    assert (plan.first, plan.commits) == (10, 10)
    delete_log(table.path, plan)
    # A batch that comes again replaces its rows, although the log no longer has its commit.
    write(3)
    write(11)
    assert deltalake.DeltaTable(tmp_path / "quarantine").to_pyarrow_table().num_rows == 12
