"""What a crash looks like on disk, and what ends the processes of a demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stores import At, on_disk

from headrace.errors import DemoDriverError
from headrace.model.names import TableName
from headrace.project.demo.driver import Crash, Driver, await_batch, look_at_crash
from headrace.state.checkpoint import CheckpointIdentity, load_identity, write_checkpoint
from headrace.storage.layout import Storage
from waiting import until

BRONZE = TableName("default", "bronze")


@pytest.fixture
def storage(at: At, tmp_path: Path) -> Storage:
    storage = Storage(at(tmp_path))
    identity = CheckpointIdentity(
        pipeline="demo", flow="bronze", dataset=str(BRONZE), generation=1, table_id="t", sources=()
    )
    write_checkpoint(storage.checkpoint(BRONZE, "bronze", 1), identity, {})
    return storage


def plan(storage: Storage, kind: str, *batches: int) -> None:
    folder = storage.checkpoint(BRONZE, "bronze", 1) / kind
    for batch in batches:
        (folder / str(batch)).replace("v1\n")


def look(storage: Storage) -> Crash:
    return look_at_crash(storage, BRONZE, "bronze")


def test_offsets_without_commits_is_a_crash_inside_a_batch(storage: Storage) -> None:
    plan(storage, "offsets", 0, 1, 2)
    plan(storage, "commits", 0, 1)
    crash = look(storage)
    assert (crash.planned, crash.finished, crash.inside_batch, crash.in_table) == (2, 1, True, False)


def test_a_crash_between_two_batches_is_not(storage: Storage) -> None:
    plan(storage, "offsets", 0, 1)
    plan(storage, "commits", 0, 1)
    assert not look(storage).inside_batch


def test_a_crash_after_the_commit_says_that_the_table_holds_the_batch(storage: Storage) -> None:
    plan(storage, "offsets", 0, 1)
    plan(storage, "commits", 0)
    checkpoint = load_identity(storage.checkpoint(BRONZE, "bronze", 1)).checkpoint
    log = on_disk(storage.table(BRONZE)) / "_delta_log"
    log.mkdir(parents=True)
    said = json.dumps({"headrace": 1, "checkpoint": checkpoint, "batch": 1})
    lines = [
        json.dumps({"commitInfo": {"userMetadata": said}}, separators=(",", ":")),
        json.dumps({"txn": {"appId": checkpoint, "version": 1}}, separators=(",", ":")),
    ]
    (log / f"{3:020d}.json").write_text("\n".join(lines))
    assert look(storage).in_table


def test_a_batch_under_way_is_seen_and_none_is_given_up(storage: Storage) -> None:
    plan(storage, "offsets", 0)
    plan(storage, "commits", 0)
    assert not await_batch(storage, BRONZE, "bronze", timeout_s=0.05, check=lambda: None)
    plan(storage, "offsets", 1)
    assert await_batch(storage, BRONZE, "bronze", timeout_s=5, check=lambda: None)


def test_the_lines_of_the_process_are_events_and_its_error_is_told(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text('{"error": {"code": "OLD", "summary": "of the process before"}}\n')
    seen: list[object] = []
    driver = Driver(tmp_path / "nothing", environment={}, log_file=log, emit=seen.append)
    with pytest.raises(DemoDriverError) as ended:
        until(lambda: driver.check(), "it ends")
    assert "[SPEC_NOT_FOUND]" in ended.value.facts[0]
    assert ended.value.params["exit_code"] == 2
    assert seen == []
