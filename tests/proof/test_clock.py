"""A clock that jumps back between two runs: nothing lost, nothing twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.project.pipeline import Pipeline
from landing import Site
from proof.shop import BRONZE, SILVER, Shop

pytestmark = pytest.mark.usefixtures("spark")

JUMP_S = 8 * 24 * 3600.0
"""More than a week: Spark's default `maxFileAge`."""


@contextmanager
def clock_ahead(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the block run ahead of time: what it writes below `root` has timestamps in the future.

    The JVM has its own clock, so the times of its files are moved afterwards.
    """
    now = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + JUMP_S)
        yield
    for path in root.rglob("*"):
        os.utime(path, ns=(int((now() + JUMP_S) * 1e9),) * 2)


def test_records_are_read_exactly_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    with clock_ahead(shop.root, monkeypatch):
        shop.run_well()
    for _ in range(2):
        shop.produce(30)
        shop.run_well()
        shop.check(silver=True)
    with Pipeline.load(shop.root) as pipeline:
        assert [dataset.rows for dataset in pipeline.status().datasets] == [90, 90, 7]


def test_files_are_read_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path / "site")
    site.put("1.json", {"id": 1, "page": "p"})
    with clock_ahead(site.root, monkeypatch):
        site.run_well()
    for number in (2, 3):
        site.put(f"{number}.json", {"id": number, "page": "p"})
        site.run_well()
    assert site.ids() == [1, 2, 3]
    assert site.verify().proven
