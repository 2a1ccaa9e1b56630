"""Whose a checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.errors import (
    CheckpointCorruptError,
    CheckpointForeignError,
    StorageNewerError,
    StorageUnwritableError,
)
from headrace.state.identity import (
    FILE,
    CheckpointIdentity,
    SourceIdentity,
    generations,
    load_identity,
    write_checkpoint,
)


def identity(generation: int = 1) -> CheckpointIdentity:
    return CheckpointIdentity.create(
        pipeline="shop",
        flow="sales",
        dataset="default.sales",
        generation=generation,
        table_id="table",
        sources=(SourceIdentity(index=0, kind="kafka", identity={"topics": {"t": "id-1"}}),),
    )


def test_an_identity_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = identity()
    write_checkpoint(tmp_path / "0001", made, {"offsets/0": "v1"})
    assert load_identity(tmp_path / "0001") == made
    assert (tmp_path / "0001" / "offsets" / "0").read_text() == "v1"


def test_no_two_checkpoints_have_the_same_id() -> None:
    assert identity().checkpoint != identity().checkpoint


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    write_checkpoint(folder / "0001", identity(), {})
    with pytest.raises(StorageUnwritableError):
        write_checkpoint(folder / "0001", identity(), {"offsets/0": "v1"})
    assert not (folder / "0001" / "offsets").exists()
    assert [path.name for path in folder.iterdir()] == ["0001"]


def test_the_newest_generation_comes_last_and_other_folders_do_not_count(tmp_path: Path) -> None:
    for name in ("0002", "0010", "0001", ".0011.tmp", "kept-aside"):
        (tmp_path / name).mkdir()
    assert [path.name for path in generations(tmp_path)] == ["0001", "0002", "0010"]
    assert generations(tmp_path / "nowhere") == ()


def test_a_checkpoint_of_plain_spark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    with pytest.raises(CheckpointForeignError):
        load_identity(tmp_path)


@pytest.mark.parametrize("text", ["", "{half", "{}", "[]", '{"headrace": 1}', '{"headrace": "x"}'])
def test_an_identity_that_cannot_be_read_is_corrupt(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointCorruptError) as caught:
        load_identity(tmp_path)
    assert caught.value.params["path"] == str(tmp_path / FILE)


def test_a_checkpoint_of_a_newer_version_is_never_guessed_at(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**identity().to_json(), "headrace": 2}))
    with pytest.raises(StorageNewerError):
        load_identity(tmp_path)
