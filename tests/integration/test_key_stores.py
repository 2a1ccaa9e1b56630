"""Sinks that keep the newest row of each key in a system without transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import HeadraceError, TargetInvalidError
from headrace.project.pipeline import Pipeline
from key_stores import KeyStore, RedisKeys, SearchIndex
from landing import Site
from opensearch_server import OpenSearchServer

pytestmark = pytest.mark.usefixtures("spark")

CURRENT = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, name STRING")

hr.create_streaming_table("customers")
hr.create_auto_cdc_flow("customers", "changes", ["id"], "at", apply_as_deletes="op = 'delete'",
                        except_column_list=["op"])
hr.create_sink("served", FORMAT, OPTIONS)

@hr.append_flow(target="served")
def serve():
    return hr.read_changes("customers")QUERY
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def redis_keys(redis_server: str) -> RedisKeys:
    return RedisKeys(redis_server)


@pytest.fixture
def search_index(search_server: OpenSearchServer) -> SearchIndex:
    return SearchIndex(search_server)


@pytest.fixture(params=["redis_keys", pytest.param("search_index", marks=pytest.mark.proof)])
def store(request: pytest.FixtureRequest) -> KeyStore:
    found: KeyStore = request.getfixturevalue(request.param)
    return found


def write(site: Site, store: KeyStore, query: str = "", **more: str) -> None:
    options = {"keys": "id", **store.options(), **more}
    code = CURRENT.replace("FORMAT", repr(store.format)).replace("OPTIONS", repr(options))
    site.write(code.replace("QUERY", query))


def planned_error(site: Site) -> HeadraceError:
    with Pipeline.load(site.root) as pipeline:
        (error,) = pipeline.plan().refusals
    return error


def names(store: KeyStore) -> dict[str, str]:
    return {key: row["name"] for key, row in store.rows().items()}


def test_a_store_follows_a_change_feed_with_its_deletes(site: Site, store: KeyStore) -> None:
    write(site, store)
    first = [
        {"id": 1, "at": 1, "op": "upsert", "name": "ada"},
        {"id": 2, "at": 1, "op": "upsert", "name": "bob"},
    ]
    site.put("a.json", *first)
    site.run_well()
    assert store.rows()["1"] == {"id": 1, "at": 1, "name": "ada"}
    assert names(store) == {"1": "ada", "2": "bob"}
    site.put("b.json", {"id": 1, "at": 2, "op": "upsert", "name": "Ada"}, {"id": 2, "at": 2, "op": "delete"})
    site.run_well()
    assert names(store) == {"1": "Ada"}
    site.put("c.json", {"id": 2, "at": 3, "op": "upsert", "name": "back"}, {"id": 1, "at": 3, "op": "delete"})
    site.put("d.json", {"id": 1, "at": 1, "op": "upsert", "name": "too old"})
    site.run_well()
    assert names(store) == {"2": "back"}
    with Pipeline.load(site.root) as pipeline:
        pipeline.reset(["serve"])
    site.run_well()
    assert names(store) == {"2": "back"}
    assert site.verify().proven


def test_a_full_refresh_removes_the_rows_of_before(site: Site, store: KeyStore) -> None:
    write(site, store)
    site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "name": "ada"})
    site.put("b.json", {"id": 2, "at": 1, "op": "upsert", "name": "bob"})
    site.run_well()
    write(site, store, ".where('id > 1')")
    with Pipeline.load(site.root) as pipeline:
        pipeline.full_refresh(["served"])
    assert names(store) == {"2": "bob"}
    site.put("c.json", {"id": 2, "at": 2, "op": "delete"}, {"id": 3, "at": 1, "op": "upsert", "name": "eve"})
    site.run_well()
    assert names(store) == {"3": "eve"}


@pytest.mark.parametrize(
    ("query", "more", "says"),
    [
        (".select('id', 'name')", {}, "_change_type"),
        ("", {"keys": "nothing"}, "nothing"),
        ("", {"wrong": "1"}, "wrong"),
        (".withColumn('id', F.col('id') / 2)", {}, "no form that is always the same"),
    ],
)
def test_a_plan_says_what_is_wrong(
    site: Site, store: KeyStore, query: str, more: dict[str, str], says: str
) -> None:
    write(site, store, query, **more)
    site.write("from pyspark.sql import functions as F\n" + (site.root / "visits.py").read_text())
    assert says in str(planned_error(site))


@pytest.mark.parametrize(
    "url", ["redis://:pa/SECRET@host:1", "http://host", "redis://host:port", "redis://[x"]
)
def test_an_address_that_is_none_is_refused(site: Site, redis_keys: RedisKeys, url: str) -> None:
    write(site, redis_keys, url=url)
    error = str(planned_error(site))
    assert "not an address" in error and "SECRET" not in error


def test_rows_without_a_version_are_refused(site: Site, store: KeyStore) -> None:
    write(site, store)
    code = (site.root / "visits.py").read_text()
    read = 'hr.read_files("landing", format="json", schema="id LONG, name STRING")'
    site.write(code.replace('hr.read_changes("customers")', read))
    assert "no version" in str(planned_error(site))


def test_two_flows_into_one_sink_are_refused(site: Site, store: KeyStore) -> None:
    write(site, store)
    code = (site.root / "visits.py").read_text()
    other = '\n@hr.append_flow(target="served")\ndef more():\n    return hr.read_changes("customers")\n'
    site.write(code + other)
    with pytest.raises(TargetInvalidError, match="two flows"), Pipeline.load(site.root) as pipeline:
        pipeline.plan()


def test_a_place_belongs_to_one_sink(site: Site, store: KeyStore, tmp_path: Path) -> None:
    write(site, store)
    site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "name": "ada"})
    site.run_well()
    other = Site(tmp_path / "other")
    write(other, store)
    assert "belongs to the sink" in str(planned_error(other))
    assert names(store) == {"1": "ada"}


def test_other_keys_need_a_full_refresh(site: Site, store: KeyStore) -> None:
    write(site, store)
    site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "name": "ada"})
    site.run_well()
    write(site, store, keys="name")
    site.put("b.json", {"id": 1, "at": 2, "op": "upsert", "name": "Ada"})
    assert site.error().code in ("TABLE_LOST", "CHECKPOINT_FOREIGN")
    assert names(store) == {"1": "ada"}
    with Pipeline.load(site.root) as pipeline:
        pipeline.full_refresh(["served"])
    assert names(store) == {"Ada": "Ada"}
    assert site.verify().proven


def test_a_text_that_looks_like_a_date_stays_a_text(site: Site, store: KeyStore) -> None:
    write(site, store)
    site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "name": "2024-01-01"})
    site.run_well()
    site.put("b.json", {"id": 2, "at": 1, "op": "upsert", "name": "hello"})
    site.run_well()
    assert names(store) == {"1": "2024-01-01", "2": "hello"}


def test_a_key_that_is_no_text_is_named(site: Site, store: KeyStore) -> None:
    write(
        site, store, ".selectExpr(\"cast(unhex('FF') AS STRING) AS id\", '_change_type', '_commit_version')"
    )
    site.put("a.json", {"id": 1, "at": 1, "op": "upsert", "name": "ada"})
    error = site.error()
    assert error.code == "SINK_ROW_REFUSED" and "UTF-8" in error.summary, error


def test_two_tables_in_one_query_are_refused(site: Site, store: KeyStore) -> None:
    write(site, store, ".unionByName(hr.read_changes('customers'))")
    assert "several streams" in str(planned_error(site))
