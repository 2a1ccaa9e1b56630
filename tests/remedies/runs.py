"""Runs that fail in a query, and rows that cannot be replayed."""

import os
import re
import threading
import uuid
from pathlib import Path

import deltalake
import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import VARIABLE
from remedies.declarations import PY, SQL, table, view
from remedies.storage import files
from remedies.walk import Walk, line_of, situation
from waiting import DEADLINE_S, until

STREAM = 'spark.readStream.table("visits")'


@situation("FLOW_FAILED", spoils=True)
def a_function_that_raises(walk: Walk) -> None:
    code = "@F.udf('long')\ndef divided(n):\n    return 6 // {by}\n"
    query = 'spark.read.table("visits").withColumn("d", divided("id"))'
    walk.edit(view(query, more=code.replace("{by}", "0")))
    shown = walk.fails("headrace run", line_of(walk.folder, PY, "6 // 0"))
    assert "extra failed: divided() raised ZeroDivisionError\n" in shown.text, shown.text
    assert "ZeroDivisionError: " in shown.text, shown.text
    traced = walk.types(next(one for one in shown.commands if one.startswith("headrace run --debug")))
    assert "Traceback" in traced.text and "--debug" not in " ".join(traced.remedies), traced.text
    walk.edit(view(query, more=code.replace("{by}", "2")))
    walk.is_healthy()


@situation("STATE_CHANGED", spoils=True)
def other_keys_of_a_deduplication(walk: Walk) -> None:
    walk.edit(table(f'{STREAM}.dropDuplicates(["id"])'))
    walk.goes_well("headrace run")
    files(walk).put()
    walk.edit(table(f'{STREAM}.dropDuplicates(["page"])'))
    shown = walk.fails("headrace run", line_of(walk.folder, PY, "dropDuplicates"))
    walk.follows(shown, "headrace full-refresh extra")
    walk.is_healthy()


@situation("REFRESH_NOT_INCREMENTAL", spoils=True)
def a_strict_view_with_a_limit(walk: Walk) -> None:
    walk.edit(view('spark.read.table("visits").limit(3)', 'refresh_policy="incremental_strict"'))
    walk.fails("headrace run", line_of(walk.folder, PY, "def extra"))
    walk.replace(PY, "incremental_strict", "incremental")
    walk.is_healthy()


@situation("SCHEMA_MISMATCH", spoils=True)
def a_column_gets_another_type(walk: Walk) -> None:
    walk.edit(table(STREAM))
    walk.goes_well("headrace run")
    walk.edit(table(f'{STREAM}.withColumn("page", F.length("page"))'))
    files(walk).put()
    shown = walk.fails("headrace run", f"{PY}:")
    walk.follows(shown, "headrace full-refresh extra")
    walk.is_healthy()


@situation("REPLAY_IMPOSSIBLE", spoils=True)
def rows_of_a_view_are_replayed(walk: Walk) -> None:
    walk.edit(view('spark.read.table("visits")', more='@hr.expect_or_quarantine("some", "id > 0")'))
    walk.goes_well("headrace run")
    shown = walk.fails("headrace quarantine replay extra", "extra")
    walk.replace(PY, "id > 0", "id >= 0")
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("RESUME_IMPOSSIBLE", spoils=True)
def a_flow_without_a_table_is_reset(walk: Walk) -> None:
    walk.edit(table(STREAM))
    shown = walk.fails("headrace reset extra", f"{PY}:")
    walk.follows(shown, "headrace full-refresh extra")
    walk.is_healthy()


@situation("KEPT_SCHEMA_UNREADABLE", spoils=True)
def an_inferred_schema_is_damaged(walk: Walk) -> None:
    walk.edit(table('hr.read_files("landing", format="json")'))
    walk.goes_well("headrace run")
    (kept,) = [path for path in walk.folder.storage.schemas.iterdir() if path.is_file()]
    walk.breaks(kept)
    files(walk).put()
    walk.enters(walk.fails("headrace run", kept.name), "rm ")
    walk.is_healthy()


@situation("TABLE_NAME_TAKEN", spoils=True)
def another_table_of_the_session(walk: Walk) -> None:
    folder = files(walk)
    elsewhere = folder.root / "elsewhere"
    session = SparkSession.active()
    walk.does("the catalog of the session has a table `extra` elsewhere")
    session.sql(f"CREATE TABLE {folder.database}.extra (id LONG) USING delta LOCATION '{elsewhere}'")
    walk.edit({SQL: "CREATE MATERIALIZED VIEW extra AS SELECT id FROM visits;\n"})
    shown = walk.fails("headrace run", f"{SQL}:1")
    assert "database: my_pipeline" in shown.text, shown.text
    folder.database = f"walk_{uuid.uuid4().hex[:8]}"
    walk.edit({"headrace.yml": f"{{spec}}database: {folder.database}\n"})
    walk.is_healthy()


