"""Sizes and counts for a person."""

from __future__ import annotations


def size_text(size: int) -> str:
    """A size in the largest unit below it: 812 bytes, 3.2 MB, 1.4 GB."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:,.1f} {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 1,200 rows, 2 batches."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
