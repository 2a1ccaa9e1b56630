"""A driver that stands still at any point while another takes its flows over changes no row afterwards."""

from __future__ import annotations

import signal
import time
from itertools import product
from typing import Any

import pytest

from headrace.model.names import TableName
from headrace.run.failpoints import Point
from headrace.state.lease import EXPIRES_VARIABLE
from proof.driver import start
from proof.shop import BRONZE, SILVER, Shop, rows
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

KEYED = """
@hr.temporary_view
def sales():
    sale = F.from_json(F.decode("value", "UTF-8"), "id LONG, name STRING")
    records = spark.readStream.table("bronze").select(sale.alias("sale"), "partition", "offset")
    op = F.when(F.col("sale.id") % 7 == 3, "delete").otherwise("upsert").alias("op")
    return records.select("sale.*", "partition", "offset", op)

for name, kind in (("newest", 1), ("history", 2)):
    hr.create_streaming_table(name)
    hr.create_auto_cdc_flow(
        name, "sales", ["name"], F.struct("offset", "partition"),
        apply_as_deletes="op = 'delete'", stored_as_scd_type=kind,
    )
"""
FLOWS = ("bronze", "silver", "newest", "history")
POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")
CORNERS = {("before-commit", "newest", "disk"), ("after-commit", "bronze", "disk")}
REFUSALS = ("BATCH_FENCED", "CHECKPOINT_BEHIND_TABLE")


def in_order(shop: Shop) -> dict[str, list[int]]:
    """The ids of each name in the order of its records."""
    found: dict[str, list[int]] = {}
    for record in sorted(shop.ledger.records, key=lambda one: (one.place[2], one.place[1])):
        found.setdefault(record.sale["name"], []).append(record.sale["id"])
    return found


def check(shop: Shop) -> None:
    shop.check(silver=True)
    order = in_order(shop)
    newest = [(row["name"], row["id"]) for row in rows(shop, f"tables/{shop.database}/newest")]
    assert sorted(newest) == sorted((name, ids[-1]) for name, ids in order.items() if ids[-1] % 7 != 3)
    history = rows(shop, f"tables/{shop.database}/history")

    def ids(held: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return sorted((row["name"], row["id"]) for row in held)

    assert ids(history) == sorted((name, one) for name, all in order.items() for one in all if one % 7 != 3)
    assert ids([row for row in history if row["__END_AT"] is None]) == sorted(newest)


@pytest.mark.parametrize(
    ("point", "flow", "lake_kind"),
    [
        pytest.param(*case, marks=() if case in CORNERS else pytest.mark.thorough)
        for case in product(POINTS, FLOWS, ("disk", "s3"))
    ],
)
def test_a_driver_that_wakes_after_another_took_over_changes_no_row(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, flow: str, point: Point
) -> None:
    shop.write(BRONZE, SILVER, KEYED)
    shop.produce(40)
    with start(shop, "--continuous", pause=(f"{flow}/{point}", 0)) as driver:
        driver.wait_at(point)
        driver.stand_still()
        leases = {name: shop.storage.lease(TableName(shop.database, name), name) for name in FLOWS}
        mine = [(path, path.read_bytes()) for path in leases.values() if path.exists()]
        monkeypatch.setenv(EXPIRES_VARIABLE, "1")
        stopped = time.monotonic()
        until(lambda: time.monotonic() - stopped > 1.5, "its leases have expired")
        shop.run_well()
        shop.produce(40)
        shop.run_well()
        after = shop.versions()
        # As if it had looked at its leases just before: only the commits are left to stop it.
        for path, text in mine:
            path.write_bytes(text)
        driver.go_on(point)
        driver.wake()
        shop.produce(10)
        if point == "before-commit":
            # Its batch was ready: the table itself refuses it.
            refused = [f"{flow}  failed: [{code}]" for code in REFUSALS]
        else:
            refused = [*REFUSALS, "LEASE_LOST"]
        until(lambda: any(text in driver.said() for text in refused), "it is refused")
        driver.process.send_signal(signal.SIGTERM)
        driver.end()
    assert all(version >= after[name] for name, version in shop.versions().items())
    shop.run_well()
    check(shop)
    shop.produce(10)
    shop.run_well()
    check(shop)
