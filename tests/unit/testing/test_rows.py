"""The rows that a test gives, in the form in which a source holds them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import RowsInvalidError
from headrace.testing.rows import (
    Batches,
    Record,
    checked,
    checked_sources,
    infer_schema,
    kafka_rows,
    table_rows,
)


def test_offsets_of_each_partition_go_on_over_the_batches() -> None:
    offsets: dict[int, int] = {}
    first = kafka_rows("t", [{"id": 1}, Record({"id": 2}, partition=1), "raw"], 0, offsets)
    second = kafka_rows("t", [Record(None, key="k", headers={"h": "v"})], 1, offsets)
    places = [(r["partition"], r["offset"], r["value"]) for t in (first, second) for r in t.to_pylist()]
    assert places == [(0, 0, b'{"id": 1}'), (1, 0, b'{"id": 2}'), (0, 1, b"raw"), (0, 2, None)]
    (record,) = second.to_pylist()
    assert (record["key"], record["headers"]) == (b"k", [{"key": "h", "value": b"v"}])


def test_a_timestamp_without_a_zone_is_utc_and_of_whole_milliseconds() -> None:
    at = datetime(2026, 1, 1, 8, 0, 0, 123456)
    (record,) = kafka_rows("t", [Record("x", timestamp=at)], 0, {}).to_pylist()
    assert record["timestamp"] == datetime(2026, 1, 1, 8, 0, 0, 123000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (object(), "JSON cannot represent a object"),
        (None, "Record(None)"),
        (Record("x", partition=-1), "partition"),
        (Record("x", timestamp="today"), "timestamp"),  # type: ignore[arg-type]
    ],
)
def test_what_can_be_no_record_is_named_by_its_place(row: Any, problem: str) -> None:
    with pytest.raises(RowsInvalidError) as caught:
        kafka_rows("orders", [{"id": 1}, row], 2, {})
    assert caught.value.params == {"source": "orders", "batch": 3, "row": 2}
    assert problem in caught.value.summary


@pytest.mark.parametrize("given", [{"id": 1}, "rows", [{"id": 1}], [[{"id": 1}], "x"], 7])
def test_rows_are_batches_of_rows(given: Any) -> None:
    with pytest.raises(RowsInvalidError) as caught:
        checked("orders", given)
    assert caught.value.params["source"] == "orders"
    assert caught.value.remedies


@pytest.mark.parametrize("rows", [[[{"id": 1}]], {1: [[]]}, None])
def test_rows_are_given_by_the_names_of_sources(rows: Any) -> None:
    with pytest.raises(RowsInvalidError):
        checked_sources(rows)


SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])


def test_a_row_of_a_table_lacks_what_it_does_not_name() -> None:
    (row,) = table_rows("t", [{"id": 1, "price": 2}], 0, SCHEMA).to_pylist()
    assert row == {"id": 1, "price": 2.0, "at": None}


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"idd": 1}, "`idd`"),
        ({"id": "one"}, "`id`"),
        ({"id": 1.5}, "`id`"),
        ({"at": "noon"}, "`at`"),
        ([1], "list"),
    ],
)
def test_a_row_that_does_not_fit_its_table_is_named(row: Any, named: str) -> None:
    with pytest.raises(RowsInvalidError) as caught:
        table_rows("customers", [{"id": 1}, row], 0, SCHEMA)
    assert caught.value.params == {"source": "customers", "batch": 1, "row": 2}
    assert named in caught.value.summary


def test_types_that_nobody_says_are_those_of_the_values() -> None:
    rows = Batches([[{"id": 1, "at": datetime(2026, 1, 1)}], [{"name": "ada"}]])
    assert infer_schema("t", rows).types == [pa.int64(), pa.timestamp("us", tz="UTC"), pa.string()]


@pytest.mark.parametrize("batches", [[[]], [[{"id": 1}, {"id": "x"}]], [[{"id": None}]]])
def test_types_that_cannot_be_told_are_asked_for(batches: Any) -> None:
    with pytest.raises(RowsInvalidError) as caught:
        infer_schema("t", Batches(batches))
    assert "schema=" in caught.value.remedies[0]
