"""The JVM's own cache of loaded classes, linked code and profiles, which halves the time of a start.

Java 25 can make one from a recorded run. Recording makes a run half as fast and holds up its end,
so no run of the user's is recorded: after the first one, a process in the background with the
lowest priority does a small one of its own (`aot_training`).
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

from headrace.runtime.java import Java
from headrace.runtime.jvm import class_path, collector_options
from headrace.runtime.places import cache_folder
from headrace.runtime.processes import start_detached

VARIABLE = "HEADRACE_AOT"
"""``off``: neither used nor made; ``use``: used where there is one, never made."""

FIRST_JAVA = 25

MAKING = "making-"
"""What the folder of a cache that is being made is called."""

_KEPT = 2
_KILLED_AFTER_S = 3600.0
_ATTEMPTS = 2
_DISK_NEEDED = 2 << 30
_MEMORY_NEEDED = 3 << 30


def find_cache(java: Java, jars: Sequence[Path]) -> Path | None:
    """The cache for exactly this Java and these jars, where there is one."""
    if java.major < FIRST_JAVA or os.environ.get(VARIABLE) == "off":
        return None
    path = cache_path(java, jars)
    return path if path.is_file() else None


def use_options(cache: Path | None) -> tuple[str, ...]:
    """JVM options that use a cache, and go on without it where it does not fit."""
    if cache is None:
        return ()
    return (f"-XX:AOTCache={cache}", "-XX:AOTMode=auto", "-Xlog:aot=off", "-Xlog:cds=off")


def cache_path(java: Java, jars: Sequence[Path]) -> Path:
    """Where the cache of this Java and these jars is or would be.

    The name holds everything that a cache depends on, so a change of any makes a new one.
    """
    parts = [str(java.home), java.version, *collector_options()]
    for jar in class_path(jars).split(os.pathsep):
        found = Path(jar).stat()
        parts.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    return cache_folder() / "aot" / f"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:20]}.aot"


def discard(cache: Path) -> None:
    """Remove a cache that Java could not start with."""
    cache.unlink(missing_ok=True)


def make_later(java: Java, jars: Sequence[Path]) -> None:
    """Start the making of a cache in the background, where there is none and there is room for it."""
    if java.major < FIRST_JAVA or os.environ.get(VARIABLE) in ("off", "use"):
        return
    # A convenience must not turn a finished run into a failed one.
    with contextlib.suppress(OSError):
        cache = cache_path(java, jars)
        if cache.is_file() or len(list(cache.parent.glob(f"{cache.stem}.attempt*"))) >= _ATTEMPTS:
            return
        cache.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(cache.parent).free < _DISK_NEEDED:
            return
        if psutil.virtual_memory().available < _MEMORY_NEEDED:
            return
        start_detached(training_command(cache), cache.with_suffix(".log"))


def training_command(cache: Path) -> list[str]:
    """The program that makes a cache."""
    return [sys.executable, "-m", "headrace.runtime.aot_training", str(cache)]


def prune(newest: Path) -> None:
    """Keep the caches that were made last, and nothing of makings that were killed long ago."""
    caches = sorted(newest.parent.glob("*.aot"), key=lambda path: path.stat().st_mtime)
    for old in caches[:-_KEPT]:
        if old != newest:
            for path in newest.parent.glob(f"{old.stem}.*"):
                path.unlink(missing_ok=True)
    for folder in newest.parent.glob(f"{MAKING}*"):
        if time.time() - folder.stat().st_mtime > _KILLED_AFTER_S:
            shutil.rmtree(folder, ignore_errors=True)
