"""The repair of a checkpoint's files, in steps of which each can be the last."""

from __future__ import annotations

import json
from dataclasses import replace

from crashes import EACH_STEP, crash_before_each_write

from headrace.maintain.checkpoints import FlowCheckpoint, find_problems
from headrace.model.names import TableName
from headrace.project.checkpoints import CheckpointReport, repair_files
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity, write_checkpoint
from headrace.storage.layout import Storage
from headrace.storage.location import Location

NAME = TableName("default", "sales")
GOOD = "v1\n{}\n{}"
DAMAGED = {
    "metadata": "no JSON",
    ".metadata.crc": "sum of the metadata",
    "commits/1": "",
    "commits/.1.crc": "sum of the commit",
    "offsets/.1.crc": "a sum that does not match",
}


def checkpoint(root: Location) -> FlowCheckpoint:
    storage = Storage(root)
    source = SourceIdentity(index=0, kind="kafka", identity={"topics": {"t": "id"}})
    identity = CheckpointIdentity(
        pipeline="shop", flow="sales", dataset=str(NAME), generation=1, table_id="t", sources=(source,)
    )
    path = storage.checkpoint(NAME, "sales", 1)
    return FlowCheckpoint(
        storage=storage, dataset=NAME, flow="sales", path=path, identity=identity, committed=1
    )


def report(found: FlowCheckpoint) -> CheckpointReport:
    # What a process has looked at before is not kept.
    fresh = replace(found)
    return CheckpointReport(checkpoint=fresh, problems=tuple(find_problems(fresh)))


@EACH_STEP
def test_a_crash_at_any_step_of_a_repair_loses_no_file_and_the_next_one_goes_on(location: Location) -> None:
    def prepare(root: Location) -> None:
        found = checkpoint(root)
        assert found.identity is not None
        whole = {"offsets/0": GOOD, "offsets/1": GOOD, "commits/0": "v1\n{}"}
        write_checkpoint(found.path, found.identity, {**whole, **DAMAGED})

    def repair(root: Location) -> None:
        found = report(checkpoint(root))
        assert found.can_be_repaired
        repair_files(found, Storage(root))

    crashed = crash_before_each_write(location, prepare, repair)
    assert len(crashed) == 11, "five files, of which one is written anew and four are taken away"
    for root in crashed:
        found = checkpoint(root)
        if (left := report(found)).problems:
            assert root != crashed[-1]
            repair_files(left, Storage(root))
        assert report(found).problems == ()
        assert json.loads((found.path / "metadata").read_text())["id"]
        names = sorted("/".join(file.below(found.path)) for file in found.path.walk())
        assert names == ["commits/0", "headrace.json", "metadata", "offsets/0", "offsets/1"]
        kept = {file.name: file.read_text() for file in Storage(root).backups.walk()}
        assert kept == {name.rpartition("/")[2]: text for name, text in DAMAGED.items()}
