"""Sets of offsets as spans."""

from __future__ import annotations

import random

import numpy as np

from headrace.verify.source_range import Layers, Spans


def spans(*pairs: tuple[int, int]) -> Spans:
    return Spans.of(pairs)


def test_offsets_become_spans_and_doubles_stay_double() -> None:
    found = Spans.of_offsets(np.array([7, 5, 6, 6, 9], dtype=np.int64))
    assert found.pairs() == [(5, 7), (6, 8), (9, 10)]
    assert found.total == 5


def test_spans_that_touch_or_overlap_are_merged() -> None:
    assert spans((5, 9), (0, 3), (3, 4), (6, 7)).merged().pairs() == [(0, 4), (5, 9)]
    assert spans((0, 3), (5, 9), (30, 31)).merged(reach=2).pairs() == [(0, 9), (30, 31)]


def test_spans_are_cut() -> None:
    assert spans((0, 10), (20, 30)).within(5, 25).pairs() == [(5, 10), (20, 25)]
    assert not spans((0, 10)).within(10, None)


def test_nothing_is_laid_over_nothing() -> None:
    layers = Layers.of(Spans.of(()), Spans.of(()))
    assert layers.pieces.total == 0
    assert layers.times(layers.counts[0]) == 0


def test_layers_count_as_single_offsets_would() -> None:
    generator = random.Random(7)
    for _ in range(200):
        several = [
            [(low, low + generator.randrange(1, 8)) for low in generator.choices(range(40), k=size)]
            for size in (generator.randrange(0, 6), generator.randrange(0, 6))
        ]
        layers = Layers.of(*(Spans.of(pairs) for pairs in several))
        for number, pairs in enumerate(several):
            expected = {o: sum(low <= o < high for low, high in pairs) for o in range(50)}
            counts = dict.fromkeys(range(50), 0)
            for (low, high), count in zip(layers.pieces.pairs(), layers.counts[number], strict=True):
                counts.update(dict.fromkeys(range(low, high), int(count)))
            assert counts == expected
