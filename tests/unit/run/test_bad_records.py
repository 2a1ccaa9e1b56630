"""When a batch is read again for its bad records, and when that is an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.errors import RowsNotRepeatableError
from headrace.model.ranges import SourceRange
from headrace.run.bad_records import BadRecordSearch, DriftCheck, ReadCounts
from headrace.sinks.target import BatchStamp
from headrace.sources.kafka.position import KafkaOffsets

RANGE = SourceRange(
    index=0,
    kind="kafka",
    identity={"topics": {"t": "id"}},
    start=KafkaOffsets({"t": {0: 0}}),
    until=KafkaOffsets({"t": {0: 10}}),
)
ALL_GOOD = ReadCounts(10, 10)
STAMP = BatchStamp(pipeline="p", flow="f", checkpoint="c", batch=0, ranges=(RANGE,))


def searched(
    counted: list[ReadCounts | None], *, reads_all: bool = True, again: ReadCounts = ALL_GOOD
) -> bool:
    """Whether a batch of ten offsets is read again.

    Args:
        counted: What its reads have counted.
        reads_all: Whether the query reads every record.
        again: What the second pass counts.
    """
    planned = SimpleNamespace(reads_all=reads_all, sources=(), flow=SimpleNamespace(location=None))
    calls: list[object] = []
    frame = SimpleNamespace(unpersist=lambda: calls.append("released"))
    kept = SimpleNamespace(totals=again, counts={"X": again.bad}, frame=frame, rejected=lambda _: None)

    class Search(BadRecordSearch):
        def find_again(self, session: Any, stamp: Any) -> Any:
            calls.append("read")
            return [kept]

    nothing = cast(Any, None)
    drift = DriftCheck(planned=cast(Any, planned), find=nothing, trial=nothing, reports=nothing)
    search = Search(
        planned=cast(Any, planned), count=lambda: counted, find=nothing, read=nothing, drift=drift
    )
    try:
        with search.search(cast(Any, None), STAMP, cast(Any, None)) as found:
            if not calls:
                assert (found.quarantined, found.rows) == (0, None)
    finally:
        assert calls in ([], ["read", "released"])
    return bool(calls)


def test_a_batch_without_bad_records_is_not_read_again() -> None:
    assert not searched([])
    assert not searched([ReadCounts(10, 10)])
    # Aborted records and transaction markers have offsets, and are not read.
    assert not searched([ReadCounts(7, 7)])
    assert not searched([ReadCounts(10, 10)], reads_all=False)


def test_a_batch_is_read_again_unless_all_its_records_were_counted() -> None:
    assert searched([ReadCounts(10, 9)], again=ReadCounts(10, 9))
    assert searched([None])
    assert searched([ReadCounts(4, 4), None])
    assert searched([ReadCounts(0, 0)])
    assert searched([ReadCounts(7, 7)], reads_all=False)


def test_skipped_tombstones_are_counted_without_a_second_read() -> None:
    assert not searched([ReadCounts(10, 7, 3)])


def test_both_passes_find_the_same_number() -> None:
    with pytest.raises(RowsNotRepeatableError, match="other bad records"):
        searched([ReadCounts(10, 9)], again=ReadCounts(10, 8))
    # Spark has read the range twice for the first count.
    assert searched([ReadCounts(20, 18)], again=ReadCounts(10, 9))
