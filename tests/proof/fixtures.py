"""A fresh pipeline for each test of a property, on the session's broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proof.ledger import ProducerLedger, create_topic
from proof.shop import Shop


@pytest.fixture
def make_shop(bootstrap: str, tmp_path: Path) -> Callable[..., Shop]:
    """Makes pipelines: ``make_shop(partitions=3, on_data_loss="record")``."""

    def make(partitions: int = 3, **spec: Any) -> Shop:
        # The session's catalog is shared, so each pipeline has a schema of its own.
        name = f"shop_{uuid.uuid4().hex[:8]}"
        create_topic(bootstrap, name, partitions)
        shop = Shop(
            root=tmp_path / name,
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
