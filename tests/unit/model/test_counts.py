"""The row counts of a batch."""

from __future__ import annotations

import pytest

from headrace.model.counts import BadRecordCount, BatchCounts, sum_counts
from headrace.model.declarations import ExpectationCount


def test_counts_are_one_balanced_record() -> None:
    counts = BatchCounts(input=8, accepted=5, quarantined=2, dropped=1)
    assert counts.to_json() == {"input": 8, "accepted": 5, "quarantined": 2, "dropped": 1}


@pytest.mark.parametrize("wrong", [{"accepted": 7}, {"accepted": 5, "quarantined": 2}, {"accepted": 9}])
def test_counts_that_do_not_add_up_are_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        BatchCounts(input=8, **wrong)


def failed(name: str, count: int, of: int, dataset: str = "orders") -> ExpectationCount:
    return ExpectationCount(name=name, dataset=dataset, action="warn", passed=of - count, failed=count)


def test_counts_of_two_batches_are_summed_also_by_expectation() -> None:
    one = BatchCounts(input=8, accepted=8, expectations=(failed("an id", 3, 8),))
    other = BatchCounts(input=2, accepted=2, expectations=(failed("an id", 1, 2), failed("sane", 2, 2)))
    both = BatchCounts(input=10, accepted=10, expectations=(failed("an id", 4, 10), failed("sane", 2, 2)))
    assert sum_counts(one.to_json(), other.to_json()) == both.to_json()
    assert sum_counts({}, {"input": 1, "accepted": 1}) == BatchCounts(input=1, accepted=1).to_json()


def test_expectations_of_two_datasets_may_share_a_name() -> None:
    counts = (failed("an id", 1, 4), failed("an id", 2, 4, "view"))
    summed = sum_counts({}, BatchCounts(input=4, accepted=4, expectations=counts).to_json())
    assert [one["failed"] for one in summed["expectations"]] == [1, 2]


def test_bad_records_are_part_of_the_input() -> None:
    bad = BadRecordCount(name="RECORD_UNPARSEABLE", action="quarantine", records=2)
    skipped = BadRecordCount(name="TOMBSTONE", action="drop", records=3)
    counts = BatchCounts(input=5, accepted=4, quarantined=1).with_bad_records([bad, skipped])
    assert (counts.input, counts.accepted, counts.quarantined, counts.dropped) == (10, 4, 3, 3)
    both = sum_counts(counts.to_json(), counts.to_json())
    assert [(one["name"], one["records"]) for one in both["bad_records"]] == [
        ("RECORD_UNPARSEABLE", 4),
        ("TOMBSTONE", 6),
    ]
