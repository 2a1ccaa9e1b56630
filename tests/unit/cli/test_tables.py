"""`headrace tables` lists what the storage holds, and describes one table, without a JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from headrace.cli.main import run


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "headrace.yml").write_text("name: shop\nstorage: ./lake\n")
    rows = pa.table({"id": pa.array([1], pa.int64()), "day": ["a"]})
    orders = tmp_path / "lake/tables/default/orders"
    write_deltalake(orders, rows, partition_by=["day"], description="All orders")
    # delta-rs takes no properties of others.
    properties = {"headrace.kind": "streaming_table", "headrace.keys": '["id"]', "headrace.scd_type": "1"}
    commit = orders / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for one in actions:
        if "metaData" in one:
            one["metaData"]["configuration"] = {**properties, "delta.appendOnly": "false"}
    commit.write_text("\n".join(map(json.dumps, actions)))
    write_deltalake(tmp_path / "lake/tables/other/items", rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tables_are_listed(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tables"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [["orders", "streaming", "table", "2", "All", "orders"], ["other.items", "table", "2"]]


def test_a_damaged_table_does_not_hide_the_others(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / f"lake/tables/other/items/_delta_log/{0:020d}.json").write_bytes(b"\xff\xfe")
    assert run(["tables"]) == 1
    shown = capsys.readouterr()
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["orders"]
    assert "the log of the table other.items is damaged" in shown.err
    assert run(["tables", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["dataset"] for one in found["tables"]] == ["default.orders"]
    assert [one["code"] for one in found["errors"]] == ["LOG_UNREADABLE"]


def test_a_table_is_described(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tables", "orders", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["columns"][0] == {"name": "id", "type": "BIGINT", "nullable": True, "comment": None}
    assert (found["comment"], found["partition_cols"], found["keys"]) == ("All orders", ["day"], ["id"])
    assert found["properties"] == {"delta.appendOnly": "false"}
    assert run(["tables", "orders"]) == 0
    shown = capsys.readouterr().out
    assert "changes by key, SCD type 1" in shown
    assert "All orders" in shown


def test_a_table_that_does_not_exist_is_named(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tables", "order"]) == 2
    assert "did you mean `orders`?" in capsys.readouterr().err


def test_comments_of_columns_are_shown(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commented = Schema([Field("id", PrimitiveType("long"), metadata={"comment": "the number"})])
    DeltaTable.create(shop / "lake/tables/default/items", schema=commented)
    assert run(["tables", "items"]) == 0
    assert "the number" in capsys.readouterr().out