@situation("UPSTREAM_REWRITTEN", spoils=True)
def another_program_changes_rows(walk: Walk) -> None:
    path = f"delta.`{walk.folder.root / 'people'}`"
    session = SparkSession.active()
    feed = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    session.sql(f"CREATE TABLE {path} (id LONG, name STRING) USING delta {feed}")
    session.sql(f"INSERT INTO {path} VALUES (1, 'a'), (2, 'b')")
    walk.edit(table('hr.read_table_stream("./people")'))
    walk.goes_well("headrace run")
    walk.does("another program updates a row of the table people")
    session.sql(f"UPDATE {path} SET name = 'z' WHERE id = 2")
    shown = walk.fails("headrace run", f"{PY}:")
    walk.follows(shown, "headrace full-refresh extra")
    walk.is_healthy()
    assert walk.folder.select("extra", "id", "name") == [(1, "a"), (2, "z")]
    walk.does("another program updates the row again")
    session.sql(f"UPDATE {path} SET name = 'y' WHERE id = 2")
    shown = walk.fails("headrace run", f"{PY}:")
    changes = re.search(r"hr\.read_changes\(.*\)", shown.text)
    assert changes is not None, shown.text
    walk.replace(PY, 'hr.read_table_stream("./people")', changes[0])
    walk.is_healthy()


@situation("UPSTREAM_SCHEMA_CHANGED", spoils=True)
def a_column_of_another_table_is_renamed(walk: Walk) -> None:
    people = f"delta.`{walk.folder.root / 'people'}`"
    session = SparkSession.active()
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true')"
    session.sql(f"CREATE TABLE {people} (id LONG, name STRING) USING delta {mapped}")
    session.sql(f"INSERT INTO {people} VALUES (1, 'a')")
    walk.edit(table('hr.read_changes("./people")'))
    walk.goes_well("headrace run")
    session.sql(f"INSERT INTO {people} VALUES (2, 'b')")
    session.sql(f"ALTER TABLE {people} RENAME COLUMN name TO title")
    walk.does("another program renames the column `name` of the table people")
    shown = walk.fails("headrace run", line_of(walk.folder, PY, "read_changes"))
    assert "people, which it reads, has renamed its column `name` to `title`" in shown.text, shown.text
    assert "version 3: RENAME COLUMN by Apache-Spark/" in shown.text, shown.text
    walk.follows(shown, "headrace full-refresh extra")
    walk.is_healthy()


@situation("CHANGE_FEED_MISSING")
def a_feed_of_a_table_that_records_none(walk: Walk) -> None:
    people = walk.folder.root / "people"
    deltalake.write_deltalake(people, pa.table({"id": [1]}))
    walk.edit(table('hr.read_changes("./people")'))
    shown = walk.fails("headrace plan", f"{PY}:")
    enables = next(one.rpartition(":   ")[2] for one in shown.remedies if "ALTER TABLE" in one)
    walk.does(f"in Spark: {enables}")
    # The transcript writes the folder of the pipeline as a dot.
    SparkSession.active().sql(enables.replace("`./", f"`{walk.folder.root}/"))
    walk.goes_well("headrace plan")
    assert 'hr.read_table_stream("./people")' in shown.text, shown.text
    walk.edit(table('hr.read_table_stream("./people")'))
    walk.goes_well("headrace plan")
    walk.edit({PY: None})


@situation("SECOND_DRIVER")
def the_pipeline_runs_already(walk: Walk) -> None:
    folder = files(walk)
    folder.put()
    markers = folder.root / "markers"
    markers.mkdir(exist_ok=True)
    walk.does("another process runs the pipeline")
    os.environ[VARIABLE] = f"before-commit:{folder.next_batch('visits')}:{markers}"

    def work() -> None:
        with Pipeline.load(folder.root) as pipeline:
            pipeline.run()

    other = threading.Thread(target=work, name="headrace-test-run")
    other.start()
    marker = markers / "before-commit"
    try:
        until(lambda: marker.exists() or not other.is_alive(), "the other run reaches its commit")
        assert marker.exists(), "the other run has ended before its commit"
        os.environ.pop(VARIABLE)
        shown = walk.fails("headrace run", "visits")
    finally:
        os.environ.pop(VARIABLE, None)
        Path(markers / "before-commit").unlink(missing_ok=True)
        other.join(DEADLINE_S)
    walk.does("the other process has ended")
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("ROWS_NOT_REPEATABLE", spoils=True)
def a_function_with_another_result_each_time(walk: Walk) -> None:
    folder = files(walk)
    calls = folder.root / "calls"
    code = (
        f"def call(id):\n    with open({str(calls)!r}, 'a') as file:\n        file.write('.')\n"
        f"    import os\n    return os.path.getsize({str(calls)!r})\n\n"
        "number = F.udf(call, 'long'){more}\n\n"
        "@hr.expect_or_quarantine('early', 'call <= 2')"
    )
    query = f'{STREAM}.withColumn("call", number("id"))'
    walk.edit(table(query, more=code.replace("{more}", "")))
    shown = walk.fails("headrace run", line_of(walk.folder, PY, "F.udf(call"))
    assert "`early` (call <= 2)" in shown.text and "call() gives another result" in shown.text, shown.text
    walk.replace(PY, "F.udf(call, 'long')", shown.remedies[0].rpartition(":   ")[2])
    walk.follows(shown, "headrace run")
    walk.is_healthy()


@situation("FULL_REFRESH_NOT_ALLOWED", spoils=True)
def a_reader_that_no_refresh_may_empty(walk: Walk) -> None:
    kept = 'table_properties={"pipelines.reset.allowed": "false"}'
    walk.edit(table(STREAM, kept))
    walk.goes_well("headrace run")
    shown = walk.fails("headrace full-refresh visits", f"{PY}:")
    walk.edit(table(STREAM))
    rebuilt = walk.follows(shown, "headrace full-refresh visits")
    assert "by the next run" in rebuilt.text and "Next: headrace run" in rebuilt.text, rebuilt.text
    walk.is_healthy()
