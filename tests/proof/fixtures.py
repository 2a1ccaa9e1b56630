"""A fresh pipeline for each test of a property, on the session's broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bucket_path import bucket_path
from object_server import ObjectServer
from proof.lakes import BucketLake, DiskLake, Lake
from proof.ledger import ProducerLedger, create_topic
from proof.shop import Shop
from s3_proxy import S3Proxy

MakeLake = Callable[[str], Lake]

ON_BOTH = pytest.mark.parametrize("lake_kind", ["disk", "s3"])
"""For a test on a local disk and on S3."""

MORE_ON_S3 = pytest.mark.parametrize("lake_kind", ["disk", pytest.param("s3", marks=pytest.mark.thorough)])
"""For a test on a local disk, and on S3 in the long check."""


@pytest.fixture
def lake_kind() -> str:
    """Where the storages of the pipelines are. `ON_BOTH` and `MORE_ON_S3` replace it."""
    return "disk"


@pytest.fixture
def make_lake(lake_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeLake]:
    if lake_kind == "disk":
        yield lambda name: DiskLake(tmp_path / name / "lake")
        return
    server: ObjectServer = request.getfixturevalue("object_server")
    with S3Proxy(server.url) as proxy, pytest.MonkeyPatch.context() as patch:
        server.reach(patch, proxy.url)
        bucket = server.make_bucket()
        yield lambda name: BucketLake(bucket_path(server, bucket, name), proxy)


@pytest.fixture
def make_shop(bootstrap: str, tmp_path: Path, make_lake: MakeLake) -> Callable[..., Shop]:
    """Makes pipelines: ``make_shop(partitions=3, on_data_loss="record")``."""

    def make(partitions: int = 3, **spec: Any) -> Shop:
        # The session's catalog is shared, so each pipeline has a schema of its own.
        name = f"shop_{uuid.uuid4().hex[:8]}"
        create_topic(bootstrap, name, partitions)
        shop = Shop(
            root=tmp_path / name,
            lake=make_lake(name),
            database=name,
            topic=name,
            partitions=partitions,
            ledger=ProducerLedger(bootstrap),
            spec=spec,
        )
        shop.write()
        return shop

    return make


@pytest.fixture
def shop(make_shop: Callable[..., Shop]) -> Shop:
    return make_shop()
