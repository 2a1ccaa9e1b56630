"""The names of datasets by OpenLineage's rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.lineage.naming import of_sink, of_table
from headrace.model.declarations import Sink
from headrace.model.lineage import DatasetId, of_path, of_topic
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from object_server import open_buckets


@pytest.fixture
def settings(tmp_path: Path) -> ProjectSettings:
    spec = {"name": "shop", "kafka": {"bootstrap.servers": "broker:9092,other:9092"}}
    (tmp_path / "headrace.yml").write_text(json.dumps(spec))
    return load_project(tmp_path / "headrace.yml")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/srv/lake/orders", ("file", "/srv/lake/orders")),
        ("file:///srv/lake/../orders/", ("file", "/srv/orders")),
        ("file:/srv/orders", ("file", "/srv/orders")),
        ("s3://lake/v1/orders/", ("s3://lake", "v1/orders")),
        ("s3a://lake/v1/orders", ("s3://lake", "v1/orders")),
        ("gs://lake", ("gs://lake", "/")),
    ],
)
def test_paths(path: str, wanted: tuple[str, str]) -> None:
    assert of_path(path) == wanted


def test_topics() -> None:
    assert of_topic("a:9092, b:9092", "orders") == ("kafka://a:9092", "orders")
    assert DatasetId("kafka://a:9092", "orders").uri == "kafka://a:9092/orders"


def test_tables(settings: ProjectSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_table(settings, "default.orders") == ("file", f"{tmp_path}/lake/tables/default/orders")
    open_buckets(monkeypatch)
    (tmp_path / "headrace.yml").write_text(json.dumps({"name": "shop", "storage": "s3://bucket/lake"}))
    assert of_table(load_project(tmp_path / "headrace.yml"), "default.orders") == (
        "s3://bucket",
        "lake/tables/default/orders",
    )


@pytest.mark.parametrize(
    ("format", "options", "wanted"),
    [
        ("kafka", {"topic": "paid"}, ("kafka://broker:9092", "paid")),
        ("kafka", {"kafka.bootstrap.servers": "b2:1"}, ("kafka://b2:1", "out")),
        (
            "postgres",
            {"url": "postgresql://ada:hunter2@db:6432/shop", "table": "sales.paid"},
            ("postgres://db:6432", "shop.sales.paid"),
        ),
        (
            "postgres",
            {"url": "postgresql://db/shop", "table": "paid"},
            ("postgres://db:5432", "shop.public.paid"),
        ),
        ("parquet", {"path": "/srv/out"}, ("file", "/srv/out")),
        ("delta", {"path": "s3://bucket/out"}, ("s3://bucket", "out")),
        ("redis", {"url": "redis://:hunter2@cache:6379/0", "prefix": "paid"}, ("redis://cache:6379", "paid")),
        ("function", {}, ("function", "shop.default.out")),
    ],
)
def test_sinks(
    settings: ProjectSettings, format: str, options: dict[str, str], wanted: tuple[str, str]
) -> None:
    sink = Sink(format=format, options=options)
    found = of_sink(sink, TableName("default", "out"), settings, {})
    assert found == wanted
    assert "hunter2" not in found.uri
