"""The library where it is used: in a script, in Jupyter, and in sessions of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa

from headrace.project.pipeline import Pipeline
from integration.kernel import Kernel
from proof.shop import BRONZE, SILVER, Shop, settings_of
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
import json
from headrace import Pipeline

with Pipeline.load() as pipeline:
    plan = pipeline.plan()
    rows = pipeline.preview("gold", columns=["n"]).rows
    result = pipeline.run()
    for error in result.errors:
        raise error
    print(json.dumps({
        "datasets": [dataset.name.name for dataset in plan.datasets],
        "flows": [flow.flow.name for flow in plan.flows],
        "changes": [change.kind for change in plan.changes],
        "preview": sum(n for n, in rows),
        "outcome": result.outcome,
        "results": [[flow.flow, flow.rows, flow.commits, flow.duration_s > 0] for flow in result.flows],
        "proven": pipeline.verify().proven,
        "read": sum(n for n, in pipeline.read("gold", columns=["n"]).rows),
        "again": [flow.outcome for flow in pipeline.run(progress=True).flows],
        "reprs": [repr(plan), repr(result).partition(" in ")[0], repr(pipeline.verify())],
        "states": [dataset.rows for dataset in pipeline.status().datasets],
    }))
"""


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_script_gets_all_of_it_as_data(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, limit=10)
    shop.produce(30)
    done = python(SCRIPT, shop.root)
    assert (done.returncode, done.stderr) == (0, "")
    *progress, document = done.stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in progress[1:-1]] == [
        "bronze  up to date",
        "silver  up to date",
        "gold  up to date",
    ]
    said = json.loads(document)
    batches = said["results"][0][2]
    assert said == {
        "datasets": ["bronze", "silver", "gold"],
        "flows": ["bronze", "silver"],
        "changes": ["create", "create", "create"],
        "preview": 30,
        "outcome": "completed",
        "results": [["bronze", 30, batches, True], ["silver", 30, said["results"][1][2], True]],
        "proven": True,
        "read": 30,
        "again": ["up to date", "up to date"],
        "reprs": [
            "<Plan of shop: 3 datasets, 2 flows, 3 changes>",
            "<RunResult completed",
            "<Proof of shop: proven; 3 datasets>",
        ],
        "states": [30, 30, 7],
    }
    assert batches >= 3
    shop.check(silver=True)


def test_a_session_that_exists_is_taken_as_it_is_and_left_as_it_is(shop: Shop, spark: SparkSession) -> None:
    shop.spec["configuration"] = {"spark.sql.shuffle.partitions": "3", "shop.own": "1"}
    shop.write(BRONZE, SILVER)
    shop.produce(9)
    before = settings_of(spark), spark.catalog.currentDatabase(), spark.sparkContext.applicationId
    with Pipeline.load(shop.root) as pipeline:
        pipeline.plan()
        pipeline.preview("gold")
        assert pipeline.run().outcome == "completed"
    assert (settings_of(spark), spark.catalog.currentDatabase(), spark.sparkContext.applicationId) == before
    assert spark.range(2).count() == 2


ZONES = "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled"
"""If true, and a time zone is not UTC, Delta reads the whole log at each commit."""

SETTING = f"""
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

@hr.materialized_view
def setting():
    return spark.range(1).select(F.lit(spark.conf.get("{ZONES}")).alias("value"))
"""


def test_a_flow_in_a_session_of_the_user_commits_fast_in_any_time_zone(
    shop: Shop, spark: SparkSession
) -> None:
    shop.write(SETTING)
    before = spark.conf.get(ZONES)
    spark.conf.set(ZONES, "true")
    try:
        shop.run_well()
        assert spark.conf.get(ZONES) == "true"
    finally:
        spark.conf.set(ZONES, str(before))
    assert deltalake.DeltaTable(shop.table("setting")).to_pyarrow_table()["value"].to_pylist() == ["false"]


def test_a_spark_connect_session_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headrace.yml").write_text("name: shop\n")
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "a.py").write_text(
        "import headrace as hr\n@hr.table\ndef a():\n    return hr.read_kafka('a')\n"
    )
    code = """
        import os
        from pyspark.sql import SparkSession
        session = SparkSession.builder.remote("sc://127.0.0.1:9").getOrCreate()
        from headrace import HeadraceError, Pipeline
        for work in (Pipeline.plan, lambda pipeline: pipeline.preview("a")):
            try:
                work(Pipeline.load(overrides={"kafka.bootstrap.servers": "127.0.0.1:9"}))
            except HeadraceError as error:
                print(type(session).__module__, error.code, flush=True)
        # Nobody listens: the session would try to connect for minutes.
        os._exit(0)
        """
    done = python(code, tmp_path)
    assert done.stdout.splitlines() == ["pyspark.sql.connect.session CONNECT_UNSUPPORTED"] * 2, done.stderr


EVENTS = """
import headrace as hr
from headrace import spark

@hr.table
def events():
    return spark.readStream.format("delta").load("{events}").select("id")

@hr.materialized_view
def counted():
    return spark.read.table("events").selectExpr("count(*) AS n", "count(DISTINCT id) AS ids")
"""


def write_events(path: Path, *ids: int) -> None:
    deltalake.write_deltalake(path, pa.table({"id": list(ids)}), mode="append")


def events_in(table: Path) -> list[int]:
    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return []
    return sorted(deltalake.DeltaTable(table).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def test_a_notebook_runs_edits_interrupts_and_goes_on(tmp_path: Path) -> None:
    events, table = tmp_path / "source", tmp_path / "lake" / "tables" / "default" / "events"
    spec = 'name: book\nkafka: {bootstrap.servers: "127.0.0.1:9"}\nlibraries: [{file: events.py}]\n'
    (tmp_path / "headrace.yml").write_text(spec)
    code = EVENTS.replace("{events}", str(events))
    (tmp_path / "events.py").write_text(code)
    write_events(events, 1, 2)
    with Kernel(tmp_path) as kernel:
        first = kernel.run(
            "import asyncio\n"
            "asyncio.get_running_loop()\n"
            "from headrace import Pipeline\n"
            "pipeline = Pipeline.load()\n"
            "result = pipeline.run()\n"
            "print('a word of mine')\n"
            "[flow.rows for flow in result.flows]"
        )
        assert (first.error, first.result, first.stdout, first.stderr) == (
            None,
            "[2]",
            "a word of mine\n",
            "",
        )

        (tmp_path / "events.py").write_text(
            code.replace('.select("id")', '.selectExpr("id", "id * 2 AS twice")')
        )
        write_events(events, 3)
        second = kernel.run(
            "pipeline.run(progress=True)\npipeline.read('events', columns=['twice'], where='id = 3').rows"
        )
        assert (second.error, second.result, second.stdout, second.stderr) == (None, "((6,),)", "", "")
        assert all(text in second.html for text in ("events", "up to date", "counted")), second.html

        running = kernel.start("pipeline.run(continuous=True)")
        write_events(events, 4)
        until(lambda: events_in(table) == [1, 2, 3, 4], "the continuous run reads what comes")
        kernel.interrupt()
        third = kernel.end(running)
        assert (third.error, third.stderr) == ("KeyboardInterrupt", ""), third.trace

        write_events(events, 5)
        fourth = kernel.run(
            "(pipeline.run().outcome, pipeline.verify().proven, pipeline.read('counted').rows)"
        )
        assert (fourth.error, fourth.result) == (None, "('completed', True, ((5, 5),))"), fourth.trace
    assert events_in(table) == [1, 2, 3, 4, 5]
