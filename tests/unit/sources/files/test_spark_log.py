"""Spark's log of files, plain and compacted."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.errors import CheckpointCorruptError
from headrace.sources.files.lists import (
    ReadFile,
    SeenFiles,
    find_earlier,
    last_entry,
    load_entries,
    load_seen,
    seed_log,
)
from headrace.state.checkpoint import SourceIdentity
from headrace.storage.location import Location

SOURCE = SourceIdentity(index=0, kind="files", identity={"path": "/in"})


def entry(number: int) -> str:
    return f'{{"path":"file:///in/{number}","timestamp":1,"batchId":{number}}}'


def write_log(checkpoint: Location, last: int, compacted: int = -1) -> None:
    """Spark's log up to an entry, as it lies there after the compacted one's elders were removed."""
    folder = checkpoint / "sources" / "0"
    if compacted >= 0:
        lines = ["v1", *(entry(n) for n in range(compacted + 1))]
        (folder / f"{compacted}.compact").replace("\n".join(lines))
    for number in range(compacted + 1, last + 1):
        (folder / str(number)).replace("\n".join(["v1", entry(number)]))
    folder.files.replace(f"{folder}/.0.crc", b"\xff\x00")


def read(number: int, **more: object) -> ReadFile:
    return ReadFile(source=0, log=number, path=f"file:///in/{number}", size=1, modified=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("compacted", [-1, 9])
def test_entries_are_found_in_a_plain_log_and_in_a_compacted_one(location: Location, compacted: int) -> None:
    write_log(location, 12, compacted)
    assert load_entries(location, 0, 9, 11) == {n: [f"file:///in/{n}"] for n in (9, 10, 11)}
    assert load_seen(location, 0) == {f"file:///in/{n}": n for n in range(13)}
    assert last_entry(location, 0) == 12


def test_a_log_that_is_not_sparks_is_refused(location: Location) -> None:
    write_log(location, 1)
    (location / "sources/0/1").replace("v2\n")
    with pytest.raises(CheckpointCorruptError):
        load_entries(location, 0, 1, 1)
    (location / "sources/0/1").delete()
    with pytest.raises(CheckpointCorruptError):
        load_entries(location, 0, 1, 1)
    assert load_seen(location, 0) == {"file:///in/0": 0}
    assert last_entry(location / "nowhere", 0) == -1


@pytest.mark.parametrize("interval", [1, 3, 10])
@pytest.mark.parametrize("last", [0, 1, 8, 9, 10, 23])
def test_a_seeded_log_keeps_its_numbers_and_names_every_file(
    location: Location, last: int, interval: int
) -> None:
    files = [read(n, carried=True) for n in range(last + 1)]
    for name, text in seed_log(SOURCE, last, files, interval).items():
        (location / name).replace(text)
    assert load_seen(location, 0) == {file.path: file.log for file in files}
    assert last_entry(location, 0) == last
    # Spark reads the newest compacted entry and all that follow it.
    held = set((location / "sources/0").list_files())
    compacted = (last + 1) // interval * interval - 1
    assert held == ({f"{compacted}.compact"} if compacted >= 0 else {"0"}) | {
        str(n) for n in range(max(compacted, 0) + 1, last + 1)
    }


def test_many_files_that_were_read_take_little_memory_and_are_found_again() -> None:
    SeenFiles({})  # imports NumPy
    tracemalloc.start()
    try:
        seen = SeenFiles({f"file:///in/a-long-name-of-a-file-{n}.json": n // 100 for n in range(50_000)})
        for n in range(50_000, 100_000):
            seen.add(f"file:///in/a-long-name-of-a-file-{n}.json", n // 100)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 25 * len(seen), "less than the paths themselves"
    assert len(seen) == 100_000
    for n in (0, 49_999, 50_000, 99_999):
        path = f"file:///in/a-long-name-of-a-file-{n}.json"
        assert seen.entry_of(path) == n // 100
        seen.add(path, n // 100)
    assert len(seen) == 100_000, "a replay adds nothing"
    assert seen.entry_of("file:///in/other.json") is None


@pytest.mark.parametrize("compacted", [-1, 9])
def test_a_file_that_an_earlier_entry_holds_is_found_in_the_log(location: Location, compacted: int) -> None:
    write_log(location, 12, compacted)
    paths = [f"file:///in/{number}" for number in (3, 11, 12, 40)]
    assert find_earlier(location, 0, paths, 12) == ["file:///in/11", "file:///in/3"]
    assert find_earlier(location, 0, (), 12) == []
