"""What Python no longer uses is freed, without looking all the time."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from headrace.runtime import unused
from headrace.runtime.unused import release_unused


class Cycle:
    """Refers to itself, as an object of py4j does."""

    def __init__(self) -> None:
        self.method = self


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(unused, "_next_s", 0.0)
    gc.disable()
    yield
    gc.enable()


def test_a_cycle_is_freed() -> None:
    found = weakref.ref(Cycle())
    assert found() is not None
    release_unused()
    assert found() is None


def test_it_looks_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    release_unused()
    found = weakref.ref(Cycle())
    release_unused()
    assert found() is not None
    monkeypatch.setattr(unused, "_next_s", time.monotonic())
    release_unused()
    assert found() is None
