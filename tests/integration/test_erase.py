"""`headrace erase`: rows leave a table, its quarantine and the tables downstream; proof and streams go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from decoded import files_with
from headrace.cli.main import run
from headrace.errors import SecondDriverError
from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.run.failpoints import FAIL_VARIABLE
from headrace.state.lease import Heart
from headrace.storage.layout import Storage
from proof.shop import Shop, rows

pytestmark = pytest.mark.usefixtures("spark")

CODE = """
import headrace as hr
from headrace import spark

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, name STRING, amount LONG, op STRING")

hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    target="current", source="changes", keys=["id"], sequence_by="amount", apply_as_deletes="op = 'delete'"
)

@hr.table
@hr.expect_or_quarantine("positive", "amount > 0")
def orders():
    return spark.readStream.table("changes").drop("op")

@hr.table
def large():
    return spark.readStream.table("orders").where("amount > 1")

@hr.table
def names():
    return spark.readStream.table("large").select("name", "_source")

@hr.materialized_view
def totals():
    return spark.read.table("orders").groupBy("id").sum("amount").withColumnRenamed("sum(amount)", "total")
"""


def produce(shop: Shop, *records: Mapping[str, Any]) -> None:
    shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), 0) for one in records])


def ids(shop: Shop, table: str) -> list[int]:
    return sorted(row["id"] for row in rows(shop, f"tables/{shop.database}/{table}"))


def holding(folder: Path, text: bytes) -> list[Path]:
    """The current data files of a table with a text; they are not compressed."""
    files = sorted(folder.glob("_delta_log/*.json"))
    log = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    current: set[str] = set()
    for action in log:
        current |= {action["add"]["path"]} if "add" in action else set()
        current -= {action["remove"]["path"]} if "remove" in action else set()
    return [folder / path for path in current if text in (folder / path).read_bytes()]


def test_an_erasure_takes_rows_from_all_tables_and_the_proof_holds(
    make_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = make_shop(partitions=1)
    shop.write(CODE)
    produce(
        shop,
        {"id": 1, "name": "adalovelace", "amount": 1},
        {"id": 1, "name": "adalovelace", "amount": 2},
        {"id": 1, "name": "adalovelace", "amount": -3},
        {"id": 2, "name": "bob", "amount": 2},
        {"id": 2, "name": "bob", "amount": -4},
    )
    shop.run_well()
    project = ["--project", str(shop.root)]

    assert run(["erase", "orders", "--where", "nothing = 1", "--yes", *project]) == 2
    assert "READ_CONDITION_INVALID" in capsys.readouterr().err
    assert run(["erase", "orderz", "--where", "id = 1", "--yes", *project]) == 2
    assert run(["erase", "orders", "--where", "id = 1", *project]) == 2, "nobody is there to answer"
    shown = capsys.readouterr().err
    assert "orders  2 rows" in shown
    assert "names  not erased" in shown
    assert ids(shop, "orders") == [1, 1, 2]

    assert run(["erase", "orders", "--where", "id = 1", "--yes", "--json", *project]) == 0
    done = json.loads(capsys.readouterr().out)
    assert {(one["dataset"].split(".")[1], one["part"]): one["rows"] for one in done["steps"]} == {
        ("orders", "table"): 2,
        ("orders", "quarantine"): 1,
        ("large", "table"): 1,
    }
    assert ids(shop, "orders") == ids(shop, "large") == [2]
    rejected = rows(shop, f"quarantine/{shop.database}/orders")
    assert sorted((one["state"], one["row"] is None, one["source"]["offset"]) for one in rejected) == [
        ("discarded", True, 2),
        ("quarantined", False, 4),
    ]
    for kind, name in (("tables", "orders"), ("tables", "large"), ("quarantine", "orders")):
        assert not holding(shop.root / "lake" / kind / shop.database / name, b"adalovelace")

    # Streams go on, the view is computed again, and every record is accounted for.
    produce(shop, {"id": 3, "name": "eve", "amount": 5})
    with Pipeline.load(shop.root) as pipeline:
        assert not pipeline.run(["orders"]).errors
        notes = pipeline.plan_erasure("orders", "name = 'eve'").notes
    assert any(note.startswith("flow large has not read all rows of ") for note in notes)
    shop.run_well()
    assert ids(shop, "large") == ids(shop, "totals") == [2, 3]
    shop.verify()
    with Pipeline.load(shop.root) as pipeline:
        found = [one for one in pipeline.events() if one.details.get("type") == "ERASE"]
    assert [(one.details["status"], one.details.get("erased")) for one in found][-1] == ("COMPLETED", 4)
    assert "adalovelace" not in json.dumps([one.details for one in found])


def test_an_erasure_of_current_rows_takes_old_versions_of_them_and_tombstones(
    make_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = make_shop(partitions=1)
    shop.write(CODE)
    for number in (1, 2):
        produce(
            shop,
            {"id": 1, "name": f"adalovelace{number}", "amount": number},
            {"id": 2, "name": "bob", "amount": number},
        )
        shop.run_well("current")
    produce(shop, {"id": 7, "amount": 1, "op": "delete"}, {"id": 8, "amount": 1, "op": "delete"})
    shop.run_well("current")
    project = ["--project", str(shop.root)]
    # A flow that runs could add rows that it has read before.
    storage = Storage.at(shop.root / "lake")
    (heart := Heart()).acquire(storage.lease(TableName(shop.database, "current"), "current"), "current")
    with Pipeline.load(shop.root) as pipeline:
        planned = pipeline.plan_erasure("current", "id IN (1, 7)")
        assert planned.rows == 2
        with pytest.raises(SecondDriverError):
            pipeline.erase(planned)
    heart.stop()
    assert ids(shop, "current") == [1, 2]
    assert run(["erase", "current", "--where", "id IN (1, 7)", "--yes", "--json", *project]) == 0
    done = json.loads(capsys.readouterr().out)
    assert {one["part"]: one["rows"] for one in done["steps"]} == {"table": 1, "tombstones": 1}
    assert ids(shop, "current") == [2]
    assert not holding(shop.table("current"), b"adalovelace")
    tombstones = rows(shop, f"tombstones/{shop.database}/current")
    assert [row["key_1"] for row in tombstones] == [8]
    produce(shop, {"id": 2, "name": "bobby", "amount": 3})
    shop.run_well("current")
    shop.verify()


VERSIONS = """
hr.create_streaming_table("versions")
hr.create_auto_cdc_flow(
    target="versions",
    source="changes",
    keys=["id"],
    sequence_by="amount",
    except_column_list=["op", "amount"],
    stored_as_scd_type=2,
)
"""


def test_an_erasure_of_a_history_takes_its_hidden_records(
    make_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = make_shop(partitions=1)
    shop.write(CODE + VERSIONS)
    for amount in (1, 2):
        produce(
            shop,
            {"id": 1, "name": "adalovelace", "amount": amount},
            {"id": 2, "name": "bob", "amount": amount},
        )
    shop.run_well("versions")
    hidden = f"tombstones/{shop.database}/versions"
    assert len(rows(shop, hidden)) == 2
    project = ["--project", str(shop.root)]
    assert run(["erase", "versions", "--where", "name = 'adalovelace'", "--yes", "--json", *project]) == 0
    done = json.loads(capsys.readouterr().out)
    assert {one["part"]: one["rows"] for one in done["steps"]} == {"table": 1, "tombstones": 1}
    assert ids(shop, "versions") == [2]
    assert not holding(shop.root / "lake" / hidden, b"adalovelace")
    produce(shop, {"id": 1, "name": "other", "amount": 3})
    shop.run_well("versions")
    assert ids(shop, "versions") == [1, 2]
    shop.verify()


FINAL = """
import headrace as hr
from headrace import spark

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="name STRING, amount LONG, op STRING")

