"""Only jars that the lock names are ever used."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.runtime.jars import Jar, JarCache, load_lock, locked_jars


def test_the_lock_holds_both_sets_with_sizes_and_sums() -> None:
    lock = load_lock()
    assert len(lock["spark"]) == 11
    assert len(lock["broker"]) == 45
    for jar in (*lock["spark"], *lock["broker"]):
        assert jar.size > 1000
        assert len(bytes.fromhex(jar.sha256)) == 32


def test_the_lock_names_each_file_once() -> None:
    names = [jar.file_name for jar in locked_jars("spark", "broker")]
    assert len(names) == len(set(names))


def test_the_lock_has_one_version_of_each_artifact_in_a_set() -> None:
    for jars in load_lock().values():
        artifacts = [(jar.coordinate.group, jar.coordinate.artifact) for jar in jars]
        assert len(artifacts) == len(set(artifacts))


def test_the_lock_holds_no_address() -> None:
    import headrace.runtime.jars as module

    assert "://" not in (Path(module.__file__).parent / "jars.lock.json").read_text()


def test_a_whole_cache_misses_nothing(whole_cache: JarCache, jars: tuple[Jar, ...]) -> None:
    assert whole_cache.missing(jars) == ()
    assert whole_cache.wrong(jars) == ()


def test_an_empty_cache_misses_all(cache: JarCache, jars: tuple[Jar, ...]) -> None:
    assert cache.missing(jars) == jars


def test_a_file_with_another_sum_is_not_installed(
    cache: JarCache, jars: tuple[Jar, ...], tmp_path: Path
) -> None:
    arrived = tmp_path / "arrived"
    arrived.write_text("eno")
    assert cache.install(jars[0], arrived) != jars[0].sha256
    assert not cache.path(jars[0]).exists()
    assert list(cache.folder.glob(".incoming-*")) == []


def test_a_jar_that_was_changed_is_missing_and_removed(whole_cache: JarCache, jars: tuple[Jar, ...]) -> None:
    whole_cache.path(jars[0]).write_text("eno")
    assert whole_cache.missing(jars) == (jars[0],)
    assert whole_cache.recheck(jars) == (jars[0],)
    assert not whole_cache.path(jars[0]).exists()
    assert whole_cache.missing(jars) == (jars[0],)


def test_a_jar_that_was_only_touched_is_kept(whole_cache: JarCache, jars: tuple[Jar, ...]) -> None:
    os.utime(whole_cache.path(jars[0]), (1, 1))
    assert whole_cache.missing(jars) == (jars[0],)
    assert whole_cache.recheck(whole_cache.missing(jars)) == ()
    assert whole_cache.missing(jars) == ()


def test_a_change_that_keeps_size_and_time_is_found_by_the_full_check(
    whole_cache: JarCache, jars: tuple[Jar, ...]
) -> None:
    path = whole_cache.path(jars[0])
    before = path.stat().st_mtime_ns
    path.write_text("eno")
    os.utime(path, ns=(before, before))
    assert whole_cache.missing(jars) == ()
    assert whole_cache.wrong(jars) == (jars[0],)


def test_a_broken_list_of_checked_jars_costs_a_check_only(
    whole_cache: JarCache, jars: tuple[Jar, ...]
) -> None:
    (whole_cache.folder / "checked.json").write_text("{")
    assert whole_cache.recheck(whole_cache.missing(jars)) == ()
    assert whole_cache.missing(jars) == ()
