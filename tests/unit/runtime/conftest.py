"""A small lock and a repository in a folder, so that nothing is asked of the network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.runtime.ivy import Coordinate
from headrace.runtime.jars import Jar, JarCache


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
