"""Damaged files of a checkpoint are found and repaired, state included; no record is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from headrace.cli.main import run as run_command
from headrace.errors import HeadraceError
from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.state.lease import Heart
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from proof.shop import BRONZE, Shop

pytestmark = pytest.mark.usefixtures("spark")

DISTINCT = BRONZE.replace(
    "return records.", 'records = records.dropDuplicates(["_source"])\n    return records.'
)
"""A query that keeps state, which a new checkpoint would lose."""


SINK = """
import headrace as hr

hr.create_sink("bronze", "delta", {"path": "ROOT/copy"})

@hr.append_flow(target="bronze", name="bronze")
def send():
    return hr.read_kafka("{topic}").select("value")
"""


def newest(shop: Shop, log: str, back: int = 0) -> Path:
    numbers = sorted(int(path.name) for path in (shop.checkpoint() / log).iterdir() if path.name.isdigit())
    return shop.checkpoint() / log / str(numbers[-1 - back])


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


_CORNERS = ("the offsets have a gap", "the checksums are others", "several files are cut")

DAMAGES: dict[str, Callable[[Shop], None]] = {
    "the last offsets are cut": lambda shop: halve(newest(shop, "offsets")),
    "the last offsets are empty": lambda shop: empty(newest(shop, "offsets")),
    "the offsets have a gap": lambda shop: newest(shop, "offsets", 1).unlink(),
    "the last commit is empty": lambda shop: empty(newest(shop, "commits")),
    "the metadata is empty": lambda shop: empty(shop.checkpoint() / "metadata"),
    "the checksums are others": lambda shop: halve(
        newest(shop, "offsets").with_name(f".{newest(shop, 'offsets').name}.crc")
    ),
    "several files are cut": lambda shop: (
        [halve(newest(shop, name)) for name in ("offsets", "commits")] and None
    ),
}


@pytest.mark.parametrize(
    "damage",
    [
        damage if damage in _CORNERS else pytest.param(damage, marks=pytest.mark.thorough)
        for damage in DAMAGES
    ],
)
def test_a_damaged_checkpoint_is_repaired_and_its_state_kept(shop: Shop, damage: str) -> None:
    shop.write(DISTINCT)
    for _ in range(3):
        shop.produce(30)
        shop.run_well()
    shop.produce(20)
    before = shop.checkpoint()
    DAMAGES[damage](shop)
    with Pipeline.load(shop.root) as pipeline:
        (found,) = pipeline.checkpoints.validate()
        assert found.can_be_repaired, found.to_json()
        if damage != "the checksums are others":
            error = shop.refused()
            assert any("checkpoint repair bronze" in remedy for remedy in error.remedies), error.to_dict()
        (done,) = pipeline.checkpoints.repair(["bronze"])
        # The new metadata has another id in each plan of the repair.
        assert [one.to_json()["problems"] for one in (done,)] == [found.to_json()["problems"]]
        (now,) = pipeline.checkpoints.validate()
        assert not now.problems, now.to_json()
    kept = [path for path in (shop.storage.root / "backups").rglob("*") if path.is_file()]
    # Beside a missing file, that is the file with its checksums.
    assert kept
    shop.run_well()
    shop.check()
    assert shop.checkpoint() == before


def test_offsets_of_a_batch_that_the_table_does_not_hold_are_planned_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.produce(30)
    shop.run_well()
    shop.produce(30)

    def crash(*_: object, **__: object) -> None:
        raise OSError("the process ended here")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.sinks.delta.append.commit_batch", crash)
        assert shop.run().errors
    assert newest(shop, "offsets").name == "1", "a batch was planned"
    halve(newest(shop, "offsets"))
    project = ["--project", str(shop.root)]
    assert run_command(["checkpoint", "validate", *project]) == 1
    assert run_command(["checkpoint", "repair", "bronze", "--yes", *project]) == 0
    assert "plans it again" in capsys.readouterr().out
    assert run_command(["checkpoint", "validate", *project]) == 0
    assert run_command(["checkpoint", "show", *project]) == 0
    assert "batch 0 planned, batch 0 finished, batch 0 in the table" in capsys.readouterr().out
    shop.run_well()
    shop.check()


def test_a_batch_that_a_sink_may_have_is_not_planned_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink would skip a batch of the same number, and the records of the larger range with it."""
    shop.write(SINK.replace("ROOT", str(shop.root)))
    shop.produce(30)
    shop.run_well()
    shop.produce(30)

    def crash(*_: object, **__: object) -> None:
        raise OSError("the process ended here")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.sinks.delta.append.commit_batch", crash)
        assert shop.run().errors
    assert DeltaTable(shop.root / "copy").to_pyarrow_table().num_rows == 60, "the batch was sent"
    halve(newest(shop, "offsets"))
    with Pipeline.load(shop.root) as pipeline:
        (found,) = pipeline.checkpoints.validate()
        assert [one.repair for one in found.problems] == [None]
        assert pipeline.checkpoints.repair(["bronze"]) == ()
    assert newest(shop, "offsets").name == "1"


def test_a_repair_that_is_killed_is_repeated(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        shop.produce(30)
        shop.run_well()
    halve(newest(shop, "offsets"))

    damaged, replace = newest(shop, "offsets").read_bytes(), Location.replace

    def crash(location: Location, text: str) -> None:
        if location.parent.name == "offsets":
            raise OSError("the process ended here")
        replace(location, text)

    with Pipeline.load(shop.root) as pipeline:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="ended here"):
            patch.setattr(Location, "replace", crash)
            pipeline.checkpoints.repair(["bronze"])
        assert newest(shop, "offsets").read_bytes() == damaged
        assert shop.refused().code == "CHECKPOINT_CORRUPT"
        pipeline.checkpoints.repair(["bronze"])
    shop.run_well()
    shop.check()


def test_what_cannot_be_repaired_is_left_and_a_running_flow_is_not_touched(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    storage = Storage.at(shop.root / "lake")
    (heart := Heart()).acquire(storage.lease(TableName(shop.database, "bronze"), "bronze"), "bronze")
    halve(newest(shop, "offsets"))
    with Pipeline.load(shop.root) as pipeline:
        with pytest.raises(HeadraceError) as caught:
            pipeline.checkpoints.repair(["bronze"])
        assert caught.value.code == "SECOND_DRIVER"
        heart.stop()
        before = newest(shop, "offsets").read_bytes()
        (found,) = pipeline.checkpoints.validate(["bronze"])
        assert not found.can_be_repaired, "the settings of batch 0 are in no other file"
        assert pipeline.checkpoints.repair(["bronze"]) == ()
    assert newest(shop, "offsets").read_bytes() == before
    assert any("reset bronze" in remedy for remedy in shop.refused().remedies)
