"""Streams whose positions only Spark understands: each batch begins where the last one ended."""

from __future__ import annotations

from typing import Any

import pytest
from lake import HandFlow, Lake, rows

from unit.verify.conftest import Verifier as Verify


def read(start: Any, until: Any, kind: str = "other", index: int = 0, **identity: Any) -> dict[str, Any]:
    identity = identity or {"format": "rate"}
    return {"index": index, "kind": kind, "identity": identity, "from": start, "until": until}


@pytest.fixture
def flow(lake: Lake) -> HandFlow:
    return lake.table().flow()


def test_batches_that_follow_each_other_hold_and_records_are_not_judged(
    flow: HandFlow, verify: Verify
) -> None:
    # Spark's own offsets: a number, or any other JSON.
    flow.append_from([read(None, 5)], rows(range(5)))
    flow.append_from([read(5, {"0": 9})], rows(range(5, 9)))
    flow.append_from([read({"0": 9}, {"0": 9})], [])
    assert (verify.grade("ranges").verdict, verify.codes("ranges")) == ("proven", [])
    assert verify.grade("counts").verdict == "proven"
    records = verify.grade("records")
    assert records.verdict == "unjudged"
    assert "only Spark understands" in records.reasons[0]


def test_options_that_a_user_changes_are_no_other_source(flow: HandFlow, verify: Verify) -> None:
    def both(start: Any, until: Any, *options: str) -> list[dict[str, Any]]:
        return [
            read(start, until, index=index, format="rate", options=one) for index, one in enumerate(options)
        ]

    flow.append_from(both(None, 5, "a", "b"), rows(range(5)))
    flow.append_from(both(5, 7, "a", "c"), rows(range(5, 7)))
    # A run allows another order where both have read up to the same position.
    flow.append_from(both(7, 9, "c", "a"), rows(range(7, 9)))
    # Commits of an earlier version have no hash.
    flow.append_from([read(9, 10), read(9, 10, index=1)], rows(range(9, 10)))
    assert (verify.grade("ranges").verdict, verify.codes("ranges")) == ("proven", [])


def test_two_streams_that_change_their_places_are_found(flow: HandFlow, verify: Verify) -> None:
    """Each place goes on at its own position, which is that of the other stream."""

    def both(first: str, second: str, *positions: tuple[Any, Any]) -> list[dict[str, Any]]:
        return [
            read(*positions[index], index=index, format="rate", options=one)
            for index, one in enumerate((first, second))
        ]

    flow.append_from(both("a", "b", (None, 500), (None, 20)), rows(range(5)))
    flow.append_from(both("b", "a", (500, 501), (20, 21)), rows(range(5, 7)))
    assert verify.grade("ranges").verdict == "refuted"
    assert verify.codes("ranges") == ["SOURCE_CHANGED"] * 2
    assert (
        "that was source 1 of the batch before, which ended at 20" in verify.grade("ranges").findings[0].text
    )


@pytest.mark.parametrize("start", [4, 6, None, {"0": 5}])
def test_a_batch_that_begins_elsewhere_is_found(flow: HandFlow, verify: Verify, start: Any) -> None:
    flow.append_from([read(None, 5)], rows(range(5)))
    flow.append_from([read(start, 9)], rows(range(5, 9)))
    assert verify.grade("ranges").verdict == "refuted"
    assert verify.codes("ranges") == ["RANGE_MISSING"]


@pytest.mark.parametrize("start", [0, {}, [], ""])
def test_a_merged_entry_of_the_ledger_ends_where_the_first_batch_in_the_log_starts(
    lake: Lake, verify: Verify, start: Any
) -> None:
    table = lake.table()
    flow = table.flow()
    flow.append_from([read(None, start)], rows(range(5)))
    flow.append_from([read(start, 9)], rows(range(5, 9)))
    opening, first, second = flow.said
    entry = {**first, "batches": [0, 1], "version": [2, 3], "input": 9, "accepted": 9}
    del entry["batch"]
    table.fold("bronze", 0, 3, [opening, {**entry, "sources": [read(None, second["sources"][0]["until"])]}])
    table.forget_log(2)
    assert (verify.grade("ranges").verdict, verify.codes("ranges")) == ("proven", [])


@pytest.mark.parametrize(
    ("kind", "identity", "other", "names"),
    [
        ("other", {"format": "rate"}, {"format": "socket"}, "the stream socket"),
        ("new", {"id": "one"}, {"id": "two"}, 'new {"id": "two"}'),
        ("new", {"format": "x", "id": "one"}, {"format": "x", "id": "two"}, "the stream x"),
    ],
)
def test_a_source_that_was_replaced_is_found(
    flow: HandFlow, verify: Verify, kind: str, identity: Any, other: Any, names: str
) -> None:
    flow.append_from([read(None, 5, kind, **identity)], rows(range(5)))
    flow.append_from([read(5, 7, kind, **identity)], rows(range(5, 7)))
    assert verify.grade("ranges").verdict == "proven"
    flow.append_from([read(7, 9, kind, **other)], rows(range(7, 9)))
    assert verify.codes("ranges") == ["SOURCE_CHANGED"]
    assert f"reads {names} through a checkpoint" in verify.grade("ranges").findings[0].text


@pytest.mark.parametrize("logged", [9, {"0": 5}, "5", None])
def test_an_offset_log_that_says_otherwise_is_found(flow: HandFlow, verify: Verify, logged: Any) -> None:
    flow.append_from([read(None, 5)], rows(range(5)))
    flow.write_spark_log(0, 5)
    assert verify.grade("ranges").verdict == "proven"
    flow.write_spark_log(0, logged)
    assert verify.codes("ranges") == ([] if logged is None else ["OFFSETS_DIFFER"])
