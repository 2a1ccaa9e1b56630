"""What reads a table that its failed flow has never written is not started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stores import At
from tests.unit.plan.test_stages import flow, opened, view

from headrace.errors import HeadraceError, SourceLocation, TableLostError
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.plan.stages import Plan, RunFlowStage
from headrace.run.readiness import (
    Feed,
    FeedState,
    Skip,
    StaleUpstream,
    Verdict,
    _error,
    find_blocked,
    is_written,
    judge_inputs,
)

BRONZE = TableName("default", "bronze")
DAYS = TableName("default", "days")


def judge(*states: FeedState, written: bool = False) -> Verdict:
    feeds = [Feed(f"flow {n}", state) for n, state in enumerate(states)]
    return judge_inputs([BRONZE], lambda table: feeds, lambda table: written)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], "ready"),
        (["working"], "ready"),
        (["pending"], "wait"),
        (["retrying"], "wait"),
        (["working", "failed"], "ready"),
        (["working", "retrying"], "ready"),
        (["working", "pending"], "wait"),
        (["failed", "pending"], "wait"),
        (["failed", "retrying"], "wait"),
    ],
)
def test_a_reader_starts_when_a_flow_of_the_table_works(states: list[FeedState], expected: str) -> None:
    assert judge(*states) == expected


@pytest.mark.parametrize("state", ["pending", "retrying", "failed", "skipped"])
def test_a_table_that_was_written_before_is_read(state: FeedState) -> None:
    assert judge(state, written=True) == "ready"


def test_the_reason_names_the_table_and_the_flows_that_failed() -> None:
    found = judge("failed", "failed")
    assert isinstance(found, Skip)
    assert found.reason == "it reads bronze, which has no data: flow 0 and flow 1 failed"


def test_what_reads_a_skipped_table_is_skipped_and_names_the_same_flow() -> None:
    feeds = {BRONZE: [Feed("flow bronze", "skipped", ("flow raw",))], DAYS: [Feed("view days", "pending")]}
    found = judge_inputs([DAYS, BRONZE], feeds.__getitem__, lambda table: False)
    assert found == Skip(reason="it reads bronze, which was skipped: flow raw failed", failed=("flow raw",))


def test_the_readers_of_a_table_that_cannot_be_opened_are_skipped(
    make_project: Callable[[], ProjectSettings],
) -> None:
    lost = TableLostError("the table bronze is missing")
    plan = Plan(
        project=make_project(),
        datasets=(),
        all_levels=(
            (opened("bronze"), RunFlowStage(planned=flow("bronze", "bronze"))),
            (RunFlowStage(planned=flow("silver", "silver", "bronze")), view("days", "bronze")),
            (view("weeks", "days"),),
        ),
    )
    skip = Skip(reason="it reads bronze, which could not be opened (TABLE_LOST)", failed=("bronze",))
    assert find_blocked(plan, {BRONZE: lost}) == {"bronze": lost, "silver": skip, "default.days": skip}


def test_a_name_with_braces_is_kept_in_the_remedy() -> None:
    stale = StaleUpstream(why="has other columns", facts=(), remedy="headrace run a{b {reader}")
    error = _error("days", DAYS, SourceLocation("a.py", 1), [BRONZE], {"fields": []}, {BRONZE: stale})
    assert isinstance(error, HeadraceError)
    assert error.remedies == ("headrace run a{b days",)


def commit(table: Path, version: int, *, metadata: Any = None, add: bool = False, txn: Any = None) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    info: dict[str, Any] = {"operation": "X"}
    if metadata is not None:
        info["userMetadata"] = json.dumps({"headrace": 1, **metadata})
    lines: list[dict[str, Any]] = [{"commitInfo": info}]
    if txn is not None:
        lines.append({"txn": {"appId": txn[0], "version": txn[1]}})
    if add:
        lines.append({"add": {"path": "a", "dataChange": True}})
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (log / f"{version:020d}.json").write_text(text)


OPENS = {"flow": "f", "checkpoint": "c", "opens": {"reason": "first"}}
CLEARS = {"flow": "f", "checkpoint": "d", "opens": {"reason": "full-refresh"}}
BATCH = {"flow": "f", "checkpoint": "c", "batch": 0}


def test_a_table_is_written_by_its_first_batch_also_by_an_empty_one(at: At, tmp_path: Path) -> None:
    assert not is_written(at(tmp_path))
    commit(tmp_path, 0)
    commit(tmp_path, 1, metadata=OPENS)
    assert not is_written(at(tmp_path))
    commit(tmp_path, 2, metadata=BATCH, txn=("c", 0))
    assert is_written(at(tmp_path))
    commit(tmp_path, 3, metadata=CLEARS, add=False)
    assert not is_written(at(tmp_path)), "emptied by a full refresh"


def test_another_writer_s_rows_count(at: At, tmp_path: Path) -> None:
    commit(tmp_path, 0)
    commit(tmp_path, 1, add=True)
    commit(tmp_path, 2, metadata=OPENS)
    assert is_written(at(tmp_path))


def test_a_table_whose_oldest_commits_were_cleaned_is_not_new(at: At, tmp_path: Path) -> None:
    commit(tmp_path, 7)
    assert is_written(at(tmp_path))


def test_a_view_is_written_by_its_refresh(at: At, tmp_path: Path) -> None:
    commit(tmp_path, 0, metadata={"view": "v"})
    assert is_written(at(tmp_path))
