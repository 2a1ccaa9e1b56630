"""A failure between the commit of a batch's rejected rows and the commit of its other rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proof.shop import Shop, rows

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr

@hr.table
{expectations}
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG")
"""
ODD = '@hr.expect_or_quarantine("even", "id % 2 = 0")'
LARGE = '@hr.expect_or_quarantine("small", "id < 3")'


def write(shop: Shop, expectations: str) -> None:
    shop.write(CODE.replace("{expectations}", expectations))


def orders(shop: Shop, folder: str) -> list[dict[str, Any]]:
    return rows(shop, f"{folder}/{shop.database}/orders")


def rejected(shop: Shop) -> list[int]:
    return sorted(json.loads(row["row"])["id"] for row in orders(shop, "quarantine"))


@pytest.mark.parametrize("after", [ODD, LARGE, ""], ids=["the same", "another", "none"])
def test_a_failure_between_both_commits_loses_and_doubles_nothing(shop: Shop, after: str) -> None:
    """The rejected rows of the batch are replaced when it comes again, also by fewer and by none."""
    write(shop, ODD)
    shop.ledger.produce_values(shop.topic, [(json.dumps({"id": id}).encode(), 0) for id in range(5)])
    shop.fail_at("before-commit", 0)
    assert rejected(shop) == [1, 3], "the run failed before the rejected rows were committed"
    assert orders(shop, "tables") == []
    pending = next(note for one in shop.verify().datasets for flow in one.flows for note in flow.notes)
    assert "2 rows in quarantine pending" in pending
    write(shop, after)
    shop.run_well()
    expected = {ODD: [1, 3], LARGE: [3, 4], "": []}[after]
    assert rejected(shop) == expected
    assert sorted(row["id"] for row in orders(shop, "tables")) == sorted({0, 1, 2, 3, 4} - {*expected})
    shop.verify()


def test_rejected_rows_of_an_abandoned_batch_go_with_its_checkpoint(shop: Shop) -> None:
    """A batch that a new checkpoint reads again has its rejected rows in the quarantine once."""
    write(shop, ODD)
    shop.ledger.produce_values(shop.topic, [(json.dumps({"id": id}).encode(), 0) for id in range(5)])
    shop.fail_at("before-commit", 0)
    assert rejected(shop) == [1, 3], "the run failed before the rejected rows were committed"
    write(shop, LARGE)
    shop.run_well(reset="orders")
    assert rejected(shop) == [3, 4]
    assert sorted(row["id"] for row in orders(shop, "tables")) == [0, 1, 2]
    (proof,) = shop.verify().datasets
    assert not [note for note in proof.notes if "quarantine" in note]


@pytest.mark.parametrize("moment", ["before-commit", "after-commit"])
def test_a_failure_quarantines_bad_records_once(shop: Shop, moment: str) -> None:
    """Between the commits of the quarantine and of the table, and before Spark's own commit log."""
    write(shop, ODD)
    values = [b'{"id": 0}', b"bad", b'{"id": 1}', b"caf\xe9", b'{"id": 2}']
    shop.ledger.produce_values(shop.topic, [(value, 0) for value in values])
    shop.fail_at(moment, 0)
    assert len(orders(shop, "quarantine")) == 3, "the run failed before the bad records were committed"
    assert len(orders(shop, "tables")) == (0 if moment == "before-commit" else 2)
    shop.run_well()
    assert sorted(row["source"]["offset"] for row in orders(shop, "quarantine")) == [1, 2, 3]
    assert sorted(row["id"] for row in orders(shop, "tables")) == [0, 2]
    shop.verify()


LINES = """
import headrace as hr

@hr.table
def orders():
    return hr.read_files("landing", format="json", schema="id STRING").selectExpr("cast(id AS long) AS id")
"""


def test_a_failure_quarantines_lines_on_which_the_query_fails_once(shop: Shop) -> None:
    """The batch is narrowed again, to the same lines."""
    (shop.root / "landing").mkdir(parents=True)
    for name, ids in {"a": "01x", "b": "y3"}.items():
        text = "".join(json.dumps({"id": id}) + "\n" for id in ids)
        (shop.root / "landing" / f"{name}.json").write_text(text)
    shop.write(LINES)
    shop.fail_at("before-commit", 0)
    assert len(orders(shop, "quarantine")) == 2, "the run failed before the rows were quarantined"
    assert orders(shop, "tables") == []
    shop.run_well()
    places = {
        (row["source"]["path"].rpartition("/")[2], row["source"]["offset"])
        for row in orders(shop, "quarantine")
    }
    assert places == {("a.json", 2), ("b.json", 0)}
    assert len(orders(shop, "quarantine")) == 2
    assert sorted(row["id"] for row in orders(shop, "tables")) == [0, 1, 3]
    shop.verify()
