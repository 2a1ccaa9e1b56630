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
    IndexMemory,
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


class _Index:
    def __init__(self) -> None:
        self.is_in_use = False

    def give_up(self) -> bool:
        return not self.is_in_use


def test_all_indexes_together_have_no_more_memory_than_one_may_have() -> None:
    now = [0.0]
    memory = IndexMemory(lambda: now[0])
    first, second, third = _Index(), _Index(), _Index()
    assert memory.reserve(first, 60, 100) is None
    assert memory.reserve(second, 40, 100) is None
    # Both tables had batches a moment ago.
    assert memory.reserve(third, 10, 100) is not None
    assert memory.reserve(second, 41, 100) is not None, "an index cannot grow over the limit"
    assert memory.reserve(second, 40, 100) is None
    now[0] = 200
    assert memory.reserve(second, 40, 100) is None
    now[0] = 400
    assert memory.reserve(third, 70, 100) is not None, "the first one alone is too small to make room"
    assert memory.reserve(third, 50, 100) is None, "the first one was not used for five minutes"
    assert memory.reserve(first, 60, 100) is not None
    # An index that a batch uses is not given up, and one without a table counts no more.
    now[0] = 1000
    second.is_in_use = third.is_in_use = True
    assert memory.reserve(first, 60, 100) is not None
    del third
    assert memory.reserve(first, 60, 100) is None
