"""What a replay writes into the quarantine table, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from lake import Lake
from rejected_rows import SCHEMA, rejected, write_rejected
from stores import At

from headrace.errors import QuarantineChangedError
from headrace.sinks.delta.commit import mark_replaying, settle_replay
from headrace.sinks.delta.row_states import unsettled_replays
from headrace.sinks.target import BatchStamp
from headrace.storage.location import Location

STAMP = BatchStamp(
    pipeline="shop", flow="bronze", checkpoint="r1", batch=0, ranges=(), replayed=1, replay="r1"
)


@pytest.fixture
def quarantine(at: At, tmp_path: Path) -> Location:
    """Two rejected rows of a flow, and one of another."""
    table = Lake(tmp_path / "lake", at).table()
    flow, other = table.flow(), table.flow("other")
    write_rejected(flow, [rejected(flow, 1), rejected(flow, 2)])
    write_rejected(other, [rejected(other, 3)])
    return at(tmp_path / "lake" / "quarantine" / "default" / "bronze")


def rows(quarantine: Location) -> dict[str, dict[str, Any]]:
    table = deltalake.DeltaTable(str(quarantine))
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return {row["id"]: row for row in pa.table(found).to_pylist()}


def outcome(*given: dict[str, Any]) -> pa.Table:
    schema = pa.schema([SCHEMA.field(name) for name in ("id", "state", "reasons", "row")])
    return pa.Table.from_pylist([{"reasons": None, "row": None, **one} for one in given], schema=schema)


def test_a_change_of_one_row_needs_the_space_of_one_file(
    quarantine: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []
    monkeypatch.setattr(Location, "check_space", lambda _, size: needed.append(size))
    actions = deltalake.DeltaTable(str(quarantine)).get_add_actions(flatten=True)
    sizes = actions.column("size_bytes").to_pylist()
    mark_replaying(quarantine, outcome({"id": "bronze-1", "state": "replaying"}), STAMP)
    assert needed == [max(sizes)] != [sum(sizes)]


def test_a_replay_marks_its_rows_and_settles_them(quarantine: Location) -> None:
    before = rows(quarantine)
    new = [{"kind": "expectation", "name": "other", "message": None}]
    taken = {"id": "bronze-1", "state": "replaying"}
    again = {"id": "bronze-2", "state": "quarantined", "reasons": new, "row": '{"id": 2.5}'}
    mark_replaying(quarantine, outcome(taken, again), STAMP)
    assert unsettled_replays(quarantine) == {"r1": "bronze"}
    found = rows(quarantine)
    assert {id: (row["state"], row["replay"]) for id, row in found.items()} == {
        "bronze-1": ("replaying", "r1"),
        "bronze-2": ("quarantined", "r1"),
        "other-3": ("quarantined", None),
    }
    assert (found["bronze-2"]["reasons"], found["bronze-2"]["row"]) == (new, '{"id": 2.5}')
    changed = {"state", "replay", "changed_at"}
    assert {k: v for k, v in found["bronze-1"].items() if k not in changed} == {
        k: v for k, v in before["bronze-1"].items() if k not in changed
    }
    assert found["bronze-1"]["changed_at"] > before["bronze-1"]["changed_at"]
    settle_replay(quarantine, "r1", state="replayed")
    assert rows(quarantine)["bronze-1"]["state"] == "replayed"
    assert unsettled_replays(quarantine) == {}


def test_an_interrupted_replay_is_undone(quarantine: Location) -> None:
    mark_replaying(quarantine, outcome({"id": "bronze-1", "state": "replaying"}), STAMP)
    settle_replay(quarantine, "r1", state="quarantined")
    assert rows(quarantine)["bronze-1"]["state"] == "quarantined"


def test_rows_of_another_state_are_not_marked(quarantine: Location) -> None:
    taken = [{"id": id, "state": "replaying"} for id in ("bronze-1", "bronze-2")]
    mark_replaying(quarantine, outcome(taken[0]), STAMP)
    version = deltalake.DeltaTable(str(quarantine)).version()
    with pytest.raises(QuarantineChangedError):
        mark_replaying(quarantine, outcome(*taken), STAMP)
    assert deltalake.DeltaTable(str(quarantine)).version() == version


def test_the_commits_name_the_replay(quarantine: Location) -> None:
    mark_replaying(quarantine, outcome({"id": "bronze-1", "state": "replaying"}), STAMP)
    (newest,) = deltalake.DeltaTable(str(quarantine)).history(1)
    assert json.loads(newest["userMetadata"]) == {
        "headrace": 1,
        "pipeline": "shop",
        "flow": "bronze",
        "replay": "r1",
    }
