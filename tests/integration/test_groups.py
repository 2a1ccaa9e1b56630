"""Streams that are aggregated without a watermark: the table has one row for each group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import FlowKindsDifferError, PlanFailedError, StreamingUnsupportedError
from headrace.project.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("spark")

SPEC = "name: shop\ndatabase: groups\nstorage: ./lake\nlibraries: [{glob: {include: tables/**}}]\n"
PYTHON = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.table
def orders():
    rows = hr.read_files("landing", format="json", schema="id LONG, customer STRING, amount DOUBLE")
    return rows.drop("_source")

@hr.table
def totals():
    rows = spark.readStream.table("orders").groupBy("customer").agg(F.sum("amount").alias("amount"))
    return rows.orderBy(F.desc("amount")).select(F.col("customer").alias("who"), "amount")

@hr.table
def changes():
    return hr.read_changes("totals").where("_change_type <> 'update_preimage'").select("who", "amount")
"""
SQL = """
CREATE STREAMING TABLE counts (CONSTRAINT few EXPECT (orders < 3)) AS
SELECT upper(customer) AS customer, id % 2 = 1 AS odd, count(*) AS orders, max(amount) AS most
FROM STREAM orders GROUP BY upper(customer), id % 2 = 1 ORDER BY min(id);
CREATE STREAMING TABLE names AS SELECT DISTINCT customer FROM STREAM orders;
CREATE STREAMING TABLE copies AS SELECT * FROM STREAM names;
CREATE TEMPORARY VIEW odd AS SELECT id FROM STREAM orders WHERE id % 2 = 1;
CREATE TEMPORARY VIEW even AS SELECT id FROM STREAM orders WHERE id % 2 = 0;
CREATE TEMPORARY VIEW large AS SELECT id + 100 FROM STREAM orders WHERE amount >= 10;
CREATE STREAMING TABLE parts AS
SELECT * FROM STREAM odd UNION ALL SELECT * FROM STREAM even UNION ALL SELECT * FROM STREAM large;
"""


def write(root: Path, **files: str) -> None:
    (root / "tables").mkdir(parents=True, exist_ok=True)
    (root / "headrace.yml").write_text(SPEC)
    for name, text in files.items():
        (root / "tables" / name.replace("_", ".")).write_text(text)


def land(root: Path, name: str, *orders: tuple[int, str | None, float]) -> None:
    (root / "landing").mkdir(exist_ok=True)
    lines = (json.dumps(dict(zip(("id", "customer", "amount"), one, strict=True))) for one in orders)
    (root / "landing" / name).write_text("".join(f"{line}\n" for line in lines))


def run(root: Path) -> None:
    with Pipeline.load(root) as pipeline:
        assert pipeline.run().errors == ()
        proof = pipeline.verify()
        assert proof.findings == () and proof.proven, proof


def table(root: Path, name: str) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(root / "lake" / "tables" / "groups" / name)


def rows(root: Path, name: str) -> list[tuple[Any, ...]]:
    query = deltalake.QueryBuilder().register("t", table(root, name)).execute("SELECT * FROM t")
    found = [tuple(row.values()) for row in pa.table(query.read_all()).to_pylist()]
    return sorted(found, key=str)


