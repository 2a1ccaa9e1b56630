"""`verify --sample` compares rows of a sink with those of the table that it follows."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import deltalake
import pytest
import redis
from pyspark.sql import SparkSession

from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.verify.registry import SINK_ROWS
from headrace.verify.report import GradeReport, proof_lines
from headrace.verify.sink_rows import SinkRows
from landing import Site
from opensearch_server import OpenSearchServer
from postgres_server import Database

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.temporary_view
def changes():
    schema = "id LONG, at LONG, op STRING, name STRING, size DOUBLE"
    return hr.read_files("landing", format="json", schema=schema)

hr.create_streaming_table("customers")
hr.create_auto_cdc_flow("customers", "changes", ["id"], "at", apply_as_deletes="op = 'delete'",
                        except_column_list=["op"])
hr.create_sink("served", FORMAT, OPTIONS)

@hr.append_flow(target="served")
def serve():
    return hr.read_changes("customers")
"""


class System(ABC):
    """A system with one sink, in which a test plants faults."""

    format: str

    @abstractmethod
    def options(self) -> dict[str, str]: ...

    @abstractmethod
    def lose(self, key: int) -> None: ...

    @abstractmethod
    def put(self, key: int, name: str) -> None:
        """Write a row that the sink has not written."""


class Postgres(System):
    format = "postgres"

    def __init__(self, database: Database) -> None:
        self.database = database

    def options(self) -> dict[str, str]:
        return {"url": self.database.url, "table": "served", "keys": "id", "create": "true"}

    def lose(self, key: int) -> None:
        assert self.database.execute(f"DELETE FROM served WHERE id = {key} RETURNING 1") == [(1,)]

    def put(self, key: int, name: str) -> None:
        change = f"ON CONFLICT (id) DO UPDATE SET name = '{name}'"
        self.database.execute(f"INSERT INTO served (id, at, name) VALUES ({key}, 1, '{name}') {change}")


class Redis(System):
    format = "redis"

    def __init__(self, address: str, prefix: str) -> None:
        self.address, self.prefix = address, prefix

    def options(self) -> dict[str, str]:
        return {"url": self.address, "prefix": self.prefix, "keys": "id"}

    def connect(self) -> redis.Redis:
        return redis.Redis.from_url(self.address, decode_responses=True)

    def lose(self, key: int) -> None:
        with self.connect() as connection:
            assert connection.delete(f"{self.prefix}{key}") == 1

    def put(self, key: int, name: str) -> None:
        with self.connect() as connection:
            connection.set(
                f"{self.prefix}{key}", json.dumps({"id": key, "at": 1, "name": name, "size": None})
            )


class Search(System):
    format = "opensearch"

    def __init__(self, server: OpenSearchServer) -> None:
        self.server, self.name = server, server.new_name()

    def options(self) -> dict[str, str]:
        return {"url": self.server.url, "index": self.name, "keys": "id"}

    def lose(self, key: int) -> None:
        self.server.call("DELETE", f"{self.name}-headrace-1/_doc/{key}")

    def put(self, key: int, name: str) -> None:
        body = {"id": key, "at": 1, "name": name, "size": None}
        self.server.call("PUT", f"{self.name}-headrace-1/_doc/{key}", body)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture(params=["postgres", "redis", pytest.param("opensearch", marks=pytest.mark.proof)])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    match request.param:
        case "postgres":
            return Postgres(request.getfixturevalue("database"))
        case "redis":
            return Redis(request.getfixturevalue("redis_server"), f"{tmp_path.name}[*]:")
        case _:
            return Search(request.getfixturevalue("search_server"))


def write(site: Site, system: System, code: str = CODE, **more: str) -> None:
    options = {**system.options(), **more}
    site.write(code.replace("FORMAT", repr(system.format)).replace("OPTIONS", repr(options)))


def fill(site: Site, number: int = 9) -> None:
    """Rows with the keys 1 to `number`; the last key is deleted again."""
    rows = [
        {"id": key, "at": 1, "op": "u", "name": f"n{key} ü", "size": key / 3} for key in range(1, number + 1)
    ]
    site.put("a.json", *rows)
    site.run_well()
    site.put("b.json", {"id": number, "at": 2, "op": "delete"}, {"id": 1, "at": 2, "op": "u", "name": ""})
    site.run_well()


def sample(site: Site, size: int = 100, sink: str = "served") -> GradeReport:
    with Pipeline.load(site.root) as pipeline:
        proof = pipeline.verify(sample=size)
    (found,) = (one for one in proof.datasets if one.dataset.name == sink)
    assert found.sample is not None
    lines = "\n".join(proof_lines(proof))
    assert found.sample.text in lines, lines
    return found.sample


