"""Ranges of offsets that openings declare as lost or as read again; without numpy, which loads slowly."""

from __future__ import annotations

from collections.abc import Iterable

Pairs = list[tuple[int, int]]
"""Ranges of offsets, ``(from, until)`` each."""


def merged(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Each offset once, in order."""
    found: Pairs = []
    for low, high in sorted(pair for pair in pairs if pair[0] < pair[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def less(pairs: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> Pairs:
    """The offsets that are in none of the others, each once."""
    left: Pairs = []
    taken = merged(others)
    for start, end in merged(pairs):
        low = start
        for first, last in taken:
            if low < min(first, end):
                left.append((low, min(first, end)))
            low = max(low, last)
        if low < end:
            left.append((low, end))
    return left


def total(pairs: Iterable[tuple[int, int]]) -> int:
    """How many offsets, counted as often as they occur."""
    return sum(high - low for low, high in pairs)
