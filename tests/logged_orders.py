"""A pipeline whose event log has counts of expectations, and the same counts from its commits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.observe.event_table import LoggedEvent
from headrace.project.pipeline import Pipeline
from headrace.storage.layout import locate
from headrace.storage.table_log import iter_commits
from proof.shop import Shop

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


def make_orders(make_shop: Callable[..., Shop]) -> Shop:
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
