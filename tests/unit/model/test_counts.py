"""The row counts of a batch."""

from __future__ import annotations

import pytest

from headrace.model.counts import BatchCounts, sum_counts


def test_counts_are_one_balanced_record() -> None:
    counts = BatchCounts(input=8, accepted=5, quarantined=2, dropped=1)
    assert counts.to_json() == {"input": 8, "accepted": 5, "quarantined": 2, "dropped": 1}


@pytest.mark.parametrize("wrong", [{"accepted": 7}, {"accepted": 5, "quarantined": 2}, {"accepted": 9}])
def test_counts_that_do_not_add_up_are_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        BatchCounts(input=8, **wrong)


def test_counts_of_two_batches_are_summed_also_by_expectation() -> None:
    one = BatchCounts(input=8, accepted=5, quarantined=3, expectations={"has an id": 3})
    other = BatchCounts(input=2, accepted=2, expectations={"has an id": 1, "sane": 2})
    both = BatchCounts(input=10, accepted=7, quarantined=3, expectations={"has an id": 4, "sane": 2})
    assert sum_counts(one.to_json(), other.to_json()) == both.to_json()
    assert sum_counts({}, {"input": 1, "accepted": 1}) == BatchCounts(input=1, accepted=1).to_json()
