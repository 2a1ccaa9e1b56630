"""The ledger's lists of files: one for each batch."""

from __future__ import annotations

import json

import pytest
from crashes import EACH_STEP, crash_before_each_write

from headrace.errors import CheckpointCorruptError
from headrace.sources.files.lists import (
    FileLists,
    ReadFile,
    are_whole,
    covers,
    describe_files,
    join_descriptions,
)
from headrace.storage.location import Location


def read(number: int, **more: object) -> ReadFile:
    return ReadFile(source=0, log=number, path=f"file:///in/{number}", size=1, modified=1, **more)  # type: ignore[arg-type]


def test_lists_are_replaced_and_known_to_be_whole(location: Location) -> None:
    lists = FileLists(location / "files")
    lists.write("c", 0, [read(0)])
    lists.write("c", 1, [read(1), read(2, lost=True)])
    lists.write("c", 1, [read(1)])
    assert lists.load("c", 1) == (read(1),)
    assert lists.load("c", 7) is None
    files = lists.load_source("c", 0, 1)
    assert are_whole(files, 1, {"total": 2})
    assert not are_whole(files, 1, {"total": 3})
    assert not are_whole(files, 1, None)
    assert not covers(files, 2)
    assert covers([read(0, carried=True), read(1)], 1)


def test_packed_lists_say_the_same(location: Location) -> None:
    lists = FileLists(location / "files")
    for number in range(5):
        lists.write("c", number, [read(number)])
    before = lists.load_source("c", 0, 4)
    lists.pack("c", 2)
    lists.pack("c", 3)
    # A crash between the writing of a pack and the removal of what is in it.
    lists.write("c", 1, [read(1)])
    assert lists.load_source("c", 0, 4) == before
    assert [lists.load("c", number) for number in range(6)] == [*((read(n),) for n in range(5)), None]
    assert (location / "files" / "c").list_files() == [
        "000000000000-000000000002.jsonl",
        "000000000001.jsonl",
        "000000000003-000000000003.jsonl",
        "000000000004.jsonl",
    ]


@EACH_STEP
def test_a_crash_at_any_step_of_a_takeover_loses_no_list_and_the_next_one_goes_on(location: Location) -> None:
    def lists(root: Location, flow: str) -> FileLists:
        return FileLists.of_ledger(root / flow)

    def prepare(root: Location) -> None:
        for checkpoint in ("b", "c"):
            for number in range(4):
                lists(root, "old").write(checkpoint, number, [read(number)])
            lists(root, "old").pack(checkpoint, 1)

    def take_over(root: Location) -> None:
        lists(root, "new").take_over(lists(root, "old"))

    crashed = crash_before_each_write(location, prepare, take_over)
    assert len(crashed) == 13, "six files, each copied and deleted"
    for root in crashed:
        take_over(root)
        for checkpoint in ("b", "c"):
            assert lists(root, "new").load_source(checkpoint, 0, 3) == tuple(map(read, range(4)))
            assert lists(root, "old").load_source(checkpoint, 0, 3) == ()


def test_a_list_that_cannot_be_read_is_refused(location: Location) -> None:
    lists = FileLists(location)
    lists.write("c", 0, [read(0)])
    (location / "c" / "000000000000.jsonl").replace('{"source": 0}\n')
    with pytest.raises(CheckpointCorruptError):
        lists.load("c", 0)


def test_what_two_batches_say_together_depends_on_both() -> None:
    one, two = describe_files([read(0)], 1), describe_files([read(1), read(2)], 3)
    joined = join_descriptions(one, two)
    assert (joined["count"], joined["bytes"], joined["total"]) == (3, 3, 3)
    assert joined["sha256"] != join_descriptions(two, one)["sha256"]
    assert json.loads(read(0, lost=True).to_line())["lost"] is True
    assert ReadFile(**json.loads(read(0).to_line())) == read(0)
