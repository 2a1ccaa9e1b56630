"""The pipelines of `examples/` run, and do what they say."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import redis
from confluent_kafka.admin import AdminClient

from headrace.project.pipeline import Pipeline
from hook_server import running_hook
from opensearch_server import OpenSearchServer
from postgres_server import Database
from proof.ledger import TIMEOUT_S, ProducerLedger, create_topic, settings
from topic_reader import newest

pytestmark = pytest.mark.usefixtures("spark")

EXAMPLES = Path(__file__).parents[2] / "examples"


class Example:
    """A copy of an example, with a schema of its own in the session's catalog."""

    def __init__(self, root: Path, topic: str, bootstrap: str) -> None:
        self.root = root
        self._topic = topic
        self._ledger = ProducerLedger(bootstrap)
        self._database = f"example_{uuid.uuid4().hex[:8]}"
        self._overrides = {"kafka.bootstrap.servers": bootstrap, "database": self._database}

    def run(self, *records: dict[str, Any]) -> None:
        """Produce records, those of the example's file by default, and run until all are processed."""
        lines = [json.dumps(one) for one in records]
        lines = lines or (self.root / "changes.jsonl").read_text().splitlines()
        self._ledger.produce_values(self._topic, [(line.encode(), 0) for line in lines])
        with Pipeline.load(self.root, overrides=self._overrides) as pipeline:
            result = pipeline.run()
            assert result.outcome == "completed", result.errors
            assert pipeline.verify().proven

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        return rows_of(self.root / "lake" / "tables" / self._database / table, *columns)


def rows_of(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    query = f"SELECT {', '.join(columns)} FROM t"
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(folder)).execute(query).read_all()
    return sorted(tuple(row.values()) for row in pa.table(table).to_pylist())


@pytest.fixture
def load_example(bootstrap: str, tmp_path: Path) -> Iterator[Callable[[str, str], Example]]:
    made: list[str] = []
    admin = AdminClient(settings(bootstrap))

    def load(name: str, topic: str) -> Example:
        create_topic(bootstrap, topic, 1)
        made.append(topic)
        shutil.copytree(EXAMPLES / name, tmp_path / name)
        return Example(tmp_path / name, topic, bootstrap)

    yield load
    for future in admin.delete_topics(made).values():
        future.result(TIMEOUT_S)


def test_a_second_table_follows_a_changing_one_deletes_included(
    load_example: Callable[[str, str], Example],
) -> None:
    example = load_example("propagate", "customer-changes")
    example.run()
    example.run({"id": 3, "changed_at": "2026-01-03T08:00:00Z", "op": "delete"})
    assert example.rows("customers", "id", "city") == [(1, "Zug")]
    assert example.rows("customers_by_city", "id", "name", "city") == [(1, "Ada", "ZUG")]


def test_an_audit_table_has_every_change_of_a_row(load_example: Callable[[str, str], Example]) -> None:
    example = load_example("audit", "account-changes")
    example.run()
    example.run({"id": 1, "balance": 55, "version": 3}, {"id": 3, "balance": 1, "version": 1})
    example.run({"id": 3, "version": 2, "op": "close"})
    assert example.rows("accounts_audit", "id", "change", "balance") == [
        (1, "insert", 40),
        (1, "update_postimage", 55),
        (1, "update_preimage", 40),
        (3, "delete", 1),
        (3, "insert", 1),
    ]


def test_features_are_computed_for_changed_keys_only(load_example: Callable[[str, str], Example]) -> None:
    example = load_example("features", "order-changes")
    example.run()
    features = example.root / "features_table"
    assert rows_of(features, "customer", "orders", "amount", "computed_in") == [
        ("ada", 2, 40, 0),
        ("bob", 1, 5, 0),
    ]
    # One order moves from ada to eve, and the other customers stay as they are.
    example.run({"order": 2, "customer": "eve", "amount": 31, "version": 2})
    assert rows_of(features, "customer", "orders", "amount", "computed_in") == [
        ("ada", 1, 10, 1),
        ("bob", 1, 5, 0),
        ("eve", 1, 31, 1),
    ]
    example.run({"order": 2, "customer": "eve", "version": 3, "cancelled": True})
    assert [row[0] for row in rows_of(features, "customer")] == ["ada", "bob"]


def test_a_topic_follows_a_changing_table(
    load_example: Callable[[str, str], Example], bootstrap: str, topic: Callable[..., str]
) -> None:
    published = topic(2, **{"cleanup.policy": "compact"})
    example = load_example("published", "customer-changes")
    code = example.root / "transformations" / "customers.py"
    code.write_text(code.read_text().replace('"topic": "customers"', f'"topic": "{published}"'))
    example.run()
    example.run({"id": 3, "changed_at": "2026-01-03T08:00:00Z", "op": "delete"})
    rows = [json.loads(value) for value in newest(bootstrap, published).values()]
    held = sorted((row["id"], row["name"], row["city"]) for row in rows)
    assert held == example.rows("customers", "id", "name", "city") == [(1, "Ada", "Zug")]


def test_a_table_of_postgres_follows_a_changing_one(
    load_example: Callable[[str, str], Example], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", database.url)
    example = load_example("served", "customer-changes")
    example.run()
    first = database.execute("SELECT id, name, city FROM customers ORDER BY id")
    assert first and first == example.rows("customers", "id", "name", "city")
    example.run({"id": 3, "changed_at": "2026-01-03T08:00:00Z", "op": "delete"})
    assert database.execute("SELECT id, name, city FROM customers") == [(1, "Ada", "Zug")]


def test_a_cache_follows_a_changing_table(
    load_example: Callable[[str, str], Example], redis_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = redis_server.replace("/0", "/2")
    monkeypatch.setenv("SHOP_CACHE", address)
    example = load_example("cached", "customer-changes")
    example.run()
    with redis.Redis.from_url(address, decode_responses=True) as connection:
        assert connection.hget("customer:3", "id") == "3"
        example.run({"id": 3, "changed_at": "2026-01-03T08:00:00Z", "op": "delete"})
        assert connection.hget("customer:1", "city") == "Zug"
        assert list(connection.scan_iter("customer:*")) == ["customer:1"]


@pytest.mark.proof
def test_a_search_index_follows_a_changing_table(
    load_example: Callable[[str, str], Example],
    search_server: OpenSearchServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_SEARCH", search_server.url)
    example = load_example("found", "customer-changes")
    example.run()
    assert "3" in search_server.documents("customers")
    example.run({"id": 3, "changed_at": "2026-01-03T08:00:00Z", "op": "delete"})
    assert {one["city"] for one in search_server.documents("customers").values()} == {"Zug"}


def test_orders_above_a_limit_are_requests_to_a_web_hook(
    load_example: Callable[[str, str], Example], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_hook() as hook:
        monkeypatch.setenv("SHOP_HOOK", hook.url)
        monkeypatch.setenv("SHOP_SECRET", "a long word")
        example = load_example("alerts", "orders")
        example.run()
        assert hook.rows == [{"id": 2, "customer": "Bob", "amount": 4200.0}]
        example.run({"id": 4, "customer": "Eve", "amount": 1000.01})
        assert [one["id"] for one in hook.rows] == [2, 4]
