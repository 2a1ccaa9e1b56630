"""The event log of real runs: statuses, counts equal to those of the commits, and queries of Lakeflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from logged_orders import counts_in_commits, counts_in_log, events, make_orders, produce
from proof.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def orders(make_shop: Callable[..., Shop]) -> Shop:
    return make_orders(make_shop)


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
    # The second batch is small, as the first one has shown.
    writers = [pq.read_metadata(one).created_by for one in orders.table("orders").glob("*.parquet")]
    assert sorted(one.partition(" ")[0] for one in writers) == ["parquet-cpp-arrow", "parquet-mr"]
    steps = [one.details for one in events(orders, flow="orders") if one.type == "batch_steps"]
    assert [one["batch"] for one in steps] == [0, 1]
    assert all(one["steps_ms"]["write"] > 0 and one["steps_ms"]["commit"] > 0 for one in steps)
    assert all(one["jvm_ms"]["compiler"] > 0 for one in steps)
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
    assert [row.flow for row in run(spark, BACKLOG_BYTES) if row.backlog_bytes == 0.0] in ([], ["orders"])


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
BACKLOG_BYTES = """
SELECT
  timestamp, origin.flow_name AS flow, double(details :flow_progress.metrics.backlog_bytes) AS backlog_bytes
FROM event_log_raw, latest_update
WHERE event_type = 'flow_progress' AND origin.update_id = latest_update.id
"""
