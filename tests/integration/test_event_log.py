"""The event log of real runs: statuses, counts equal to those of the commits, and queries of Lakeflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from headrace.observe.event_reading import LoggedEvent
from headrace.project.pipeline import Pipeline
from headrace.storage.locate import locate
from headrace.storage.table_log import iter_commits
from proof.driver import start
from proof.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.table
@hr.expect_or_drop("a name", "name IS NOT NULL")
@hr.expect_or_quarantine("positive", "amount > 0")
@hr.expect("small", "amount < 100")
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, name STRING, amount INT", \
max_offsets_per_trigger=4)

@hr.materialized_view
@hr.expect_or_drop("not ada", "name <> 'ada'")
def names():
    return spark.read.table("orders").groupBy("name").count()
@hr.materialized_view
def updates():
    return spark.read.table("event_log").where("event_type = 'create_update'").select("origin.update_id")

@hr.materialized_view
def failures():
    return spark.sql("SELECT count(*) AS n FROM event_log WHERE level = 'ERROR'")
"""

RECORDS: list[dict[str, Any]] = [
    {"id": 0, "name": "ada", "amount": 5},
    {"id": 1, "name": "bob", "amount": -5},
    {"id": 2, "name": None, "amount": 5},
    {"id": 3, "name": "eve", "amount": 1000},
    {"id": 4, "name": None, "amount": -1},
    {"id": 5, "name": "ada", "amount": 7},
]


@pytest.fixture
def orders(make_shop: Callable[..., Shop]) -> Shop:
    """A pipeline with expectations, and six records for it."""
    shop = make_shop(partitions=1)
    shop.write(CODE)
    produce(shop)
    return shop


def produce(shop: Shop) -> None:
    shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in RECORDS])


def events(shop: Shop, **chosen: Any) -> tuple[LoggedEvent, ...]:
    with Pipeline.load(shop.root) as pipeline:
        return pipeline.events(**chosen)


def counts_in_log(shop: Shop, table: str) -> list[list[dict[str, Any]]]:
    """The counts of each batch or refresh, as the event log has them."""
    return [
        event.details["data_quality"]["expectations"]
        for event in events(shop, flow=f"{shop.database}.{table}")
        if event.level == "METRICS"
    ]


def counts_in_commits(shop: Shop, table: str) -> list[list[dict[str, Any]]]:
    """The counts of each batch or refresh, as its commit has them."""
    found = [commit.metadata or {} for commit in iter_commits(locate(shop.table(table)))]
    return [
        [
            {
                "name": one["name"],
                "dataset": one["dataset"],
                "passed_records": one["passed"],
                "failed_records": one["failed"],
                "action": one["action"],
            }
            for one in said["expectations"]
        ]
        for said in found
        if "expectations" in said
    ]


def test_the_log_of_a_run_equals_its_commits_and_answers_queries_of_lakeflow(
    orders: Shop, spark: SparkSession
) -> None:
    orders.run_well()
    flow = [one for one in events(orders, flow="orders") if one.type == "flow_progress"]
    assert [one.details["status"] for one in flow] == [
        "QUEUED",
        "STARTING",
        "RUNNING",
        "RUNNING",
        "RUNNING",
        "COMPLETED",
    ]
    assert len(counts_in_log(orders, "orders")) == 2
    for table in ("orders", "names"):
        assert counts_in_log(orders, table) == counts_in_commits(orders, table)
    produce(orders)
    orders.run_well()
    assert len({one.update for one in events(orders)}) == 2
    assert counts_in_log(orders, "orders") == counts_in_commits(orders, "orders")

    log = spark.read.format("delta").load(str(orders.storage.root / "events"))
    log.createOrReplaceTempView("event_log_raw")
    spark.sql(LATEST_UPDATE)
    quality = {row.expectation: (row.passed, row.failed) for row in run(spark, DATA_QUALITY)}
    assert quality == {"a name": (4, 2), "positive": (4, 2), "small": (5, 1), "not ada": (1, 1)}
    lineage = {row.output: json.loads(row.inputs) for row in run(spark, LINEAGE)}
    name = orders.database
    assert lineage == {
        f"{name}.orders": [],
        f"{name}.names": [f"{name}.orders"],
        f"{name}.updates": [],
        f"{name}.failures": [],
    }
    first = events(orders)[0].update
    seen = spark.read.format("delta").load(str(orders.table("updates"))).collect()
    assert first in [row.update_id for row in seen], "event_log is a view of the pipeline's session"
    progress = [row.asDict() for row in run(spark, PROGRESS) if row.flow == "orders"]
    assert [(one["status"], one["output_rows"], one["dropped"]) for one in progress] == [
        ("RUNNING", 2, 1),
        ("RUNNING", 1, 0),
    ]
    # The broker is asked at most once a second; in between the backlog is NULL.
    backlogs = [one["backlog"] for one in progress]
    assert backlogs[0] == 2.0
    assert backlogs[1] in (0.0, None)