def test_the_rows_of_a_sink_are_compared_with_its_table(site: Site, system: System) -> None:
    write(site, system)
    fill(site)
    whole = sample(site)
    assert (whole.verdict, whole.figures["keys"]) == ("proven", 8), whole
    system.lose(3)
    system.put(4, "stale")
    system.put(9, "back")
    found = sample(site)
    assert {(one.code, one.place["key"]) for one in found.findings} == {
        ("KEY_LOST", "3"),
        ("ROW_STALE", "4"),
        ("KEY_EXTRA", "9"),
    }, found
    assert "name is stale, not n4 ü" in str(found.findings)


ODD = """
SELECT * FROM VALUES
    ('', CAST(1.50 AS DECIMAL(10, 2)), DATE'1970-01-01', true, 'a:b%3A', 1.5D,
        TIMESTAMP'2024-03-31 02:30:00.123456', TIMESTAMP_NTZ'2024-02-29 12:00:00', 9223372036854775807),
    ('ü:%3A', CAST(0 AS DECIMAL(10, 2)), DATE'2024-02-29', false, '', CAST('NaN' AS DOUBLE),
        TIMESTAMP'0001-01-01 00:00:00', TIMESTAMP_NTZ'1600-01-01 00:00:00', -1),
    ('ü', CAST(-7.25 AS DECIMAL(10, 2)), DATE'9999-12-31', true, '1e400', CAST('-Infinity' AS DOUBLE),
        TIMESTAMP'1890-01-01 00:00:00', NULL, NULL),
    ('"quoted"', CAST(12345678.99 AS DECIMAL(10, 2)), DATE'1600-01-01', false, NULL, 1e-300D,
        NULL, TIMESTAMP_NTZ'2024-02-29 12:00:00.000001', 0),
    ('gone', CAST(1 AS DECIMAL(10, 2)), DATE'2020-01-01', true, 'x', -0.0D, NULL, NULL, 1)
AS t(old, number, day, flag, name, share, at, local, big)
"""
ODD_CODE = """
import headrace as hr

hr.create_sink("served", FORMAT, OPTIONS)

@hr.append_flow(target="served")
def serve():
    return hr.read_changes("SOURCE")
"""


def odd_table(site: Site, spark: SparkSession) -> str:
    """A table with odd keys, a renamed column, deletion vectors, and files that were compacted."""
    path = f"{site.root}/source"
    properties = "delta.columnMapping.mode = 'name', delta.enableDeletionVectors = true"
    spark.sql(f"CREATE TABLE delta.`{path}` USING delta TBLPROPERTIES ({properties}) AS {ODD}")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN old TO code")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    return path


@pytest.mark.parametrize("form", ["json", "hash"])
def test_odd_keys_and_values(
    site: Site, spark: SparkSession, request: pytest.FixtureRequest, form: str, tmp_path: Path
) -> None:
    path = odd_table(site, spark)
    systems: list[System] = [Redis(request.getfixturevalue("redis_server"), f"odd {form} {tmp_path.name}:")]
    if form == "json":
        systems.append(Postgres(request.getfixturevalue("database")))
    for system in systems:
        more = {"value": form} if system.format == "redis" else {}
        write(site, system, ODD_CODE.replace("SOURCE", path), keys="code, number,day,flag", **more)
        with Pipeline.load(site.root) as pipeline:
            pipeline.full_refresh(["served"])
        spark.sql(f"UPDATE delta.`{path}` SET big = coalesce(big, 0) + 0, name = 'changed' WHERE code = 'ü'")
        site.run_well()
        spark.sql(f"DELETE FROM delta.`{path}` WHERE code = 'gone'")
        site.run_well()
        found = sample(site)
        held = spark.read.format("delta").load(path).count()
        assert (found.verdict, found.figures["keys"]) == ("proven", held), found
        assert {*found.details["columns"]} > {"code", "name", "share", "at", "local", "big"}
        spark.sql(f"UPDATE delta.`{path}` SET name = 'later'")
        # The sink has not read this version, and is compared with the one before.
        assert sample(site).verdict == "proven"


def test_only_columns_that_no_query_has_changed_are_compared(site: Site, database: Database) -> None:
    system = Postgres(database)
    write(site, system)
    fill(site)
    write(
        site,
        system,
        f'{CODE.rstrip()}.withColumn("name", hr_upper("name"))'.replace(
            "import headrace as hr",
            ("import headrace as hr\nfrom pyspark.sql.functions import upper as hr_upper"),
        ),
    )
    site.put("c.json", {"id": 20, "at": 1, "op": "u", "name": "twenty"})
    site.run_well()
    found = sample(site)
    assert (found.verdict, {*found.details["columns"]}) == ("proven", {"id", "at", "size"}), found
    write(site, system, f'{CODE.rstrip()}.where("id < 30")')
    site.put("d.json", {"id": 21, "at": 1, "op": "u"})
    site.run_well()
    write(site, system)
    site.run_well()
    found = sample(site)
    assert found.verdict == "unjudged" and "leaves out rows" in str(found.reasons), found
    with Pipeline.load(site.root) as pipeline:
        pipeline.full_refresh(["served"])
    found = sample(site)
    assert (found.verdict, {*found.details["columns"]}) == ("proven", {"id", "at", "name", "size"}), found


