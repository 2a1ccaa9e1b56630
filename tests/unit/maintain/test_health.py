"""The health of tables: what is due, and for which table of a dataset."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from headrace.declare.spec import load_project
from headrace.maintain.health import examine_health
from headrace.model.names import TableName

ORDERS = TableName("default", "orders")


def test_the_quarantine_of_a_table_has_a_health_of_its_own(tmp_path: Path) -> None:
    settings = load_project(
        text="name: shop\n", overrides={"storage": str(tmp_path), "maintenance.small_files": "3"}
    )
    storage = settings.storage
    write_deltalake(str(storage.table(ORDERS)), pa.table({"id": [1]}))
    for number in range(5):
        write_deltalake(str(storage.quarantine(ORDERS)), pa.table({"id": [number]}), mode="append")
    found = list(examine_health(storage, settings.maintenance, storage.find_tables()))
    assert [one.target.title for one in found] == ["orders", "orders (quarantine)"]
    assert [one.to_json()["role"] for one in found] == ["table", "quarantine"]
    assert [[str(remark.command) for remark in one.remarks] for one in found] == [
        [],
        ["headrace maintain orders --only optimize"],
    ]
