"""Tests of the pipeline, with rows in place of the topic, and without a broker: run `pytest`."""

from datetime import date
from decimal import Decimal
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def sale(id, day, name, amount):
    return {"id": id, "date": f"2026-01-{day:02d}", "name": name, "sales": amount}


def test_sales_add_up_over_several_batches(run_pipeline):
    first = [sale(1, 5, "ada", 10.5), sale(2, 5, "ada", 2.25)]
    second = [sale(3, 5, "ada", 0.25), sale(4, 6, "bob", 7)]
    tables = run_pipeline(FOLDER, {"sales": [first, second]})
    sums = {(row["date"], row["name"]): (row["sales"], row["count"]) for row in tables["gold"]}
    assert sums == {
        (date(2026, 1, 5), "ada"): (Decimal("13.00"), 3),
        (date(2026, 1, 6), "bob"): (Decimal("7.00"), 1),
    }
    assert len(tables["bronze"]) == len(tables["silver"]) == 4


def test_a_record_that_cannot_be_parsed_goes_to_the_quarantine(run_pipeline):
    tables = run_pipeline(FOLDER, {"sales": [[sale(1, 5, "ada", 10.5), "not JSON"]]})
    assert [row["id"] for row in tables["silver"]] == [1]
    (rejected,) = tables.quarantine("silver")
    assert [reason["name"] for reason in rejected["reasons"]] == ["RECORD_UNPARSEABLE"]