def test_a_later_start_says_nothing_of_keys_that_are_missing(site: Site, database: Database) -> None:
    system = Postgres(database)
    feed = 'create_streaming_table("customers", table_properties={"delta.enableChangeDataFeed": "true"})'
    code = CODE.replace('create_streaming_table("customers")', feed)
    site.write(code[: code.index("hr.create_sink")])
    site.put("0.json", {"id": 30, "at": 1, "op": "u", "name": "early"})
    site.run_well()
    fill(site)
    version = deltalake.DeltaTable(site.storage.table(site.name("customers"))).version()
    late = f'read_changes("customers", starting_version={version - 1})'
    write(site, system, code.replace('read_changes("customers")', late))
    site.run_well()
    found = sample(site)
    assert found.verdict == "partial" and "began after" in str(found.reasons), found
    system.put(31, "extra")
    assert [one.code for one in sample(site).findings] == ["KEY_EXTRA"]


def test_rows_of_a_batch_that_is_not_complete_are_not_compared(
    site: Site, redis_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site, Redis(redis_server, f"{tmp_path.name}:"))
    fill(site)
    break_off(site, monkeypatch)
    found = sample(site)
    assert found.verdict == "partial" and "2 keys not compared: a row of a batch" in str(found.reasons), found
    site.run_well()
    assert sample(site).verdict == "proven"


def break_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that has sent its rows, and ends before it is recorded."""
    monkeypatch.setenv(FAIL_VARIABLE, "serve/before-commit:2")
    site.put("c.json", {"id": 1, "at": 3, "op": "u", "name": "sent"}, {"id": 2, "at": 3, "op": "delete"})
    site.run()
    assert FAIL_VARIABLE not in os.environ


def test_a_batch_that_ends_while_the_table_is_read_is_no_finding(
    site: Site, redis_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(site, Redis(redis_server, f"{tmp_path.name}:"))
    fill(site)
    break_off(site, monkeypatch)
    read = SINK_ROWS["redis"]

    def read_before_the_commit(*given: Any) -> SinkRows:
        found = read(*given)
        site.run_well()
        return found

    monkeypatch.setitem(SINK_ROWS, "redis", read_before_the_commit)
    found = sample(site)
    assert found.verdict == "partial" and "2 keys not compared: a row of a batch" in str(found.reasons), found


def test_keys_that_a_ttl_has_removed_are_no_finding(site: Site, redis_server: str, tmp_path: Path) -> None:
    system = Redis(redis_server, f"{tmp_path.name}:")
    write(site, system, ttl="3600")
    fill(site)
    write(site, system)
    site.put("c.json", {"id": 1, "at": 3, "op": "u", "name": "later"})
    site.run_well()
    system.lose(3)  # as the server does after the hour
    found = sample(site)
    assert found.verdict == "partial" and "ttl" in str(found.reasons), found


def test_a_view_that_is_refreshed_by_its_changes(site: Site, database: Database) -> None:
    code = CODE.replace(
        "hr.create_sink",
        """
@hr.materialized_view
def names():
    return spark.read.table("customers").groupBy("name").count()

hr.create_sink""",
        1,
    ).replace('read_changes("customers")', 'read_changes("names", images="all")')
    write(site, Postgres(database), "from headrace import spark\n" + code, keys="name")
    fill(site)
    found = sample(site)
    assert (found.verdict, found.figures["keys"]) == ("proven", 8), found
    database.execute("UPDATE served SET count = 9 WHERE name = 'n3 ü'")
    assert [one.code for one in sample(site).findings] == ["ROW_STALE"]


def test_what_a_database_does_to_its_rows_is_not_a_finding(site: Site, database: Database) -> None:
    system = Postgres(database)
    database.execute("CREATE TABLE served (id bigint PRIMARY KEY, at bigint, name varchar(3), size float8)")
    function = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at = 0; RETURN NEW; END $$"
    database.execute(f"CREATE FUNCTION zero() {function}")
    database.execute("CREATE TRIGGER zero BEFORE INSERT ON served FOR EACH ROW EXECUTE FUNCTION zero()")
    write(site, system)
    site.put("a.json", {"id": 1, "at": 1, "op": "u", "name": "ada   "})
    site.run_well()
    found = sample(site)
    assert found.verdict == "unjudged" and "trigger" in str(found.reasons), found
    database.execute("DROP TRIGGER zero ON served")
    site.put("b.json", {"id": 1, "at": 2, "op": "u", "name": "ada   "})
    site.run_well()
    # A column with a length loses the spaces that are too many.
    found = sample(site)
    assert (found.verdict, {*found.details["columns"]}) == ("proven", {"id", "at", "size"}), found


def test_sinks_whose_rows_are_not_read_say_so(site: Site) -> None:
    code = CODE.replace("FORMAT", "'delta'").replace("OPTIONS", repr({"path": "copied"}))
    site.write(code)
    fill(site)
    found = sample(site)
    assert found.verdict == "unjudged" and "format" in str(found.reasons), found
