"""The cache for quick starts is used where it fits, and never in the way."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.runtime import aot
from headrace.runtime.jars import Java

pytestmark = pytest.mark.usefixtures("cores")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_AOT", raising=False)
    return Java(tmp_path / "jdk", "25.0.2", "wheel")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that would have been started in the background."""
    commands: list[list[str]] = []

    def start(command: Sequence[str], log: Path, folder: Path) -> None:
        # The project's folder can be removed meanwhile.
        assert folder == log.parent == tmp_path / "cache/aot"
        commands.append(list(command))

    monkeypatch.setattr(aot, "start_detached", start)
    return commands


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "one.jar"
    path.write_text("one")
    return path


def make(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"cache")
    return path


def test_a_cache_is_found_until_something_that_it_depends_on_changes(java: Java, jar: Path) -> None:
    cache = make(aot.cache_path(java, [jar]))
    assert aot.find_cache(java, [jar]) == cache
    assert aot.find_cache(Java(java.home, "25.0.3", "wheel"), [jar]) is None
    jar.write_text("two")
    assert aot.find_cache(java, [jar]) is None


def test_an_older_java_has_none(java: Java, jar: Path, started: list[list[str]]) -> None:
    old = Java(java.home, "21.0.4", "JAVA_HOME")
    make(aot.cache_path(old, [jar]))
    assert aot.find_cache(old, [jar]) is None
    aot.make_later(old, [jar])
    assert started == []


def test_it_is_made_once(java: Java, jar: Path, started: list[list[str]]) -> None:
    aot.make_later(java, [jar])
    assert len(started) == 1
    assert started[0][-1] == str(aot.cache_path(java, [jar]))
    make(aot.cache_path(java, [jar]))
    aot.make_later(java, [jar])
    assert len(started) == 1


def test_a_making_that_fails_is_not_tried_for_ever(java: Java, jar: Path, started: list[list[str]]) -> None:
    cache = aot.cache_path(java, [jar])
    make(cache.with_suffix(".attempt1"))
    make(cache.with_suffix(".attempt2"))
    aot.make_later(java, [jar])
    assert started == []


@pytest.mark.parametrize("value", ["off", "use"])
def test_it_can_be_turned_off(
    value: str, java: Java, jar: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_AOT", value)
    aot.make_later(java, [jar])
    assert started == []
    cache = make(aot.cache_path(java, [jar]))
    assert aot.find_cache(java, [jar]) == (cache if value == "use" else None)


def test_a_disk_that_is_full_ends_no_run(
    java: Java, jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "cache"))
    aot.make_later(java, [jar])


def test_old_caches_and_what_killed_makings_left_are_removed(java: Java, jar: Path) -> None:
    newest = aot.cache_path(java, [jar])
    for age, name in enumerate([newest.stem, "newer", "older"]):
        os.utime(make(newest.with_name(f"{name}.aot")), (1000 - age, 1000 - age))
        make(newest.with_name(f"{name}.log"))
    killed, under_way = newest.with_name("making-1"), newest.with_name("making-2")
    for folder in (killed, under_way):
        folder.mkdir()
    os.utime(killed, (1, 1))
    assert time.time() - under_way.stat().st_mtime < 60
    aot.prune(newest)
    assert sorted(path.name for path in newest.parent.iterdir()) == sorted(
        [newest.name, f"{newest.stem}.log", "newer.aot", "newer.log", "making-2"]
    )
