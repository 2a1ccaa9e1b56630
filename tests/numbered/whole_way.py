"""Goes the whole way with logs of numbered records; prints what it has seen as JSON. Arguments: a folder."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.observe.quarantine import RowFilter
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline

ROOT = Path(sys.argv[1])
CODE = """
import headrace as hr
from headrace import spark
from headrace.sources.numbered.kind import NumberedLogs
from pyspark.sql import functions as F

spark.dataSource.register(NumberedLogs)

@hr.table
@hr.expect_or_quarantine("positive", "amount > {least}")
def orders():
    records = spark.readStream.format("numbered").options(file={file!r}, log="orders").load()
    order = hr.parse_json("value", "id LONG, amount LONG", at=["log", "number"])
    return records.select(order.alias("order"), F.struct("log", "number").alias("_source")).select(
        "order.*", "_source"
    )
"""


def write_code(least: int) -> None:
    (ROOT / "orders.py").write_text(CODE.format(file=str(ROOT / "logs"), least=least))


def append(*values: str) -> None:
    with closing(sqlite3.connect(ROOT / "logs")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS records (log TEXT, number INTEGER, value BLOB)")
        (count,) = database.execute("SELECT count(*) FROM records").fetchone()
        rows = [("orders", count + n, value.encode()) for n, value in enumerate(values)]
        database.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)


def order(id: int, amount: int = 10) -> str:
    return json.dumps({"id": id, "amount": amount})


def run(pipeline: Pipeline) -> dict[str, Any]:
    result = pipeline.run()
    return {"outcome": result.outcome, "errors": [error.to_dict() for error in result.errors]}


def ids(pipeline: Pipeline) -> list[int]:
    return sorted(row["id"] for row in pipeline.read("orders").to_arrow().to_pylist())


def flow(pipeline: Pipeline) -> dict[str, Any]:
    (found,) = (flow for dataset in pipeline.status().datasets for flow in dataset.flows)
    return {"lag": found.lag, "batch": found.batch}


def rejected(pipeline: Pipeline) -> list[dict[str, Any]]:
    rows = pipeline.quarantine.show("orders")
    assert rows is not None
    return [
        {
            "state": row["state"],
            "log": row["source"]["log"],
            "number": row["source"]["number"],
            "topic": row["source"]["topic"],
            "value": (row["source"]["value"] or b"").decode(),
            "reason": row["reasons"][0]["name"],
        }
        for row in rows.to_arrow().to_pylist()
    ]


def main() -> dict[str, Any]:
    spec = {"name": "shop", "storage": "./lake", "libraries": [{"file": "orders.py"}]}
    (ROOT / "headrace.yml").write_text(json.dumps(spec))
    write_code(0)
    append(*map(order, range(5)))
    seen: dict[str, Any] = {}
    with Pipeline.load(ROOT) as pipeline:
        seen["plan"] = Explanation(pipeline.plan()).to_text()
        seen["first"] = run(pipeline)
        seen["after first"] = ids(pipeline)
        append(order(5), "no order", order(6, amount=0), order(7))
        seen["behind"] = flow(pipeline)
        os.environ["HEADRACE_FAIL_AT"] = "before-commit:1"
        seen["failed"] = run(pipeline)
        seen["after failure"] = ids(pipeline)
        seen["again"] = run(pipeline)
        seen["after again"] = ids(pipeline)
        seen["current"] = flow(pipeline)
        seen["rejected"] = rejected(pipeline)
        seen["verified"] = pipeline.verify().to_json()
    write_code(-1)
    with Pipeline.load(ROOT) as pipeline:
        seen["replayed"] = pipeline.quarantine.replay("orders", RowFilter()).replayed
        seen["after replay"] = ids(pipeline)
        seen["rejected after replay"] = rejected(pipeline)
        seen["verified after replay"] = pipeline.verify().to_json()
    with closing(sqlite3.connect(ROOT / "logs")) as database, database:
        database.execute("DELETE FROM records WHERE number = 2")
    with Pipeline.load(ROOT) as pipeline:
        seen["verified after a deletion"] = pipeline.verify().to_json()
    return seen


sys.stdout.write(f"SEEN {json.dumps(main())}\n")