def test_after_a_kill_the_next_run_completes_the_log_from_the_commits(orders: Shop) -> None:
    with start(orders, pause=("after-commit", 0)) as driver:
        driver.wait_at("after-commit")
        driver.kill("both")
        driver.wait_until_gone()
    assert len(counts_in_commits(orders, "orders")) == 1
    assert counts_in_log(orders, "orders") == []
    orders.run_well()
    assert len(counts_in_commits(orders, "orders")) == 2
    assert counts_in_log(orders, "orders") == counts_in_commits(orders, "orders")
    killed, *_, second = (one for one in events(orders, flow="orders") if one.level == "METRICS")
    assert killed.update != second.update
    assert killed.update in {one.update for one in events(orders) if one.type == "create_update"}


def run(spark: SparkSession, query: str) -> list[Any]:
    """The rows of a query of Lakeflow; Spark reads fields of JSON strings by `get_json_object`."""

    def path(found: re.Match[str]) -> str:
        return f"get_json_object(details, '$.{found[1].replace(':', '.').replace(' ', '')}')"

    return spark.sql(re.sub(r"details\s*:\s*(\w+(?:\s*[.:]\s*\w+)*)", path, query)).collect()


# After the queries that Databricks publishes for its event log, with the same columns, paths and functions:
# https://docs.databricks.com/aws/en/ldp/monitor-event-logs
LATEST_UPDATE = """
CREATE OR REPLACE TEMP VIEW latest_update AS
SELECT origin.update_id AS id FROM event_log_raw WHERE event_type = 'create_update'
ORDER BY timestamp DESC LIMIT 1
"""
LINEAGE = """
SELECT details:flow_definition.output_dataset AS output, details:flow_definition.input_datasets AS inputs
FROM event_log_raw, latest_update
WHERE event_type = 'flow_definition' AND origin.update_id = latest_update.id
"""
DATA_QUALITY = """
SELECT e.dataset, e.name AS expectation, sum(e.passed_records) AS passed, sum(e.failed_records) AS failed
FROM (
  SELECT explode(from_json(
    details :flow_progress :data_quality :expectations,
    "array<struct<name: string, dataset: string, passed_records: int, failed_records: int>>"
  )) AS e
  FROM event_log_raw, latest_update
  WHERE event_type = 'flow_progress' AND origin.update_id = latest_update.id
)
GROUP BY e.dataset, e.name
"""
PROGRESS = """
SELECT
  timestamp, origin.flow_name AS flow, details:flow_progress.status AS status,
  int(details:flow_progress.metrics.num_output_rows) AS output_rows,
  int(details:flow_progress.data_quality.dropped_records) AS dropped,
  double(details :flow_progress.metrics.backlog_records) AS backlog
FROM event_log_raw, latest_update
WHERE event_type = 'flow_progress' AND details:flow_progress.metrics IS NOT NULL
  AND origin.update_id = latest_update.id
ORDER BY timestamp
"""
