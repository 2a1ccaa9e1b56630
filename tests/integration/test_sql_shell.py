"""`headrace sql` on a real broker: queries, streams, and streams of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer

from checked_json import read_json
from headrace.cli.main import run
from headrace.project.pipeline import Pipeline
from headrace.runtime.processes import is_running
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("spark")

TABLES = """
CREATE TABLE IF NOT EXISTS sales_in USING kafka OPTIONS (subscribe '{topic}');
CREATE TABLE IF NOT EXISTS sales (id LONG, date DATE, name STRING, sales DOUBLE)
  USING delta LOCATION 'outside/sales' PARTITIONED BY (date);
CREATE SCAN IF NOT EXISTS sales_scan ON sales_in USING STREAM
  OPTIONS (startingOffsets 'earliest', maxOffsetsPerTrigger '100000', failOnDataLoss 'false');
"""
SELECT = """SELECT content.id, to_date(content.date, 'yyyy-MM-dd'), content.name, content.sales
FROM (SELECT from_json(CAST(value AS STRING), 'id LONG, date STRING, name STRING, sales DOUBLE') content
      FROM sales_scan)"""
CHANGES = """
CREATE TABLE customers (id LONG, city STRING) USING delta;
MERGE INTO customers AS t
USING (SELECT c.* FROM (SELECT from_json(CAST(value AS STRING), 'id LONG, city STRING, op STRING') c
       FROM changes)) AS s
