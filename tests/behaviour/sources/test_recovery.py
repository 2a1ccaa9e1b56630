"""What every source promises after a crash or a loss: nothing twice, nothing lost, or a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.run import narrowing

if TYPE_CHECKING:
    from behaviour.sources.conftest import Harness

pytestmark = pytest.mark.proof


def test_a_batch_that_was_not_committed_is_read_again_with_the_same_records(
    source: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the records on which the query fails would be quarantined.
    monkeypatch.setattr(narrowing, "MOST_RAISING", 0)
    source.append(1, 2)
    source.fails.touch()
    assert source.error().code == "FLOW_FAILED"
    source.fails.unlink()
    source.append(3)
    source.run_after_replay()
    assert source.ids() == [1, 2, 3]
    assert source.batches()[source.first_batch]["input"] == 2


def test_a_batch_that_spark_has_not_marked_as_finished_is_not_written_again(source: Harness) -> None:
    source.append(1, 2)
    source.run_well()
    newest = max(source.checkpoint.glob("commits/[0-9]*"), key=lambda one: int(one.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    source.append(3)
    source.run_after_replay()
    assert source.ids() == [1, 2, 3]


def test_after_a_lost_checkpoint_the_table_says_where_to_continue_or_all_is_read_again(
    source: Harness,
) -> None:
    source.append(1, 2)
    source.run_well()
    source.lose_checkpoint()
    source.append(3)
    lost = source.error()
    assert lost.code == "CHECKPOINT_LOST"
    resumed = any("reset events" in remedy for remedy in lost.remedies)
    assert resumed == source.resumes
    if source.resumes:
        source.run_well(reset=frozenset(["events"]))
        assert source.ids() == [1, 2, 3]
        assert source.verdicts() == source.grades
    else:
        refused = source.error(reset=frozenset(["events"]))
        assert refused.code == "RESUME_IMPOSSIBLE"
        assert any("full-refresh" in remedy for remedy in (*lost.remedies, *refused.remedies))
        assert source.ids() == [1, 2]
