"""`plan` and a run at the same time: each reads or writes one file after another."""

from __future__ import annotations

import pytest

from headrace import Pipeline
from headrace.project.engine import Engine
from headrace.sinks.delta.table import TableState
from headrace.storage.layout import ReadOnceFiles
from headrace.storage.location import Location
from proof.fixtures import ON_BOTH
from proof.shop import Shop


@ON_BOTH
def test_a_batch_that_is_committed_during_a_plan_is_no_refusal(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.produce(20)
    shop.run_well()
    batches = [1, 1]

    def read_table(self: Engine, path: Location) -> TableState:
        """The state of the table, and then another batch: its checkpoint is read later."""
        state = original(self, path)
        if batches and isinstance(path.files, ReadOnceFiles):
            batches.pop()
            shop.produce(10)
            shop.run_well()
        return state

    original = Engine.read_table
    with Pipeline.load(shop.root) as pipeline:
        monkeypatch.setattr(Engine, "read_table", read_table)
        plan = pipeline.plan()
        assert not batches
        assert [str(one) for one in plan.refusals] == []
        # The same pipeline, which has planned: a run reads what others have written meanwhile.
        monkeypatch.undo()
        shop.produce(10)
        shop.run_well()
        assert pipeline.plan().refusals == ()
        shop.produce(10)
        assert pipeline.run().outcome == "completed"
    shop.check()


@ON_BOTH
def test_a_refusal_that_lasts_is_reported(shop: Shop) -> None:
    shop.produce(20)
    shop.run_well()
    for file in list((shop.checkpoint() / "offsets").iterdir()):
        file.unlink()
    with Pipeline.load(shop.root) as pipeline:
        refusals = pipeline.plan().refusals
    assert [one.code for one in refusals] == ["CHECKPOINT_BEHIND_TABLE"]
