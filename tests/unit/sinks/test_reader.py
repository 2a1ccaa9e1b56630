"""The commits that a Delta table tells of itself."""

from __future__ import annotations

import json
from pathlib import Path

from stores import At

from headrace.sinks.delta.reader import DeltaCommits


def test_the_batches_of_a_flow_come_newest_first(at: At, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()

    def commit(version: int, transaction: int | None = None, **held: object) -> None:
        info = {"commitInfo": {"userMetadata": json.dumps({"headrace": 1, **held})}}
        txn = {"txn": {"appId": held.get("checkpoint"), "version": transaction}}
        lines = [info] if transaction is None else [info, txn]
        (log / f"{version:020d}.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    commit(0, opens={}, flow="a", checkpoint="c")
    commit(1, 0, flow="a", checkpoint="c", batch=0, input=5)
    commit(2, 0, flow="b", checkpoint="d", batch=0, input=6)
    commit(3, flow="a", replay="r", input=7)
    # Auto compaction repeats the metadata of the batch before it.
    commit(4, flow="a", checkpoint="c", batch=0, input=5)
    commit(5, 1, flow="a", checkpoint="c", batch=1, input=8)
    assert [one["input"] for one in DeltaCommits(at(tmp_path)).newest_batches() if one["flow"] == "a"] == [
        8,
        5,
    ]


def test_batches_are_read_only_after_a_version(at: At, tmp_path: Path) -> None:
    log = at(tmp_path) / "_delta_log"
    log.make_folder()
    for version in range(5):
        held = {"headrace": 1, "flow": "a", "checkpoint": "c", "batch": version}
        info = {"commitInfo": {"timestamp": 1, "userMetadata": json.dumps(held)}}
        txn = {"txn": {"appId": "c", "version": version}}
        (log / f"{version:020d}.json").replace(f"{json.dumps(info)}\n{json.dumps(txn)}\n")
    for version in range(3):
        (log / f"{version:020d}.json").replace("damaged {")
    assert [one["batch"] for one in DeltaCommits(at(tmp_path)).newest_batches(2)] == [4, 3]
