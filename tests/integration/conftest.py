"""Pipelines for tests on real Spark and broker."""

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.testing.plugin import _headrace_ends, run_pipeline
from landing import Site
from proof.fixtures import lake_kind, make_lake, make_shop, shop

__all__ = ["_headrace_ends", "lake_kind", "make_lake", "make_shop", "run_pipeline", "shop"]


@pytest.fixture
def site(tmp_path: Path, spark: object, bootstrap: str) -> Site:
    """A pipeline that can read files and topics."""
    site = Site(tmp_path / "site")
    site.write_spec(kafka={"bootstrap.servers": bootstrap})
    return site


@pytest.fixture
def produce(bootstrap: str) -> Callable[..., None]:
    """Writes records to the first partition of a topic."""
    producer = Producer({"bootstrap.servers": bootstrap})

    def produce(topic: str, *values: bytes | None) -> None:
        for value in values:
            producer.produce(topic, value, key=b"k", partition=0)
        assert producer.flush(30) == 0

    return produce
