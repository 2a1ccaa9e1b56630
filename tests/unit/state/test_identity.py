"""Whose a checkpoint is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from crashes import EACH_STEP, crash_before_each_write

from headrace.errors import (
    CheckpointCorruptError,
    CheckpointForeignError,
    StorageNewerError,
    StorageUnwritableError,
)
from headrace.model.names import TableName
from headrace.state.checkpoint import (
    FILE,
    CheckpointIdentity,
    SourceIdentity,
    copy_checkpoints,
    discard_checkpoints,
    generations,
    load_identity,
    tidy_renamed,
    write_checkpoint,
)
from headrace.storage.layout import Storage
from headrace.storage.location import Location


def identity(generation: int = 1) -> CheckpointIdentity:
    return CheckpointIdentity(
        pipeline="shop",
        flow="sales",
        dataset="default.sales",
        generation=generation,
        table_id="table",
        sources=(SourceIdentity(index=0, kind="kafka", identity={"topics": {"t": "id-1"}}),),
    )


def test_an_identity_is_read_as_it_was_written(location: Location) -> None:
    made = identity()
    write_checkpoint(location / "0001", made, {"offsets/0": "v1"})
    assert load_identity(location / "0001") == made
    assert (location / "0001" / "offsets" / "0").read_text() == "v1"


def test_no_two_checkpoints_have_the_same_id() -> None:
    assert identity().checkpoint != identity().checkpoint


def test_a_checkpoint_is_created_once(location: Location) -> None:
    folder = location / "sales"
    write_checkpoint(folder / "0001", identity(), {})
    with pytest.raises(StorageUnwritableError):
        write_checkpoint(folder / "0001", identity(), {"offsets/0": "v1"})
    assert not (folder / "0001" / "offsets").exists()
    assert folder.list_folders() == ["0001"]


def test_a_checkpoint_has_its_identity_before_anything_else(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies meanwhile leaves a checkpoint that names itself, and that no table names."""
    written: list[str] = []

    def recorded(method: Callable[[str, bytes], Any]) -> Callable[[str, bytes], Any]:
        def write(path: str, data: bytes) -> Any:
            written.append(path.removeprefix(f"{location}/0001/"))
            return method(path, data)

        return write

    for name in ("create", "replace"):
        monkeypatch.setattr(location.files, name, recorded(getattr(location.files, name)))
    seed = {"offsets/0": "v1", "commits/0": "v1", "sources/0/0": "v1"}
    write_checkpoint(location / "0001", identity(), seed)
    assert written == [FILE, "sources/0/0", "commits/0", "offsets/0"]


def test_the_newest_generation_comes_last_and_other_folders_do_not_count(location: Location) -> None:
    for name in ("0002", "0010", "0001", ".0011.tmp", "kept-aside"):
        (location / name / "headrace.json").replace("{}")
    assert [path.name for path in generations(location)] == ["0001", "0002", "0010"]
    assert generations(location / "nowhere") == ()
    # What a process leaves that is killed before its first file, or while it writes that file.
    (location / "0012").make_folder()
    (location / "0013" / ".headrace.json.1.tmp").replace("{")
    assert len(generations(location)) == 3
    (location / "0014" / "metadata").replace("of plain Spark")
    assert generations(location)[-1].name == "0014"


def test_a_checkpoint_of_plain_spark_is_refused(location: Location) -> None:
    (location / "offsets" / "0").replace("v1")
    with pytest.raises(CheckpointForeignError):
        load_identity(location)


@pytest.mark.parametrize("text", ["", "{half", "{}", "[]", '{"headrace": 1}', '{"headrace": "x"}'])
def test_an_identity_that_cannot_be_read_is_corrupt(location: Location, text: str) -> None:
    (location / FILE).replace(text)
    with pytest.raises(CheckpointCorruptError) as caught:
        load_identity(location)
    assert caught.value.params["path"] == str(location / FILE)


def test_a_checkpoint_of_a_newer_version_is_never_guessed_at(location: Location) -> None:
    (location / FILE).replace(json.dumps({**identity().to_json(), "headrace": 2}))
    with pytest.raises(StorageNewerError):
        load_identity(location)


@EACH_STEP
def test_a_crash_at_any_step_of_a_rename_leaves_one_checkpoint_and_the_next_start_goes_on(
    location: Location,
) -> None:
    old = replace(identity(2), flow="old")
    seed = {"offsets/0": "v1", "commits/0": "v1", "state/0/.1.zip.crc": "sum", "state/0/1.zip": "rows"}

    def folder(root: Location, flow: str) -> Location:
        return Storage(root).flow_checkpoints(TableName("default", "sales"), flow)

    def prepare(root: Location) -> None:
        write_checkpoint(folder(root, "old") / "0001", replace(old, checkpoint="replaced"), seed)
        write_checkpoint(folder(root, "old") / "0002", old, seed)

    def rename(root: Location) -> None:
        copy_checkpoints(folder(root, "old"), folder(root, "sales"), replace(old, flow="sales"))
        discard_checkpoints(folder(root, "old"))

    crashed = crash_before_each_write(location, prepare, rename)
    assert len(crashed) > 20, "each write is a step"
    left = []
    for root in crashed:
        if generations(folder(root, "sales")):
            # The user may take the new name back first: then the target has no checkpoint of the old one.
            tidy_renamed(folder(root, "old"), {"old"}, None)
        tidy_renamed(folder(root, "sales"), {"sales"}, old.checkpoint)
        found = {flow: known for flow in ("old", "sales") if (known := generations(folder(root, flow)))}
        ((flow, (replaced, newest)),) = found.items()
        assert load_identity(newest) == replace(old, flow=flow)
        for path in (replaced, newest):
            assert {
                "/".join(file.below(path)): file.read_text() for file in path.walk() if file.name != FILE
            } == seed
        left.append(flow)
        if flow == "old":
            assert folder(root, "sales").entries() == []
            rename(root)
        assert generations(folder(root, "sales")) and not generations(folder(root, "old"))
    assert left == sorted(left) and {*left} == {"old", "sales"}
