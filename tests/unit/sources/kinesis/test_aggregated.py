"""Aggregates of the Kinesis Producer Library, as the source and the proof take them apart."""

from __future__ import annotations

from hypothesis import given, strategies as st

from headrace.sources.kinesis.aggregated import UserRecord, take_apart
from headrace.verify.kinesis import count_records
from kinesis_server import aggregate

RECORDS = st.lists(
    st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=300)), min_size=1, max_size=30
)


@given(records=RECORDS)
def test_an_aggregate_gives_its_records_in_order(records: list[tuple[str, bytes]]) -> None:
    packed = aggregate(records)
    assert take_apart(packed, "outer") == [UserRecord(key, data) for key, data in records]
    assert count_records(packed) == len(records)


def test_an_aggregate_without_records_is_data_of_the_user() -> None:
    packed = aggregate([])
    assert take_apart(packed, "key") == [UserRecord("key", packed)]
    assert count_records(packed) == 1


@given(data=st.binary(max_size=200))
def test_other_data_is_one_record(data: bytes) -> None:
    assert take_apart(data, "key") == [UserRecord("key", data)]
    assert count_records(data) == 1


@given(records=RECORDS, at=st.integers(min_value=0), flip=st.integers(min_value=1, max_value=255))
def test_damaged_aggregates_are_one_record_for_both(
    records: list[tuple[str, bytes]], at: int, flip: int
) -> None:
    packed = bytearray(aggregate(records))
    packed[at % len(packed)] ^= flip
    assert len(take_apart(bytes(packed), "key")) == count_records(bytes(packed)) == 1


@given(message=st.binary(max_size=60))
def test_a_right_sum_over_another_message_is_one_record_or_the_same_count_for_both(message: bytes) -> None:
    from hashlib import md5

    packed = b"\xf3\x89\x9a\xc2" + message + md5(message).digest()
    assert len(take_apart(packed, "key")) == count_records(packed)
