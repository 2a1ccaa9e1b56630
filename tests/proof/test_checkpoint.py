"""A checkpoint that is lost, old, corrupt or somebody else's never loses or doubles a record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.project.pipeline import Pipeline
from proof.ledger import expire
from proof.shop import BRONZE, SILVER, Shop, named

WRITING = "run.opening.write_checkpoint"
COMMITTING = "sinks.delta.append.commit_generation"

pytestmark = pytest.mark.usefixtures("spark")


def run_twice(shop: Shop) -> None:
    """Leave a table with two batches, and records that nobody has read yet."""
    for _ in range(2):
        shop.produce(30)
        shop.run_well()
    shop.produce(20)


def heal(shop: Shop) -> None:
    """Apply the remedy, see that the table is exact, and that the flow then goes on as ever."""
    with Pipeline.load(shop.root) as pipeline:
        (reset,) = pipeline.reset(["bronze"]).resets
        assert any("continues" in line for line in reset.lines())
    shop.run_well()
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


@pytest.mark.guarantee
def test_what_is_produced_arrives_exactly_once_through_every_layer(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, limit=60)
    for count in (150, 0, 50):
        if count:
            shop.produce(count)
        shop.run_well()
        shop.check(silver=True)


def test_a_lost_checkpoint_is_refused_and_resumed_from_the_table(shop: Shop) -> None:
    run_twice(shop)
    shutil.rmtree(shop.checkpoints())
    assert shop.refused().code == "CHECKPOINT_LOST"
    heal(shop)


@pytest.mark.guarantee
def test_an_older_copy_of_a_checkpoint_is_refused_and_resumed_from_the_table(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    copy = shop.keep_copy()
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    shop.restore_copy(copy)
    assert shop.refused().code == "CHECKPOINT_BEHIND_TABLE"
    heal(shop)


def test_a_batch_that_was_planned_anew_with_other_ranges_is_refused(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    copy = shop.keep_copy()
    shop.produce(30)
    shop.run_well()
    shop.restore_copy(copy)
    # Another driver has gone on with the copy when fewer records were there.
    planned = shop.checkpoint() / "offsets"
    lines = (planned / "0").read_text().splitlines()
    ends = json.loads(lines[2])
    ends[shop.topic]["0"] += 1
    (planned / "1").write_text("\n".join([*lines[:2], json.dumps(ends)]))
    assert shop.refused().code == "CHECKPOINT_BEHIND_TABLE"
    heal(shop)


def newest(folder: Path) -> Path:
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


@pytest.mark.parametrize(
    "name",
    [
        *("offsets", "headrace.json", "a position"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("commits", "metadata")),
    ],
)
def test_a_corrupt_checkpoint_file_is_refused_and_the_flow_resumed_from_the_table(
    shop: Shop, name: str
) -> None:
    run_twice(shop)
    if name == "a position":
        path = newest(shop.checkpoint() / "offsets")
        path.write_bytes(path.read_bytes().replace(b"20", b"19"))
    else:
        path = shop.checkpoint() / name
        path = newest(path) if path.is_dir() else path
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    error = shop.refused()
    # A file that can be read and says something else is told by the ranges that the table holds.
    assert error.code == ("CHECKPOINT_BEHIND_TABLE" if name == "a position" else "CHECKPOINT_CORRUPT")
    assert any("reset bronze" in remedy for remedy in error.remedies)
    heal(shop)


def test_a_checkpoint_of_plain_spark_is_refused_and_moved_away(shop: Shop) -> None:
    run_twice(shop)
    (shop.checkpoint() / "headrace.json").unlink()
    error = shop.refused()
    assert error.code == "CHECKPOINT_FOREIGN" and "reset bronze" in error.remedies[-1]
    shop.checkpoint().rename(shop.root / "moved-away")
    assert shop.refused().code == "CHECKPOINT_LOST"
    heal(shop)


def test_a_checkpoint_of_another_flow_is_refused(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    shop.restore_copy(shop.keep_copy("silver"))
    error = shop.refused("bronze")
    assert (error.code, error.params["owner"]) == ("CHECKPOINT_FOREIGN", "silver")


class CrashError(Exception):
    """The process ended here."""


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        *(("first", WRITING), ("reset", COMMITTING), ("losses", WRITING)),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("first", COMMITTING), ("reset", WRITING), ("losses", COMMITTING))
        ),
    ],
)
def test_a_crash_while_a_checkpoint_is_opened_leaves_nothing_half_done(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, reason: str, step: str
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise CrashError

    remedy: dict[str, str] = {}
    shop.produce(30)
    if reason == "reset":
        shop.run_well()
        shutil.rmtree(shop.checkpoints())
        remedy = {"reset": "bronze"}
    elif reason == "losses":
        shop.spec["on_data_loss"] = "record"
        shop.write()
        shop.run_well()
        shop.produce(30)
        expire(shop.ledger.bootstrap, shop.topic, {0: 15})
        shop.ledger.forget(lambda record: record.partition == 0 and 10 <= record.offset < 15)
    with monkeypatch.context() as patch:
        patch.setattr(f"headrace.{step}", crash)
        assert shop.run(**remedy).errors[0].code == "FLOW_FAILED"
    shop.run_well(**remedy)
    shop.check()


@pytest.mark.parametrize(
    "step", [COMMITTING, "sources.kind.SourceKind.take_over", "storage.location.Location.copy"]
)
def test_a_crash_while_a_flow_is_renamed_is_mended_by_renaming_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise CrashError

    shop.write(named("old"))
    shop.produce(30)
    shop.run_well()
    shop.write(named("new"))
    shop.produce(30)
    with monkeypatch.context() as patch:
        patch.setattr(f"headrace.{step}", crash)
        assert shop.run(rename_flow={"new": "old"}).errors[0].code == "FLOW_FAILED"
    shop.run_well(rename_flow={"new": "old"})
    shop.check()
