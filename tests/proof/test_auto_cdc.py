"""Failures of a flow that applies changes by key, before and after its commit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import chain

import deltalake
import pytest

from cdc_oracle import Change, current_rows, history_rows, random_batches, random_changes, random_events
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_kafka(
        "{topic}", format="json", schema="id LONG, sequence LONG, op STRING, value STRING, note STRING"
    )

hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    "current", "changes", ["id"], "sequence", apply_as_deletes="op = 'delete'", except_column_list=EXCEPT
)
"""
MERGED = CODE.replace("EXCEPT", '["op", "note"]')
HISTORY = CODE.replace(
    "EXCEPT", '["op", "sequence"], stored_as_scd_type=2, track_history_column_list=["value"]'
)


def events_in_order(seed: int, *, keys: int, count: int) -> list[Change]:
    """Events of which none is late."""
    return [replace(one, sequence=one.offset) for one in random_events(seed, keys=keys, count=count)]


def current_of(changes: list[Change]) -> Counter[tuple[object, ...]]:
    return Counter(current_rows(changes).items())


def history_of(changes: list[Change]) -> Counter[tuple[object, ...]]:
    return Counter(astuple(row) for row in history_rows(changes))


@pytest.mark.parametrize(
    ("code", "columns", "draw", "expected"),
    [
        (MERGED, "id, value", random_changes, current_of),
        (HISTORY, 'id, "__START_AT", "__END_AT", value, note', random_events, history_of),
        (HISTORY, 'id, "__START_AT", "__END_AT", value, note', events_in_order, history_of),
    ],
    ids=["merged", "history", "history in order"],
)
def test_a_batch_of_changes_that_failed_is_applied_exactly_once(
    shop: Shop,
    code: str,
    columns: str,
    draw: Callable[..., list[Change]],
    expected: Callable[[list[Change]], Counter[tuple[object, ...]]],
) -> None:
    shop.write(code)
    batches = random_batches(11, draw(11, keys=20, count=150), 3)

    def produce(number: int) -> None:
        records = [
            {
                "id": one.key,
                "sequence": one.sequence,
                "op": one.operation,
                "value": one.value,
                "note": one.note,
            }
            for one in batches[number]
        ]
        shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), 0) for one in records])

    def rows() -> Counter[tuple[object, ...]]:
        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(shop.table("current")))
        found = table.execute(f"SELECT {columns} FROM t").read_all()
        return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))

    produce(0)
    shop.run_well()
    for number, place in ((1, "before-commit"), (2, "after-commit")):
        produce(number)
        shop.fail_at(place, number)
        held = batches[: number + 1] if place == "after-commit" else batches[:number]
        assert rows() == expected(list(chain(*held))), "the run failed at its place"
        shop.run_well()
        assert rows() == expected(list(chain(*batches[: number + 1])))
    shop.verify()
