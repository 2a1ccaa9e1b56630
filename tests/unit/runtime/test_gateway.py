"""What Python no longer uses is freed, without looking all the time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest

from headrace.runtime import gateway
from headrace.runtime.gateway import release_unused


class Cycle:
    """Refers to itself, as an object of py4j does."""

    def __init__(self) -> None:
        self.method = self


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gateway, "_next_gc_s", 0.0)
    gc.disable()
    yield
    gc.enable()


def test_a_cycle_is_freed() -> None:
    found = weakref.ref(Cycle())
    assert found() is not None
    release_unused()
    assert found() is None


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 10.0), (0.0625, 10.0), (3.0, 300.0)])
def test_it_looks_every_ten_seconds_and_a_hundredth_of_the_time_at_most(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, pause_s: float
) -> None:
    now_s, looks = 0.0, []

    def collect() -> None:
        nonlocal now_s
        looks.append(now_s)
        now_s += takes_s

    monkeypatch.setattr(gateway, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(gateway, "gc", SimpleNamespace(collect=collect))
    while now_s < 1000:
        release_unused()
        now_s += 1
    pauses = {second - first - takes_s for first, second in pairwise(looks)}
    assert pauses and all(pause_s <= pause <= pause_s + 1 for pause in pauses)