def test_a_stream_that_is_aggregated_has_one_row_for_each_group(tmp_path: Path) -> None:
    write(tmp_path, a_py=PYTHON, b_sql=SQL)
    land(tmp_path, "a.json", (1, "ada", 10.0), (2, None, 1.0), (3, "ada", 5.0))
    run(tmp_path)
    assert rows(tmp_path, "totals") == [("ada", 15.0), (None, 1.0)]
    assert rows(tmp_path, "changes") == [("ada", 15.0), (None, 1.0)]
    assert rows(tmp_path, "counts") == [("ADA", True, 2, 10.0), (None, False, 1, 1.0)]
    assert rows(tmp_path, "names") == rows(tmp_path, "copies") == [("ada",), (None,)]
    assert rows(tmp_path, "parts") == [(1,), (101,), (2,), (3,)]
    with Pipeline.load(tmp_path) as pipeline:
        sorts = [one.text for one in pipeline.plan().notes if "sort" in one.text]
        assert sorts == [
            f"the sort of the result of `{name}` is left out: the rows of a table have no order"
            for name in ("totals", "counts")
        ]
        assert {flow.outcome for flow in pipeline.run().flows} == {"up to date"}
    land(tmp_path, "b.json", (4, None, 2.0), (5, "bob", 7.0), (7, "ada", 1.0))
    run(tmp_path)
    totals = [("ada", 16.0), ("bob", 7.0), (None, 3.0)]
    counts = [("ADA", True, 3, 10.0), ("BOB", True, 1, 7.0), (None, False, 2, 2.0)]
    names = [("ada",), ("bob",), (None,)]
    assert (rows(tmp_path, "totals"), rows(tmp_path, "counts")) == (totals, counts)
    assert rows(tmp_path, "names") == rows(tmp_path, "copies") == names
    assert rows(tmp_path, "changes") == sorted([("ada", 15.0), (None, 1.0), *totals], key=str)

    # The process ended before Spark had written that batches were done: they run again.
    for name in ("totals", "counts", "names"):
        commits = (tmp_path / "lake" / "checkpoints" / f"groups.{name}").glob("*/*/commits/*")
        max((one for one in commits if one.name.isdigit()), key=lambda one: int(one.name)).unlink()
    land(tmp_path, "c.json", (9, "bob", 1.0), (11, "eve", 2.0))
    run(tmp_path)
    assert rows(tmp_path, "totals") == [("ada", 16.0), ("bob", 8.0), ("eve", 2.0), (None, 3.0)]
    assert rows(tmp_path, "counts")[1] == ("BOB", True, 2, 7.0)
    assert rows(tmp_path, "copies") == [("ada",), ("bob",), ("eve",), (None,)]
    assert rows(tmp_path, "parts") == [(1,), (101,), (11,), (2,), (3,), (4,), (5,), (7,), (9,)]


WRONG = {
    "a filter": (
        "SELECT id, count(*) AS n FROM STREAM source GROUP BY id HAVING count(*) > 1",
        "HAVING, or another filter, follows the aggregation",
    ),
    "a key": ("SELECT count(*) AS n FROM STREAM source GROUP BY id", "`id`"),
    "a key that is dropped": (
        "SELECT n FROM (SELECT id, count(*) AS n FROM STREAM source GROUP BY id)",
        "does not return all columns",
    ),
}


def test_groups_that_a_table_cannot_have_are_refused_with_the_reason(tmp_path: Path) -> None:
    files = "STREAM read_files('landing', format => 'json', schema => 'id LONG')"
    source = f"CREATE STREAMING TABLE source AS SELECT id FROM {files};\n"
    statements = [
        f"CREATE STREAMING TABLE t{number} AS {query};\n" for number, (query, _) in enumerate(WRONG.values())
    ]
    twice = "CREATE STREAMING TABLE both AS SELECT id, count(*) AS n FROM STREAM source GROUP BY id;\n"
    twice += "CREATE FLOW more AS INSERT INTO both BY NAME SELECT id, 1L AS n FROM STREAM source;\n"
    late = "CREATE STREAMING TABLE g AS SELECT id, count(*) AS n FROM STREAM source GROUP BY id;\n"
    late += "CREATE STREAMING TABLE after AS SELECT * FROM STREAM g;"
    write(tmp_path, a_sql="".join([source, *statements, twice, late]))
    land(tmp_path, "a.json")
    with Pipeline.load(tmp_path) as pipeline, pytest.raises(PlanFailedError) as caught:
        pipeline.plan()
    errors = caught.value.errors
    reasons = {
        one.params["name"]: one.params["reason"]
        for one in errors
        if isinstance(one, StreamingUnsupportedError)
    }
    for number, (_, reason) in enumerate(WRONG.values()):
        assert reason in reasons[f"t{number}"]
    assert [one.code for one in errors if not isinstance(one, StreamingUnsupportedError)] == [
        FlowKindsDifferError.code,
        "STREAM_OVER_MERGED_TABLE",
    ]
