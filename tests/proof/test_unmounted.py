"""A disk that is away for seconds ends no flow, and a table that is gone does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest

from headrace.cli.main import run as cli
from headrace.model.event_forms import Event
from headrace.model.events import BatchCommitted, FlowFailed, FlowRetrying, ViewFailed
from headrace.run import attempts
from proof.shop import BRONZE, SILVER, Shop, rows
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

NEWEST = """
@hr.temporary_view
def sales():
    sale = F.from_json(F.decode("value", "UTF-8"), "id LONG, name STRING")
    rows = spark.readStream.table("bronze")
    return rows.select(sale["name"].alias("name"), sale["id"].alias("id"), "partition", "offset")

hr.create_streaming_table("newest")
hr.create_auto_cdc_flow("newest", "sales", ["name"], F.struct("offset", "partition"))
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_WAIT_S", 0.2)


def await_event(shop: Shop, kind: type[Event], flow: str, since: int) -> None:
    """Wait for an event of a flow among those after the first ones."""

    def happened() -> bool:
        events = list(shop.events)[since:]
        return any(isinstance(one, kind) and getattr(one, "flow", None) == flow for one in events)

    until(happened, f"{kind.__name__} of {flow}", 90)


def take_away(folder: Path) -> Path:
    away = folder.with_name(f"{folder.name}-away")
    return folder.rename(away)


def bring_back(away: Path, folder: Path) -> None:
    """Mount the disk again; it hides what was written to the empty folder below it."""
    if folder.exists():
        folder.rename(folder.with_name(f"{folder.name}-below"))
    away.rename(folder)


@pytest.mark.guarantee
def test_a_folder_that_is_away_for_seconds_ends_no_flow(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, NEWEST)
    shop.produce(30)
    shop.run_well()
    folders = {"bronze": shop.table("bronze"), "silver": shop.table("silver"), "newest": shop.table("newest")}
    with shop.running():
        for flow, folder in [*folders.items(), ("bronze", shop.checkpoints("bronze"))]:
            began = len(shop.events)
            shop.produce(5)
            await_event(shop, BatchCommitted, "newest", began)
            began = len(shop.events)
            away = take_away(folder)
            shop.produce(5)
            await_event(shop, FlowRetrying, flow, began)
            bring_back(away, folder)
            await_event(shop, BatchCommitted, flow, began)
    codes = {event.error["code"] for event in shop.happened(FlowRetrying)}
    assert codes <= {"STORAGE_UNREADABLE", "COMMIT_LOST"}, codes
    for below in shop.root.rglob("*-below"):
        assert not (below / "_delta_log").exists(), "a table was created below the disk"
    shop.run_well()
    shop.check(silver=True)
    expected = {}
    for record in sorted(shop.ledger.records, key=lambda one: (one.place[2], one.place[1])):
        expected[record.sale["name"]] = record.sale["id"]
    held = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(shop.table("newest")))
    found = held.execute("SELECT name, id FROM t").read_all()
    names, ids = (found.column(name).to_pylist() for name in ("name", "id"))
    assert dict(zip(names, ids, strict=True)) == expected


SIDE_TABLES = (("tombstones", "newest"), ("quarantine", "records"))
SIDES = """
import headrace as hr
from headrace import spark

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, v STRING, at LONG, op STRING")

@hr.table
@hr.expect_or_quarantine("good", "v <> 'bad'")
def records():
    return spark.readStream.table("changes")

hr.create_streaming_table("newest")
hr.create_auto_cdc_flow("newest", "changes", ["id"], "at", apply_as_deletes="op = 'delete'")
"""


def test_deleted_keys_and_rejected_rows_that_are_away_are_not_begun_anew(
    make_shop: Callable[..., Shop],
) -> None:
    shop = make_shop(partitions=1)
    shop.write(SIDES)

    def produce(*changes: tuple[int, str, int, str]) -> None:
        values = (dict(zip(("id", "v", "at", "op"), one, strict=True)) for one in changes)
        shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), 0) for one in values])

    produce((1, "a", 1, "upsert"), (2, "a", 1, "upsert"), (3, "bad", 1, "upsert"))
    shop.run_well()
    produce((1, "a", 9, "delete"))
    shop.run_well()
    sides = [shop.root / "lake" / kind / shop.database / name for kind, name in SIDE_TABLES]
    with shop.running():
        began = len(shop.events)
        produce((4, "a", 1, "upsert"))
        await_event(shop, BatchCommitted, "newest", began)
        away = [take_away(folder) for folder in sides]
        began = len(shop.events)
        produce((1, "late", 5, "upsert"), (2, "a", 9, "delete"), (5, "bad", 1, "upsert"))
        for flow in ("records", "newest"):
            await_event(shop, FlowRetrying, flow, began)
        for folder, one in zip(sides, away, strict=True):
            bring_back(one, folder)
        for flow in ("records", "newest"):
            await_event(shop, BatchCommitted, flow, began)
    newest = rows(shop, f"tables/{shop.database}/newest")
    assert sorted((row["id"], row["v"]) for row in newest) == [(3, "bad"), (4, "a"), (5, "bad")]
    rejected = rows(shop, f"quarantine/{shop.database}/records")
    assert sorted(json.loads(row["row"])["id"] for row in rejected) == [3, 5]
    shop.verify()

    # Another process knows by the deletes of the flow that there are deleted keys.
    away = [take_away(sides[0])]
    produce((2, "late", 5, "upsert"))
    error = shop.refused("newest")
    assert (error.code, "deleted keys" in error.summary) == ("TABLE_LOST", True)
    bring_back(away[0], sides[0])
    shop.run_well()
    assert len(rows(shop, f"tables/{shop.database}/newest")) == 3

    take_away(sides[0])
    assert cli(["full-refresh", "newest", "--yes", "--project", str(shop.root)]) == 0
    shop.run_well()
    assert len(rows(shop, f"tables/{shop.database}/newest")) == 3
    shop.verify()


def test_a_table_that_is_gone_ends_its_flow_with_the_error_of_a_lost_table(shop: Shop) -> None:
    shop.produce(10)
    with shop.running():
        await_event(shop, BatchCommitted, "bronze", 0)
        take_away(shop.table("bronze"))
        shop.produce(5)
        await_event(shop, FlowFailed, "bronze", 0)
    retried = {event.error["code"] for event in shop.happened(FlowRetrying)}
    assert retried == {"STORAGE_UNREADABLE"}
    assert [event.error["code"] for event in shop.happened(FlowFailed)] == ["TABLE_LOST"]


def test_a_view_whose_folder_is_away_is_refreshed_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta makes a new table in the empty folder, and the refresh finds that the view does not hold it."""
    from headrace.run import views

    shop.write(BRONZE, SILVER)
    shop.produce(20)
    shop.run_well()
    shop.produce(20)
    gold, refresh, away = shop.table("gold"), views.ViewRunner._refresh, []

    def flicker(self: views.ViewRunner) -> views.ViewResult:
        if not away:
            away.append(take_away(gold / "_delta_log"))
            try:
                return refresh(self)
            finally:
                bring_back(away[0], gold / "_delta_log")
        return refresh(self)

    monkeypatch.setattr(views.ViewRunner, "_refresh", flicker)
    shop.run_well()
    assert away and not shop.happened(ViewFailed)
    shop.check(silver=True)
