"""Fetching asks only for what is missing, and says what went wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from headrace.errors import JarCorruptError, JarDownloadError
from headrace.runtime import fetch, jars
from headrace.runtime.fetch import FetchProgress, ensure_jars
from headrace.runtime.jars import Coordinate, Jar, JarCache, Java

Asked = list[str]


@pytest.fixture(autouse=True)
def _small_lock(monkeypatch: pytest.MonkeyPatch, jars: tuple[Jar, ...]) -> None:
    monkeypatch.setattr(fetch, "locked_jars", lambda *_: jars)
    monkeypatch.setattr(fetch, "find_java", lambda: Java(Path("/nowhere"), "25", "wheel"))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Asked]:
    """Stands for Ivy: brings artifacts with the given contents, and fails for others."""

    def use(contents: dict[str, str]) -> Asked:
        asked: Asked = []

        def start(java: Java, coordinates: Iterable[Coordinate], folder: Path) -> subprocess.Popen[bytes]:
            log = []
            for coordinate in coordinates:
                asked.append(coordinate.artifact)
                place = folder / "cache" / coordinate.group / coordinate.artifact / "jars"
                place.mkdir(parents=True)
                address = f"https://repository.test/{coordinate.artifact}/{coordinate.jar_name}"
                if coordinate.artifact in contents:
                    (place / coordinate.jar_name).write_text(contents[coordinate.artifact])
                else:
                    log.append(f"Server access error at url {address} (java.net.UnknownHostException)")
            (folder / "ivy.log").write_text("\n".join(log))
            return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({bool(log):d})"])

        monkeypatch.setattr(fetch, "start_ivy", start)
        return asked

    return use


def quiet(progress: FetchProgress) -> None:
    """No progress on the terminal of a test."""


def test_a_whole_cache_starts_nothing(
    whole_cache: JarCache, repository: Callable[[dict[str, str]], Asked], jars: tuple[Jar, ...]
) -> None:
    asked = repository({})
    assert ensure_jars("spark", cache=whole_cache, watcher=quiet) == tuple(whole_cache.path(j) for j in jars)
    assert asked == []


def test_a_corrupted_jar_is_refused_and_fetched_again(
    whole_cache: JarCache, repository: Callable[[dict[str, str]], Asked], jars: tuple[Jar, ...]
) -> None:
    whole_cache.path(jars[1]).write_text("owt")
    asked = repository({"one": "one", "two": "two"})
    paths = ensure_jars("spark", cache=whole_cache, watcher=quiet)
    assert asked == ["two"]
    assert [path.read_text() for path in paths] == ["one", "two"]


def test_progress_ends_with_all_bytes(cache: JarCache, repository: Callable[[dict[str, str]], Asked]) -> None:
    repository({"one": "one", "two": "two"})
    seen: list[FetchProgress] = []
    ensure_jars("spark", cache=cache, watcher=seen.append)
    assert seen[-1] == FetchProgress(2, 2, 6, 6)


def test_a_failed_download_names_artifact_address_and_remedy_and_keeps_what_came(
    cache: JarCache, repository: Callable[[dict[str, str]], Asked], jars: tuple[Jar, ...]
) -> None:
    asked = repository({"one": "one"})
    with pytest.raises(JarDownloadError) as caught:
        ensure_jars("spark", cache=cache, watcher=quiet)
    assert caught.value.params["artifact"] == "org.example:two:1.0"
    assert caught.value.params["address"] == "https://repository.test/two/two-1.0.jar"
    assert any("HEADRACE_IVY_SETTINGS" in remedy for remedy in caught.value.remedies)
    assert cache.missing(jars) == (jars[1],)
    # The second attempt asks for the missing one alone, and so does the next command.
    assert sorted(asked) == ["one", "two", "two"]
    again = repository({"two": "two"})
    ensure_jars("spark", cache=cache, watcher=quiet)
    assert again == ["two"]


def test_a_jar_that_arrives_with_another_sum_is_never_used(
    cache: JarCache, repository: Callable[[dict[str, str]], Asked], jars: tuple[Jar, ...]
) -> None:
    repository({"one": "one", "two": "owt"})
    with pytest.raises(JarCorruptError) as caught:
        ensure_jars("spark", cache=cache, watcher=quiet)
    assert caught.value.params["artifact"] == "org.example:two:1.0"
    assert caught.value.params["expected"] == jars[1].sha256
    assert not cache.path(jars[1]).exists()
    assert list(cache.folder.glob(".fetch-*")) == []


def test_the_lock_of_the_package_is_used_by_default() -> None:
    assert len(jars.locked_jars("spark", "broker")) == 56
