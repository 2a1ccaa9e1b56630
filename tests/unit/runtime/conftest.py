"""Jars in a local folder, so that no test uses the network, and machines with a claimed number of cores."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from headrace.runtime.jars import Coordinate, Jar, JarCache


@pytest.fixture(params=[2, 4, 8], ids="{} cores".format)
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes the machine claim a number of cores; the tests that use it run once for each number."""
    claimed: int = request.param
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(claimed)), raising=False)
    return claimed


@pytest.fixture
def jars() -> tuple[Jar, ...]:
    """Two jars of a lock, whose bytes are their own names."""
    made = []
    for name in ("one", "two"):
        data = name.encode()
        made.append(Jar(Coordinate("org.example", name, "1.0"), len(data), hashlib.sha256(data).hexdigest()))
    return tuple(made)


@pytest.fixture
def cache(tmp_path: Path) -> JarCache:
    return JarCache(tmp_path / "cache")


@pytest.fixture
def whole_cache(cache: JarCache, jars: tuple[Jar, ...], tmp_path: Path) -> JarCache:
    for jar in jars:
        arrived = tmp_path / jar.coordinate.artifact
        arrived.write_text(jar.coordinate.artifact)
        assert cache.install(jar, arrived) == jar.sha256
    return cache
