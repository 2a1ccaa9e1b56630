"""The JVM's start-up cache of loaded classes and compiled code (AOT cache); it halves the time of a start.

Java 25 makes one from a recorded run. A recorded run takes twice as long, so no run of the user is
recorded: after the first run, a background process with the lowest priority records a small run
(`aot_training`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from headrace.runtime.jars import Java
from headrace.runtime.jvm import class_path, collector_options
from headrace.runtime.places import cache_folder
from headrace.runtime.processes import start_detached

VARIABLE = "HEADRACE_AOT"
"""``off``: caches are neither used nor made; ``use``: an existing cache is used, none is made."""

FIRST_JAVA = 25

MAKING = "making-"  # prefix of the folder of a cache that is being made
_KEPT = 2
_KILLED_AFTER_S = 3600.0
_ATTEMPTS = 2
_DISK_NEEDED = 2 << 30
_MEMORY_NEEDED = 3 << 30


def find_cache(java: Java, jars: Sequence[Path]) -> Path | None:
    if java.major < FIRST_JAVA or os.environ.get(VARIABLE) == "off":
        return None
    path = cache_path(java, jars)
    return path if path.is_file() else None


def use_options(cache: Path | None) -> tuple[str, ...]:
    """Returns JVM options that use a cache, and ignore it if it does not match the JVM."""
    if cache is None:
        return ()
    return (f"-XX:AOTCache={cache}", "-XX:AOTMode=auto", "-Xlog:aot=off", "-Xlog:cds=off")


def cache_path(java: Java, jars: Sequence[Path]) -> Path:
    """The path of the cache; its name is a hash of everything that the cache depends on."""
    parts = [str(java.home), java.version, *collector_options()]
    for jar in class_path(jars).split(os.pathsep):
        found = Path(jar).stat()
        parts.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    return cache_folder() / "aot" / f"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:20]}.aot"


def discard(cache: Path) -> None:
    cache.unlink(missing_ok=True)


def make_later(java: Java, jars: Sequence[Path]) -> None:
    """Starts a background process that makes the cache, if there is none and resources allow it."""
    if java.major < FIRST_JAVA or os.environ.get(VARIABLE) in ("off", "use"):
        return
    # Without a cache, a start only takes longer; a finished run must not fail here.
    with contextlib.suppress(OSError):
        cache = cache_path(java, jars)
        if cache.is_file() or len(list(cache.parent.glob(f"{cache.stem}.attempt*"))) >= _ATTEMPTS:
            return
        cache.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(cache.parent).free < _DISK_NEEDED:
            return
        if psutil.virtual_memory().available < _MEMORY_NEEDED:
            return
        # Java does not start in a folder that is removed, such as the project of a test.
        start_detached(training_command(cache), cache.with_suffix(".log"), folder=cache.parent)


def training_command(cache: Path) -> list[str]:
    return [sys.executable, "-m", "headrace.runtime.aot_training", str(cache)]


def prune(newest: Path) -> None:
    """Removes all but the newest caches, and the folders of processes that were killed while making one."""
    caches = sorted(newest.parent.glob("*.aot"), key=lambda path: path.stat().st_mtime)
    for old in caches[:-_KEPT]:
        if old != newest:
            for path in newest.parent.glob(f"{old.stem}.*"):
                path.unlink(missing_ok=True)
    for folder in newest.parent.glob(f"{MAKING}*"):
        if time.time() - folder.stat().st_mtime > _KILLED_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)
