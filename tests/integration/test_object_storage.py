"""The commands on a storage in a bucket of a real S3 server, as a new user types them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from confluent_kafka import Producer
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from conftest import forget_tables
from headrace.cli.main import run
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.storage.guarantee import RECORD
from headrace.storage.s3.spark import find_support
from hook_server import running_hook
from object_server import REGION, SECRET, ObjectServer, assert_nowhere, open_buckets
from waiting import until

PIPELINE = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F

SALE = "id LONG, name STRING, sales DECIMAL(12, 2), n LONG"

@hr.table
@hr.expect_or_quarantine("known", "name <> 'bad'")
def sales():
    return hr.read_kafka("{topic}", format="json", schema=SALE)

@hr.temporary_view
def changes():
    return spark.readStream.table("sales")

hr.create_streaming_table("newest")
hr.create_auto_cdc_flow("newest", "changes", ["name"], "n")

@hr.table
def landed():
    return hr.read_files("s3://{bucket}/landing", format="json", schema="id LONG")

@hr.materialized_view
def sums():
    return spark.read.table("sales").groupBy("name").agg(F.sum("sales").alias("sales"))
"""


class Lake:
    def __init__(self, folder: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.bucket = folder, bucket
        self._capsys = capsys

    def says(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        got = run([*arguments, "--project", str(self.folder)])
        said = self._capsys.readouterr()
        assert got == code, said.out + said.err
        return said.out + said.err

    def gives(self, *arguments: str) -> Any:
        """The last object that a command prints as JSON."""
        text = self.says(*arguments, "--json")
        return json.loads(text) if text.startswith("{\n") else json.loads(text.splitlines()[-1])

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.gives("read", table, "--limit", "1000")["rows"]
        return found


@pytest.fixture
def make_lake(
    spark: object,
    object_server: ObjectServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str, str], Lake]:
    """Makes a pipeline with a bucket as storage, from its code and its topic."""

    def make(code: str, topic: str) -> Lake:
        object_server.reach(monkeypatch)
        folder, bucket = tmp_path / "shop", object_server.make_bucket()
        assert run(["init", str(folder), "--storage", f"s3://{bucket}/v1"]) == 0
        for file in (folder / "transformations").glob("*.py"):
            file.unlink()
        code = code.replace("{topic}", topic).replace("{bucket}", bucket)
        (folder / "transformations" / "sales.py").write_text(code)
        return Lake(folder, bucket, capsys)

    return make


def test_a_pipeline_runs_and_is_read_and_verified_in_a_bucket(
    make_lake: Callable[[str, str], Lake],
    topic: Callable[..., str],
    bootstrap: str,
    object_server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic(partitions=2)
    lake = make_lake(PIPELINE, name)
    bucket, folder = lake.bucket, lake.folder
    open_buckets(monkeypatch)  # as in a new process
    spec = folder / "headrace.yml"
    spec.write_text(f"{spec.read_text()}\nobject_storage: {{s3: {{region: {REGION}}}}}\n")
    assert "headrace[s3,test]" in (folder / "requirements.txt").read_text()
    producer = Producer({"bootstrap.servers": bootstrap})

    def produce(first: int, last: int) -> None:
        for n in range(first, last):
            sale = {"id": n, "name": "bad" if n % 10 == 9 else f"n{n % 3}", "sales": 0.5, "n": n}
            producer.produce(name, json.dumps(sale), partition=n % 2)
        assert producer.flush(30) == 0

    def land(number: int) -> None:
        object_server.client.put_object(
            Bucket=bucket, Key=f"landing/{number}.json", Body=f'{{"id": {number}}}'.encode()
        )

    produce(0, 40)
    land(1)
    assert "conditional writes hold" in lake.says("doctor")
    assert f"s3://{bucket}/v1 (new)" in lake.says("plan")
    assert lake.gives("run")["result"]["outcome"] == "completed"
    produce(40, 60)
    land(2)
    assert lake.gives("run")["result"]["outcome"] == "completed"
    flows = {one["flow"]: one["outcome"] for one in lake.gives("run")["result"]["flows"]}
    assert flows == dict.fromkeys(("sales", "newest", "landed"), "up to date")

    assert len(lake.rows("sales")) == 54
    assert {(row["name"], row["n"]) for row in lake.rows("newest")} == {("n0", 57), ("n1", 58), ("n2", 56)}
    assert sorted(row["id"] for row in lake.rows("landed")) == [1, 2]
    assert {row["name"]: row["sales"] for row in lake.rows("sums")} == dict.fromkeys(
        ("n0", "n1", "n2"), "9.00"
    )
    assert lake.gives("verify")["proven"]
    # As the page about permissions says.
    first = len(object_server.requests())
    assert lake.rows("sales")
    assert lake.gives("verify")["proven"]
    for command in (["status"], ["quality"], ["tables"], ["events"], ["quarantine", "list"]):
        assert "sales" in lake.says(*command), command
    assert {one.split()[0] for one in object_server.requests()[first:]} <= {"GET", "HEAD"}

    assert_nowhere(SECRET, object_server, bucket, folder, Path(os.environ["HEADRACE_LOGS"]))

    # The storage moves to this machine, and back to the bucket.
    numbers = {"n0": 57, "n1": 58, "n2": 56}
    for first, target in ((60, str(tmp_path / "lake")), (70, f"s3://{bucket}/v2")):
        copied = lake.gives("storage", "copy", "--to", target)
        held = [one for one in list_files(object_server, target) if one != RECORD]
        assert copied["done"] and copied["files"] == len(held)
        text = re.sub(r"(?m)^storage: .*", f"storage: {target}", spec.read_text())
        spec.write_text(text)
        forget_tables()
        assert "Nothing was written. No table would change" in lake.says("plan")
        assert lake.gives("verify")["proven"], "before the first run"
        produce(first, first + 10)
        land(first)
        assert lake.gives("run")["result"]["outcome"] == "completed"
        assert lake.gives("verify")["proven"]
        assert len(lake.rows("sales")) == (first + 10) * 9 // 10
        numbers |= {f"n{n % 3}": n for n in range(first, first + 9)}
        assert {row["name"]: row["n"] for row in lake.rows("newest")} == numbers
        assert sum(Decimal(row["sales"]) for row in lake.rows("sums")) == (first + 10) * Decimal("0.45")
    assert sorted(row["id"] for row in lake.rows("landed")) == [1, 2, 60, 70]

    # 72 sales, and 8 rows in quarantine.
    pinned = lake.gives("pin", "sales", "--for", "30d")["pinned"]
    assert lake.gives("pin", "--list")["pins"] == [pinned]
    assert len(lake.gives("preview", "sales", "--limit", "3")["rows"]) == 3
    (quality,) = lake.gives("quality", "sales")["datasets"]
    assert (quality["accepted"], quality["quarantined"]) == (72, 8)
    (checkpoint,) = lake.gives("checkpoint", "show", "sales")["checkpoints"]
    assert checkpoint["path"].startswith(f"s3://{bucket}/v2/")
    assert checkpoint["last_finished"] == checkpoint["last_committed"]
    sales = folder / "transformations" / "sales.py"
    sales.write_text(sales.read_text().replace("name <> 'bad'", "name IS NOT NULL"))
    replayed = lake.gives("quarantine", "replay", "sales")
    assert (replayed["replayed"], replayed["left"]) == (8, 0)
    assert lake.gives("erase", "sales", "--where", "n = 0", "--yes")["done"]
    assert lake.gives("reset", "sales", "--yes")["done"]
    assert lake.gives("run")["result"]["outcome"] == "completed"
    assert sorted(row["n"] for row in lake.rows("sales")) == list(range(1, 80)), "nothing is read again"
    assert lake.gives("verify")["proven"]

    now = ("--retain", "0s", "--allow-short-retention")
    (held,) = (one for one in lake.gives("maintain", "sales", *now)["tables"] if one["part"] == "table")
    assert [one["version"] for one in held["vacuum"]["held_by"]] == [pinned["version"]]
    assert lake.gives("pin", "sales", "--remove")["removed"] == [pinned]
    (done,) = (one for one in lake.gives("maintain", "sales", *now)["tables"] if one["part"] == "table")
    assert done["steps"] == ["vacuum", "log"]
    assert done["after"]["commits"] < done["before"]["commits"]
    assert lake.gives("full-refresh", "sales", "--yes")["result"]["outcome"] == "completed"
    assert sorted(row["n"] for row in lake.rows("sales")) == list(range(80))

    text = sales.read_text()
    without = text[: text.index("@hr.table\ndef landed")] + text[text.index("@hr.materialized_view") :]
    sales.write_text(without)
    assert lake.gives("run")["result"]["outcome"] == "completed"
    (orphan,) = lake.gives("tables", "--orphaned")["tables"]
    assert orphan["dataset"] == "default.landed"
    assert lake.gives("tables", "landed", "--remove", "--yes")["done"]
    assert not object_server.client.list_objects_v2(Bucket=bucket, Prefix="v2/tables/default/landed").get(
        "Contents"
    )
    assert lake.gives("verify")["proven"]


def list_files(server: ObjectServer, storage: str) -> list[str]:
    """The names of the files of a storage, in its folder."""
    if not storage.startswith("s3://"):
        return [str(one.relative_to(storage)) for one in Path(storage).rglob("*") if one.is_file()]
    bucket, _, prefix = storage.removeprefix("s3://").partition("/")
    pages = server.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    return [one["Key"].removeprefix(f"{prefix}/") for page in pages for one in page.get("Contents", ())]


ONE_FLOW = """
import headrace as hr

@hr.table
def small():
    return hr.read_kafka("{topic}", format="json", schema="id LONG", max_offsets_per_trigger=1)
"""
REQUESTS_OF_A_BATCH, MOST_REQUESTS = 13, 20
"""Of a small batch of one flow that appends; and with its share of the care of its table."""


def test_the_requests_of_a_small_batch_are_few_and_do_not_grow(
    make_lake: Callable[[str, str], Lake],
    topic: Callable[..., str],
    bootstrap: str,
    object_server: ObjectServer,
) -> None:
    name = topic(partitions=1)
    lake = make_lake(ONE_FLOW, name)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(45):
        producer.produce(name, json.dumps({"id": number}))
    assert producer.flush(30) == 0
    assert lake.gives("run")["result"]["outcome"] == "completed"

    requests = [one for one in object_server.requests() if f"/{lake.bucket}" in one]
    ends = [
        next(i for i, one in enumerate(requests) if re.match(rf"PUT .*/commits/{batch}($|\?)", one))
        for batch in range(45)
    ]
    # The event log, heartbeats and requests of table care depend on the time, not on the batches.
    timed = re.compile(r"/events/|/leases/processes/|/care/|prefix=v1(/|%2F)(events|care)")

    def between(first: int, last: int) -> list[str]:
        return [one for one in requests[ends[first] : ends[last]] if timed.search(one) is None]

    for batch in (5, 40):
        # A checkpoint of the log can be written meanwhile.
        least = min((between(one, one + 1) for one in range(batch - 3, batch + 2)), key=len)
        assert len(least) <= REQUESTS_OF_A_BATCH, least
    # With the checkpoints of the log.
    assert len(between(4, 40)) <= 36 * MOST_REQUESTS
    # Nobody is asked whether an object exists that is created conditionally, and old batches are not listed.
    logs = [one for one in between(4, 40) if "/offsets" in one or "/commits" in one]
    assert {one.split()[0] for one in logs} <= {"PUT", "GET"}, logs


OUTSIDE = """
import headrace as hr
from headrace import spark

@hr.table
def loaded():
    reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
    return reader.schema("id LONG").load("/Volumes/shop/landing")

@hr.table
def fed():
    return spark.readStream.table("crm.raw.accounts")

@hr.table
def followed():
    return spark.readStream.format("delta").load("s3://{bucket}/raw/accounts")

@hr.materialized_view
def counted():
    return spark.sql("SELECT count(*) AS n FROM crm.raw.accounts")

hr.create_streaming_table("rates")
hr.create_auto_cdc_from_snapshot_flow("rates", "s3://{bucket}/rates", ["id"])
"""
OUTSIDE_SPEC = """
name: shop
storage: ./lake
object_storage: {{s3: {{region: {region}}}}}
tables: {{crm.raw.*: "s3://{bucket}/raw"}}
paths: {{/Volumes/shop: "s3a://{bucket}"}}
libraries: [{{glob: {{include: transformations/**}}}}]
"""


def test_a_pipeline_runs_in_a_local_storage_and_reads_files_and_tables_of_a_bucket(
    spark: SparkSession,
    object_server: ObjectServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    object_server.reach(monkeypatch)
    bucket, folder = object_server.make_bucket(), tmp_path / "shop"
    (folder / "transformations").mkdir(parents=True)
    (folder / "transformations" / "shop.py").write_text(OUTSIDE.replace("{bucket}", bucket))
    (folder / "headrace.yml").write_text(OUTSIDE_SPEC.format(bucket=bucket, region=REGION))
    lake = Lake(folder, bucket, capsys)

    def put(key: str, *rows: dict[str, Any]) -> None:
        body = "\n".join(map(json.dumps, rows)).encode()
        object_server.client.put_object(Bucket=bucket, Key=key, Body=body)

    def feed(*ids: int) -> None:
        rows, options = pa.table({"id": list(ids)}), object_server.table_options
        write_deltalake(f"s3://{bucket}/raw/accounts", rows, mode="append", storage_options=options)

    put("landing/1.json", {"id": 1}, {"id": 2})
    put("rates/1/part-1.json", {"id": 1, "rate": 1.5}, {"id": 2, "rate": 2.5})
    feed(1, 2)
    # The session is that of all tests, and a session that Headrace has not started keeps its own buckets.
    end = find_support(load_project(folder)).share(spark, True)
    assert lake.gives("run")["result"]["outcome"] == "completed"
    put("landing/2.json", {"id": 3})
    put("rates/2/part-1.json", {"id": 1, "rate": 3.5})
    feed(3)
    assert lake.gives("run")["result"]["outcome"] == "completed"
    end()
    for table in ("loaded", "fed", "followed"):
        assert sorted(row["id"] for row in lake.rows(table)) == [1, 2, 3], table
    assert lake.rows("counted") == [{"n": 3}]
    assert [(row["id"], row["rate"]) for row in lake.rows("rates")] == [(1, 3.5)]
    assert lake.gives("verify")["proven"]


FILES = """
import headrace as hr

@hr.table
@hr.expect_or_fail("positive", "id > 0")
def landed():
    return hr.read_files("s3://{bucket}/landing", format="json", schema="id LONG")
"""


def test_alerts_the_dashboard_and_lineage_of_a_bucket(
    make_lake: Callable[[str, str], Lake], object_server: ObjectServer, tmp_path: Path
) -> None:
    lake = make_lake(FILES, "")
    spec = (lake.folder / "headrace.yml").read_text()
    with running_hook() as hook:
        alerts = {"targets": {"ops": {"webhook": hook.url}}, "rules": [{"on": "flow_failed"}]}
        (lake.folder / "headrace.yml").write_text(f"{spec}\nalerts: {json.dumps(alerts)}\n")
        put = object_server.client.put_object
        put(Bucket=lake.bucket, Key="landing/a.json", Body=b'{"id": 1}\n{"id": 2}\n')
        lake.says("run")
        put(Bucket=lake.bucket, Key="landing/b.json", Body=b'{"id": -1}\n')
        lake.says("run", code=1)
        assert [one.row["state"] for one in hook.taken] == ["firing"]
        assert lake.gives("alerts", "show")["alerts"][0]["told"] == ["ops"]
        assert lake.says("status", "--check", code=1).startswith("landed")
        assert "landing" in lake.says("lineage", "landed.id")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
            dashboard = Dashboard(load_project(lake.folder), Address(port=0), token="t")
            with serving(dashboard), requests.Session() as session:
                home = f"http://127.0.0.1:{dashboard.port}"
                session.get(f"{home}/?token=t", timeout=30)
                until(lambda: "EXPECTATION_FAILED" in session.get(f"{home}/", timeout=30).text, "no alert")
                until(lambda: "landed" in session.get(f"{home}/p/shop/", timeout=30).text, "no graph")
                assert "headrace_table_rows{" in session.get(f"{home}/metrics", timeout=30).text
        code = lake.folder / "transformations" / "sales.py"
        code.write_text(code.read_text().replace("id > 0", "id > -5"))
        lake.says("run")
        assert [one.row["state"] for one in hook.taken] == ["firing", "ended"]
        assert lake.gives("alerts", "show")["alerts"] == []