hr.create_streaming_table("current", table_properties={"delta.enableChangeDataFeed": "true"})
hr.create_auto_cdc_flow(
    target="current", source="changes", keys=["name"], sequence_by="amount", apply_as_deletes="op = 'delete'"
)

@hr.table
@hr.expect_or_quarantine("positive", "amount > 0")
def orders():
    return spark.readStream.table("changes").drop("op")

@hr.table(table_properties={"delta.columnMapping.mode": "name"})
def large():
    return spark.readStream.table("orders").where("amount > 1")

@hr.table(
    partition_cols=["name"],
    table_properties={"delta.deletedFileRetentionDuration": "interval 0 seconds"},
)
def named():
    return spark.readStream.table("large")

@hr.materialized_view
def totals():
    return spark.read.table("orders").groupBy("name").count()
"""


def test_erased_rows_are_gone_from_every_file_of_a_quiet_storage(
    make_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = make_shop(partitions=1, maintenance={"retention": "0s", "allow_short_retention": True})
    shop.write(FINAL)
    people = [("bob", 2), ("adalovelace", 3), ("adalovelace", -1), ("bob", -2), ("adalovelace", 5)]
    for name, amount in people:
        produce(shop, {"name": name, "amount": amount})
        shop.run_well()
    produce(shop, {"name": "adalovelace", "amount": 6, "op": "delete"})
    shop.run_well()
    lake, project = shop.root / "lake", ["--project", str(shop.root)]
    assert len(files_with(lake, "adalovelace")) > 20
    # The process ends after the last deletion, before it records that.
    monkeypatch.setenv(FAIL_VARIABLE, "named/rows-erased:3")
    assert run(["erase", "orders", "--where", "name = 'adalovelace'", "--yes", *project]) != 0
    assert FAIL_VARIABLE not in os.environ
    capsys.readouterr()
    assert run(["maintain", *project]) == 0
    assert ".named  the erasure was interrupted. Repeat it:   headrace erase " in capsys.readouterr().err
    for table in ("orders", "current"):
        assert run(["erase", table, "--where", "name = 'adalovelace'", "--yes", *project]) == 0
    shown = capsys.readouterr().out
    assert ".named  0 rows" in shown, shown
    assert run(["maintain", *project]) == 0
    shown = capsys.readouterr().err
    assert "view: still has the rows until the next run" in shown, shown
    left = {path.split("/")[2] for path in files_with(lake, "adalovelace")}
    assert left == {"totals"}, left
    shop.run_well()
    assert run(["erase", "orders", "--where", "name = 'adalovelace'", "--wait", "--yes", *project]) == 0
    assert "No file and no log entry" in capsys.readouterr().out
    assert files_with(lake, "adalovelace") == []

    # No flow has read anything since. They all continue where they were, without a loss.
    shop.verify()
    produce(shop, {"name": "eve", "amount": 8}, {"name": "bob", "amount": 9})
    shop.run_well()
    for table in ("orders", "large", "named"):
        found = sorted((row["name"], row["amount"]) for row in rows(shop, f"tables/{shop.database}/{table}"))
        assert found == [("bob", 2), ("bob", 9), ("eve", 8)], table
    assert run(["maintain", *project]) == 0
    shop.run_well()
    shop.verify()
