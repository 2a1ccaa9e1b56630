"""The row counts of a batch."""

from __future__ import annotations

import pytest

from headrace.model.counts import BatchCounts


def test_counts_are_one_balanced_record() -> None:
    counts = BatchCounts(input=8, accepted=5, quarantined=2, dropped=1)
    assert counts.to_json() == {"input": 8, "accepted": 5, "quarantined": 2, "dropped": 1}


@pytest.mark.parametrize("wrong", [{"accepted": 7}, {"accepted": 5, "quarantined": 2}, {"accepted": 9}])
def test_counts_that_do_not_add_up_are_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        BatchCounts(input=8, **wrong)
