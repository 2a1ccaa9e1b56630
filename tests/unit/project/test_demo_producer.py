"""The producer's books and what they are compared with."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

from headrace.project.demo.producer import Entry, SalesLedger, build_sales, compare


def test_sums_are_exact_where_floats_are_not() -> None:
    ledger = SalesLedger()
    for _ in range(10):
        ledger.add("lamp", "2026-01-01", Decimal("0.10"))
    assert ledger.entries == {("lamp", "2026-01-01"): Entry(10, Decimal("1.00"))}
    assert ledger.sales == Decimal("1.00")
    assert sum([0.1] * 10) != 1.0


def test_sales_are_the_same_for_the_same_seed_and_numbered() -> None:
    first, second = list(build_sales(500)), list(build_sales(500))
    assert first == second
    assert [sale.id for sale in first] == list(range(1, 501))
    assert len(Counter(sale.name for sale in first)) > 50


def test_a_record_carries_its_sum_digit_by_digit() -> None:
    for sale in build_sales(200):
        read = json.loads(sale.to_json(), parse_float=Decimal)
        assert read == {"id": sale.id, "date": sale.date, "name": sale.name, "sales": sale.sales}


def test_equal_sides_are_equal_whatever_the_order_and_the_trailing_zeros() -> None:
    ledger = {("b", "2026-01-02"): Entry(1, Decimal("2.5")), ("a", "2026-01-02"): Entry(1, Decimal("1.00"))}
    gold = [
        {"name": "a", "date": "2026-01-02", "sales": Decimal("1"), "count": 1},
        {"name": "b", "date": "2026-01-02", "sales": Decimal("2.50"), "count": 1},
    ]
    found = compare(gold, ledger)
    assert found.equal
    assert [row.name for row in found.rows] == ["a", "b"]
    assert found.total == Decimal("3.50")


def test_a_cent_a_missing_row_and_a_row_too_many_are_differences() -> None:
    ledger = {("a", "d"): Entry(1, Decimal("1.00")), ("b", "d"): Entry(1, Decimal("2.00"))}
    gold = [
        {"name": "a", "date": "d", "sales": Decimal("1.01"), "count": 1},
        {"name": "c", "date": "d", "sales": Decimal("3.00"), "count": 1},
    ]
    found = compare(gold, ledger)
    assert not found.equal
    assert {(row.name, row.gold, row.ledger) for row in found.differences} == {
        ("a", Entry(1, Decimal("1.01")), Entry(1, Decimal("1.00"))),
        ("b", None, Entry(1, Decimal("2.00"))),
        ("c", Entry(1, Decimal("3.00")), None),
    }


def test_a_record_too_many_is_a_difference_even_where_the_sum_fits() -> None:
    ledger = {("a", "d"): Entry(1, Decimal("2.00"))}
    assert not compare([{"name": "a", "date": "d", "sales": Decimal("2.00"), "count": 2}], ledger).equal


def test_a_key_in_two_rows_of_gold_is_a_fault_even_where_each_fits() -> None:
    ledger = {("a", "d"): Entry(1, Decimal("1.00"))}
    gold = [{"name": "a", "date": "d", "sales": Decimal("1.00"), "count": 1}] * 2
    found = compare(gold, ledger)
    assert not found.differences
    assert found.doubled == (("a", "d"),)
    assert not found.equal


def test_nothing_is_not_equal() -> None:
    assert not compare([], {}).equal
