"""The index of keys, against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.sinks.delta import key_index
from headrace.sinks.delta.key_index import (
    NO_ROW,
    UNKNOWN,
    Entries,
    KeyIndex,
    file_numbers,
    positions,
    row_numbers,
)

# Few hashes, so that different keys have equal first hashes.
KEY = st.tuples(st.integers(0, 3), st.integers(0, 40))
BATCH = st.dictionaries(KEY, st.tuples(st.integers(1, 4), st.integers(0, 99), st.integers(0, 9)), max_size=30)


def entries(batch: dict[tuple[int, int], tuple[int, int, int]]) -> Entries:
    first, second = (np.array([key[n] for key in batch], dtype=np.uint64) for n in (0, 1))
    file, row, sequence = (np.array([one[n] for one in batch.values()], dtype=np.int64) for n in (0, 1, 2))
    return Entries(first, second, positions(file, row), sequence)


@settings(max_examples=40)
@given(st.lists(BATCH, min_size=1, max_size=5), st.integers(1, 4))
def test_it_knows_what_a_dict_knows(batches: list[dict], gone: int) -> None:  # type: ignore[type-arg]
    index, oracle = KeyIndex(), {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_index, "_FEW", 8)
        for batch in batches:
            index.put(entries(batch))
            oracle |= batch
    assert len(index) == len(oracle)
    index.forget_files(np.array([gone]))
    asked = np.array([(first, second) for first in range(4) for second in range(41)], dtype=np.uint64)
    known, position, sequence = index.find(asked[:, 0].copy(), asked[:, 1].copy())
    for at, (first, second) in enumerate(asked.tolist()):
        expected = oracle.get((first, second))
        assert known[at] == (expected is not None)
        if expected is None or expected[0] == gone:
            assert (position[at], sequence[at]) == (NO_ROW, UNKNOWN)
        else:
            found = (
                file_numbers(position[at : at + 1])[0],
                row_numbers(position[at : at + 1])[0],
                sequence[at],
            )
            assert found == expected
    index.forget_deleted()
    assert len(index) == sum(one[0] != gone for one in oracle.values())
