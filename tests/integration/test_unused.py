"""A run that goes on for days keeps nothing of its batches and refreshes in the JVM."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from py4j.java_gateway import JavaObject

from headrace.model.events import BatchCommitted, ViewRefreshed
from headrace.project.pipeline import Pipeline
from headrace.runtime import gateway
from proof.shop import BRONZE, SILVER, Shop

FEW = 80
"""Objects of the JVM that are still in use after a run: about 40."""


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Counts the objects of the JVM that Python holds since the test began.

    Objects are freed only by the product, which looks whenever it is asked.
    """
    monkeypatch.setattr(gateway, "_GC_PAUSE_S", 0.0)
    monkeypatch.setattr(gateway, "_GC_SHARE", 1e9)
    monkeypatch.setattr(gateway, "_next_gc_s", 0.0)
    gc.collect()
    before = _count()
    gc.disable()
    yield lambda: _count() - before
    gc.enable()


def _count() -> int:
    return sum(isinstance(one, JavaObject) for one in gc.get_objects())


def test_batches_release_what_they_used(shop: Shop, held: Callable[[], int]) -> None:
    shop.write(limit=30)
    shop.produce(300)
    shop.run_well()
    assert len(shop.happened(BatchCommitted)) >= 10
    assert held() < FEW


def test_refreshes_release_what_they_used(shop: Shop, held: Callable[[], int]) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(10)
    shop.run_well("bronze", "silver")
    shop.run_well("gold")
    assert shop.happened(ViewRefreshed)
    assert held() < FEW


def test_table_care_releases_what_it_used(make_shop: Callable[..., Shop], held: Callable[[], int]) -> None:
    shop = make_shop(maintenance={"auto": False, "small_files": 2})
    shop.write(limit=30)
    shop.produce(300)
    shop.run_well()
    with Pipeline.load(shop.root) as pipeline:
        (done,) = pipeline.maintain(["bronze"])
        assert "optimize" in done.steps, done
        assert held() < FEW
