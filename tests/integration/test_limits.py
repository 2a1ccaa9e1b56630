"""Limits that follow what batches take, on real queries."""

from __future__ import annotations

import itertools

import pytest

from headrace.model.events import BatchCommitted
from proof.shop import BRONZE, SILVER, Shop

pytestmark = pytest.mark.usefixtures("spark")

UNLIMITED = BRONZE.replace(", max_offsets_per_trigger={limit}", "")


def sizes(shop: Shop, flow: str) -> list[int]:
    return [e.rows for e in shop.happened(BatchCommitted, flow=flow) if isinstance(e, BatchCommitted)]


def test_the_first_batch_goes_by_the_records_and_the_next_by_the_batch_before(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.kafka.meter._FIRST_BYTES", 12_000)
    shop.write(UNLIMITED)
    shop.produce(600)
    shop.run_well()
    first, *middle, last = sizes(shop, "bronze")
    # About 100 bytes each, with what a row needs beside them.
    assert 60 <= first <= 180
    grown = [first, *middle]
    assert all(3 * before <= after <= 10 * before + 9 for before, after in itertools.pairwise(grown))
    assert len(middle) + 2 < 600 / first and last > 0
    shop.check()


def test_a_stream_over_a_table_takes_more_as_long_as_it_is_fast(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("headrace.sources.delta.reader", "headrace.sources.delta.source"):
        monkeypatch.setattr(f"{place}.DELTA_MAX_BYTES_PER_TRIGGER", 1000)
    shop.write(BRONZE, limit=10)
    shop.produce(120)
    shop.run_well()
    shop.write(BRONZE, SILVER, limit=10)
    shop.run_well()
    batches = len(sizes(shop, "bronze"))
    assert batches >= 12
    assert sum(sizes(shop, "silver")) == 120
    assert sizes(shop, "silver")[0] <= 10
    assert len(sizes(shop, "silver")) <= batches / 2
    shop.check(silver=True)


VISITS = """
import headrace as hr

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG")
"""


def test_a_folder_gives_more_files_as_long_as_the_query_is_fast(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.files.reader.FILES_MAX_FILES_PER_TRIGGER", 2)
    shop.write(VISITS)
    (shop.root / "landing").mkdir()
    for number in range(30):
        (shop.root / "landing" / f"{number}.json").write_text(f'{{"id": {number}}}')
    shop.run_well()
    first, *grown = sizes(shop, "visits")
    assert (first, first + sum(grown)) == (2, 30)
    assert len(grown) <= 4, "batches of two files each would be fourteen more"
    shop.verify()


def test_a_user_s_own_limit_wins(shop: Shop) -> None:
    shop.write(limit=50)
    shop.produce(150)
    shop.run_well()
    # Spark shares a limit out among the partitions, and rounds down.
    assert max(sizes(shop, "bronze")) == sizes(shop, "bronze")[1] <= 50
