"""A vacuum keeps what the next refresh of a view needs."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.maintain.holders import Holder, find_holders
from headrace.model.names import TableName
from headrace.state.ledger import record_view
from headrace.storage.layout import Storage

ORDERS, REVENUE = TableName("default", "orders"), TableName("default", "revenue")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path)


def refresh(storage: Storage, *, exact: bool, age: timedelta = timedelta()) -> None:
    record_view(storage.ledger(REVENUE, "view"), "shop", REVENUE, "v")
    log = Path(str(storage.table(REVENUE))) / "_delta_log"
    log.mkdir(parents=True)
    seen = {"table_id": "t", "version": 7, "commit": "c"}
    metadata = {"headrace": 1, "view": str(REVENUE), "inputs": {str(ORDERS): seen}, "exact": exact}
    info = {
        "timestamp": int((time.time() - age.total_seconds()) * 1000),
        "userMetadata": json.dumps(metadata),
    }
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {"operation": "WRITE", **info}}))


def test_the_versions_since_the_last_refresh_are_kept(storage: Storage) -> None:
    refresh(storage, exact=True)
    needed = Holder(kind="view", name="revenue", version=8, first_unread=8, reads_all=True)
    assert find_holders(storage, ORDERS, "t") == (needed,)
    assert str(needed) == "view revenue"
    # Another table of the same name.
    assert find_holders(storage, ORDERS, "t2") == ()


@pytest.mark.parametrize(
    ("exact", "age"), [(False, timedelta()), (True, timedelta(days=31))], ids=["whole", "old"]
)
def test_a_view_that_is_computed_as_a_whole_needs_nothing(
    storage: Storage, exact: bool, age: timedelta
) -> None:
    refresh(storage, exact=exact, age=age)
    assert find_holders(storage, ORDERS, "t") == ()
