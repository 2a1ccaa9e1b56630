"""Multisets of offsets as spans: a few numbers where a table has millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.model.texts import counted

Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of offsets, each from ``starts[i]`` up to ``ends[i]``, exclusive; none is empty."""

    starts: Offsets
    ends: Offsets

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Spans:
        """Build from ``(from, until)`` pairs; empty ones are dropped."""
        kept = np.array([pair for pair in pairs if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)
        return cls(kept[:, 0], kept[:, 1])

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> Spans:
        """Build from single offsets in any order; one that occurs twice lies in two spans."""
        if offsets.size == 0:
            return cls.of(())
        if np.any(np.diff(offsets) < 0):
            offsets = np.sort(offsets)
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        firsts = np.concatenate(([0], breaks + 1))
        lasts = np.concatenate((breaks, [offsets.size - 1]))
        return cls(offsets[firsts], offsets[lasts] + 1)

    @classmethod
    def joined(cls, several: Sequence[Spans]) -> Spans:
        if not several:
            return cls.of(())
        return cls(
            np.concatenate([one.starts for one in several]), np.concatenate([one.ends for one in several])
        )

    @property
    def total(self) -> int:
        """How many offsets, counted as often as they occur."""
        return int((self.ends - self.starts).sum())

    def __bool__(self) -> bool:
        return self.starts.size > 0

    def pairs(self) -> list[tuple[int, int]]:
        order = np.argsort(self.starts, kind="stable")
        return list(zip(self.starts[order].tolist(), self.ends[order].tolist(), strict=True))

    def within(self, low: int | None, high: int | None) -> Spans:
        """The part from ``low`` up to ``high``, exclusive."""
        starts = self.starts if low is None else np.maximum(self.starts, low)
        ends = self.ends if high is None else np.minimum(self.ends, high)
        kept = starts < ends
        return Spans(starts[kept], ends[kept])

    def merged(self, reach: int = 0) -> Spans:
        """Each offset once; spans that touch become one, as do those at most ``reach`` apart."""
        if not self:
            return self
        order = np.argsort(self.starts, kind="stable")
        starts, ends = self.starts[order], np.maximum.accumulate(self.ends[order])
        breaks = np.flatnonzero(starts[1:] > ends[:-1] + reach)
        firsts = np.concatenate(([0], breaks + 1))
        lasts = np.concatenate((breaks, [starts.size - 1]))
        return Spans(starts[firsts], ends[lasts])

    def less(self, other: Spans) -> Spans:
        """The offsets that are not in the other one, each once."""
        layers = Layers.of(self, other)
        return layers.where((layers.counts[0] > 0) & (layers.counts[1] == 0))


@dataclass(frozen=True, eq=False)
class Layers:
    """Several multisets laid over each other and cut where any of them changes."""

    pieces: Spans  # the cuts, ascending and without overlap
    counts: tuple[Offsets, ...]  # for each layer, how often it holds the offsets of each piece

    @classmethod
    def of(cls, *layers: Spans) -> Layers:
        edges = np.unique(np.concatenate([array for one in layers for array in (one.starts, one.ends)]))
        pieces = Spans(edges[:-1], edges[1:])
        return cls(pieces, tuple(_depth(one, pieces.starts) for one in layers))

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        """The chosen pieces, those that touch joined."""
        return Spans(self.pieces.starts[chosen], self.pieces.ends[chosen]).merged()

    def repeated(self, counts: Offsets) -> Spans:
        """The pieces, each as often as its own of ``counts``."""
        most = int(counts.max(initial=0))
        return Spans.joined([self.where(counts >= times) for times in range(1, most + 1)])

    def times(self, counts: Offsets) -> int:
        """How many offsets there are when each piece holds its own ``counts`` times."""
        return int(((self.pieces.ends - self.pieces.starts) * counts).sum())


def _depth(spans: Spans, at: Offsets) -> Offsets:
    begun = np.searchsorted(np.sort(spans.starts), at, side="right")
    return (begun - np.searchsorted(np.sort(spans.ends), at, side="right")).astype(np.int64)


def spans_text(spans: Iterable[tuple[int, int]], shown: int = 20) -> str:
    """``offset 7``, ``offsets 7 to 9``, ``offsets 7, 10 to 12 and 3 more ranges``; ends are exclusive."""
    found = [(int(low), int(high)) for low, high in spans]
    words = [f"{low}" if high == low + 1 else f"{low} to {high - 1}" for low, high in found[:shown]]
    noun = "offset" if len(found) == 1 and found[0][1] == found[0][0] + 1 else "offsets"
    more = len(found) - shown
    if more > 0:
        return f"{noun} {', '.join(words)} and {counted(more, 'more range')}"
    return f"{noun} {', '.join(words)}"