ON t.id = s.id
WHEN MATCHED AND s.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE *
WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT *;
"""


class Desk:
    """A folder without a pipeline, and `headrace sql` in it."""

    def __init__(self, folder: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self._capsys = capsys

    def produce(self, topic: str, *values: object) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(topic, json.dumps(value), partition=0)
        assert producer.flush(30) == 0

    @property
    def options(self) -> list[str]:
        return ["--set", f"kafka.bootstrap.servers={self.bootstrap}"]

    def sql(self, text: str, *options: str, code: int = 0) -> list[dict[str, Any]]:
        """The JSON lines of the statements of a file."""
        (self.folder / "job.sql").write_text(text)
        self._capsys.readouterr()
        assert run(["sql", "-f", "job.sql", *options, "--json", *self.options]) == code
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]

    def rows(self, query: str) -> list[list[Any]]:
        return [list(row.values()) for row in self.sql(query)[-1]["rows"]]

    def elsewhere(self, text: str) -> list[dict[str, Any]]:
        """The JSON lines of statements in another process."""
        command = [sys.executable, "-m", "headrace", "sql", "-e", text, "--json", *self.options]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return read_json("sql", done.stdout)


@pytest.fixture
def desk(
    tmp_path: Path, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, bootstrap, capsys)


def sale(number: int) -> dict[str, Any]:
    return {"id": number, "date": "2026-01-02", "name": f"n{number}", "sales": number / 2}


def test_statements_query_tables_and_write_them_exactly_once(desk: Desk, topic: Callable[..., str]) -> None:
    name, changes = topic(), topic()
    desk.produce(name, *(sale(number) for number in range(3)))
    lines = desk.sql(TABLES.format(topic=name) + f"INSERT INTO sales {SELECT};", "--once")
    assert lines[-1]["result"]["outcome"] == "completed"
    assert desk.rows("SELECT id, CAST(date AS STRING), sales FROM sales ORDER BY id;") == [
        [number, "2026-01-02", number / 2] for number in range(3)
    ]
    assert (desk.folder / "outside" / "sales" / "_delta_log").is_dir()
    assert desk.rows("SELECT count(*), max(offset) FROM sales_in") == [[3, 2]]
    assert desk.rows("SELECT count(*) FROM sales_scan WHERE offset > 0") == [[2]]

    # The next statement continues after the last batch.
    desk.produce(name, sale(3))
    lines = desk.sql(f"INSERT INTO sales {SELECT};", "--once")
    assert [flow["rows"] for flow in lines[-1]["result"]["flows"]] == [1]
    with Pipeline.load(desk.folder / "lake" / "streams") as pipeline:
        assert pipeline.verify(require="ranges").proven
        assert [one.flow for dataset in pipeline.status().datasets for one in dataset.flows]

    desk.produce(
        changes,
        {"id": 1, "city": "Bern", "op": "u"},
        {"id": 2, "city": "Chur", "op": "u"},
        {"id": 1, "city": "Basel", "op": "u"},
        {"id": 2, "city": None, "op": "d"},
    )
    source = (
        f"CREATE TABLE c USING kafka OPTIONS (subscribe '{changes}'); CREATE SCAN changes ON c USING STREAM "
    )
    desk.sql(source + "OPTIONS (startingOffsets 'earliest');" + CHANGES, "--once")
    assert desk.rows("SELECT id, city FROM customers") == [[1, "Basel"]]

    error = desk.sql(f"INSERT INTO sales\n{SELECT.replace('content.name', 'content.nam')}", code=2)[-1][
        "error"
    ]
    assert (error["location"]["path"], error["location"]["line"]) == ("job.sql", 2)
    assert error["location"]["column"] is not None
    for text, refused in (
        ("DELETE FROM sales WHERE id = 1", "FEATURE_UNSUPPORTED"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1", "FEATURE_UNSUPPORTED"),
        ("INSERT INTO nowhere SELECT 1 FROM sales_scan", "SQL_NAME_UNKNOWN"),
        ("CREATE TABLE sales (id LONG)", "SQL_NAME_TAKEN"),
        ("SELECT (id FROM sales", "QUERY_FAILED"),
        ("SELECT 'open", "SQL_INVALID"),
    ):
        error = desk.sql(f"SELECT 1;\n{text}", code=2)[-1]["error"]
        assert error["code"] == refused, error
        assert error["location"]["line"] == 2


@pytest.mark.proof
def test_a_detached_stream_is_shown_stopped_and_dropped_by_another_process(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name = topic()
    desk.produce(name, sale(0))
    options = "OPTIONS (checkpointLocation 'outside/job', triggerInterval '1 second')"
    job = (
        TABLES.format(topic=name)
        + f"CREATE STREAM IF NOT EXISTS sales_job {options} INSERT INTO sales {SELECT};"
    )
    notes = desk.sql(job, "--detach")
    pid = int(notes[-1]["note"].rpartition(" ")[2])
    try:
        until(lambda: shown(desk)[:3] == ["sales", "running", 0], "the stream commits", 120)
        desk.produce(name, sale(1))
        until(lambda: desk.rows("SELECT count(*) FROM sales") == [[2]], "the second record is read", 60)
        assert "runs: pid" in desk.sql(job, "--detach")[-1]["note"]

        rows = desk.elsewhere("DESCRIBE STREAM sales_job")[-1]["rows"]
        described = {row["name"]: row["value"] for row in rows}
        assert (described["pid"], described["lag"], described["error"]) == (str(pid), "0", None)
        assert described["statement"].startswith("CREATE STREAM")
        assert desk.elsewhere("STOP STREAM sales_job")[-1]["note"] == "stream sales_job stopped"
        assert not is_running(pid)
        assert shown(desk)[1] == "stopped"
        with Pipeline.load(desk.folder / "lake" / "streams") as pipeline:
            assert pipeline.verify(require="ranges").proven
        assert any((desk.folder / "outside" / "job").iterdir())
        desk.elsewhere("DROP STREAM sales_job")
        assert desk.elsewhere("SHOW STREAMS")[-1]["rows"] == []
    finally:
        if is_running(pid):
            psutil.Process(pid).kill()


def shown(desk: Desk) -> Sequence[Any]:
    """Table, state and batch of the only stream, as another process shows them."""
    found = desk.elsewhere("SHOW STREAMS")[-1]["rows"][0]
    return [found["table"], found["state"], found["batch"]]
