"""What a crash looks like on disk, and what ends the processes of a demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from stores import At, on_disk

from headrace.model.names import TableName
from headrace.project.demo.driver import Crash, await_batch, end_leftover, look_at_crash
from headrace.state.identity import CheckpointIdentity, load_identity, write_checkpoint
from headrace.storage.layout import Storage

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


def test_a_process_left_by_a_killed_demo_is_ended_and_no_other(tmp_path: Path) -> None:
    pid_file = tmp_path / "driver.json"
    assert not end_leftover(pid_file)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        started = psutil.Process(process.pid).create_time()
        # Another process that was given the same number.
        pid_file.write_text(json.dumps({"pid": process.pid, "started": started - 100}))
        assert not end_leftover(pid_file)
        assert process.poll() is None
        pid_file.write_text(json.dumps({"pid": process.pid, "started": started}))
        assert end_leftover(pid_file)
        assert not psutil.pid_exists(process.pid)
