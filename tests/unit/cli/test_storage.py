"""A copy of a storage: whole, verified, and never taken for complete before its end."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import (
    SecondDriverError,
    StorageCopyFailedError,
    StorageCopyRefusedError,
    StorageIncompleteError,
)
from headrace.model.names import TableName
from headrace.project import copying
from headrace.project.copying import copy_storage
from headrace.state.checkpoint import CheckpointIdentity, SourceIdentity, load_identity, write_checkpoint
from headrace.state.lease import Heart
from headrace.storage.guarantee import RECORD
from headrace.storage.layout import MARKER, Storage, check_complete
from headrace.storage.local import LocalFiles
from headrace.storage.location import PART_BYTES, Location
from unit.cli.conftest import Call

SALES = TableName("default", "sales")
LARGE = os.urandom(2 * PART_BYTES + 7)


def write(root: Location, name: str, data: bytes) -> None:
    (root / name).write(iter([data]))


def add_checkpoint(storage: Storage, flow: str, *sources: tuple[str, str]) -> None:
    identity = CheckpointIdentity(
        pipeline="shop",
        flow=flow,
        dataset="default.sales",
        generation=1,
        table_id="t1",
        sources=tuple(
            SourceIdentity(index=index, kind=kind, identity={"table_id": "t0", "path": path})
            for index, (kind, path) in enumerate(sources)
        ),
    )
    write_checkpoint(storage.checkpoint(SALES, flow, 1), identity, {"offsets/0": "v1\n{}\n{}"})


@pytest.fixture
def source(tmp_path: Path) -> Storage:
    storage = Storage.at(tmp_path / "lake")
    root = storage.root
    add_checkpoint(storage, "sales", ("delta", f"{root}/tables/default/raw"), ("files", "/landing"))
    for name in (
        *("leases/default.sales.gone.json", "leases/processes/1.json", "care/requests/default.sales.json"),
        *(
            RECORD,
            "tables/default/sales/_delta_log/.0.json.crc",
            "checkpoints/default.sales/sales/0001/.x.tmp",
        ),
    ):
        write(root, name, b"left")
    for name in (
        *("tables/default/sales/part-1.parquet", "tables/default/sales/deletion_vector_1.bin"),
        *("tables/default/sales/_delta_log/00000000000000000000.json", "ledger/default.sales/sales/1.json"),
        *(
            "care/default.sales.json",
            "events/_delta_log/00000000000000000000.json",
            "pins/default.sales.json",
        ),
    ):
        write(root, name, name.encode())
    with (Path(root.path) / "tables/default/sales/large.parquet").open("wb") as file:
        file.write(LARGE)
    return storage


def contents(root: Location) -> dict[str, bytes]:
    return {"/".join(file.below(root)): file.read_bytes() for file in root.walk()}


def expected(source: Storage) -> dict[str, bytes]:
    """The files of a whole copy, but the identities of checkpoints."""
    held = contents(source.root)
    return {
        name: data for name, data in held.items() if data != b"left" and not name.endswith("headrace.json")
    }


def test_a_copy_is_whole_and_the_source_stays_as_it_is(source: Storage, location: Location) -> None:
    before, target = contents(source.root), Storage(location / "v1")
    done = copy_storage(source, target)
    assert contents(source.root) == before
    held = contents(target.root)
    held.pop(RECORD, None)
    identity = held.pop("checkpoints/default.sales/sales/0001/headrace.json")
    assert held == expected(source)
    assert (done["files"], done["kept"]) == (len(held) + 1, 0)
    assert done["size_bytes"] == sum(map(len, held.values())) + len(identity)
    table, landing = load_identity(target.checkpoint(SALES, "sales", 1)).sources
    assert table.identity["path"] == f"{target.root}/tables/default/raw", "where the table is now"
    assert landing.identity["path"] == "/landing"
    check_complete(target.root)


def test_the_way_back_gives_the_same_files(source: Storage, location: Location, tmp_path: Path) -> None:
    copy_storage(source, Storage(location / "v1"))
    back = Storage.at(tmp_path / "back")
    copy_storage(Storage(location / "v1"), back)
    assert {k: v for k, v in contents(back.root).items() if not k.endswith("headrace.json")} == expected(
        source
    )
    (table, _) = load_identity(back.checkpoint(SALES, "sales", 1)).sources
    if not location.path.startswith("memory:"):  # which is no location that a checkpoint can name
        assert table.identity["path"] == f"{back.root}/tables/default/raw"


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("writes", [0, 1, 3, 6, 8])
def test_a_copy_that_is_killed_is_refused_and_goes_on(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, headrace: Call
) -> None:
    target, left, original = Storage.at(tmp_path / "copy"), [writes], LocalFiles.write
    monkeypatch.setattr(copying, "_WORKERS", 1)

    def killing(self: LocalFiles, path: str, parts: Iterator[bytes]) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        original(self, path, parts)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "write", killing)
        with pytest.raises(Killed):
            copy_storage(source, target)
    with pytest.raises(StorageIncompleteError):
        check_complete(target.root)
    assert {one.rpartition("/")[2] for one in contents(target.root) if "_delta_log" in one} <= {
        "00000000000000000000.json"
    }
    (tmp_path / "headrace.yml").write_text("name: shop\nstorage: ./copy\n")
    for command in (
        ("status",),
        ("verify",),
        ("plan",),
        ("run",),
        ("tables",),
        ("events",),
        ("read", "sales"),
    ):
        error = headrace(*command, "--json").data["error"]
        assert error["code"] == "STORAGE_INCOMPLETE", command
        assert error["remedies"][0].endswith(
            f"headrace storage copy --storage {source.root} --to {target.root}"
        )
    # Meanwhile the source went on: a file is new, another one is gone, and a third one has another content.
    write(source.root, "tables/default/sales/part-2.parquet", b"new")
    (source.root / "tables/default/sales/part-1.parquet").delete()
    write(source.root, "pins/default.sales.json", b"pins/default.SALES.json")
    remedy = error["remedies"][0].partition("headrace ")[2].split()
    done = headrace(*remedy, "--json").data
    assert done.get("done"), done
    held = {k: v for k, v in contents(target.root).items() if not k.endswith("headrace.json")}
    assert held == expected(source)


def test_data_files_that_are_there_are_not_copied_again(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, written, original = Storage.at(tmp_path / "copy"), list[str](), LocalFiles.write

    def noting(self: LocalFiles, path: str, parts: Iterator[bytes]) -> None:
        written.append(path.removeprefix(f"{target.root}/"))
        original(self, path, parts)

    monkeypatch.setattr(LocalFiles, "write", noting)
    with monkeypatch.context() as patch:
        patch.setattr(copying._Copy, "_verify", killed)
        with pytest.raises(Killed):
            copy_storage(source, target)
    assert "tables/default/sales/large.parquet" in written
    written.clear()
    assert copy_storage(source, target)["kept"] == 3
    assert written and not [one for one in written if one.endswith((".parquet", ".bin"))]


def test_what_the_target_holds_is_not_overwritten(source: Storage, tmp_path: Path) -> None:
    target = Storage.at(tmp_path / "copy")
    copy_storage(source, target)
    before = contents(target.root)
    with pytest.raises(StorageCopyRefusedError, match="not empty"):
        copy_storage(source, target)
    (target.root / MARKER).replace_json({"from": "/other"})
    with pytest.raises(StorageCopyRefusedError, match="incomplete copy of /other"):
        copy_storage(source, target)
    (target.root / MARKER).delete()
    assert contents(target.root) == before
    for nested in (source.root / "copy", source.root.parent, source.root):
        with pytest.raises(StorageCopyRefusedError, match="one is in the other"):
            copy_storage(source, Storage(nested))
    with pytest.raises(StorageCopyRefusedError, match="nothing to copy"):
        copy_storage(Storage.at(tmp_path / "empty"), Storage.at(tmp_path / "new"))


def test_a_storage_that_is_in_use_is_not_copied(source: Storage, tmp_path: Path) -> None:
    target = Storage.at(tmp_path / "copy")
    with Heart() as heart:
        heart.acquire(source.lease(SALES, "sales"), "sales")
        with pytest.raises(SecondDriverError) as caught:
            copy_storage(source, target)
    assert caught.value.remedies[0].endswith(
        f"headrace storage copy --storage {source.root} --to {target.root}"
    )
    assert not target.root.exists()


@pytest.mark.parametrize("pattern", ["once/*.json", "snapshots/default.sales/*.json"])
def test_a_checkpoint_that_names_files_of_the_storage_is_refused(
    source: Storage, tmp_path: Path, pattern: str
) -> None:
    add_checkpoint(source, "first", ("files", f"{source.root}/{pattern}"))
    with pytest.raises(StorageCopyRefusedError, match="flow first names files of the storage by their paths"):
        copy_storage(source, Storage.at(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_a_link_to_a_folder_outside_is_refused(source: Storage, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "lake/tables/default/elsewhere").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageCopyRefusedError, match="is a link"):
        copy_storage(source, Storage.at(tmp_path / "copy"))


@pytest.mark.parametrize("name", ["tables/default/sales/part-9.parquet", "pins/default.sales.json"])
def test_a_source_that_changes_meanwhile_leaves_the_copy_incomplete(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A new file, and another content of the same size."""
    target, original = Storage.at(tmp_path / "copy"), LocalFiles.write

    def changing(self: LocalFiles, path: str, parts: Iterator[bytes]) -> None:
        original(self, path, parts)
        if path.endswith("large.parquet"):
            original(self, f"{source.root}/{name}", iter([name.upper().encode()]))

    monkeypatch.setattr(LocalFiles, "write", changing)
    with pytest.raises(StorageCopyFailedError, match=rf"{re.escape(name)} has changed"):
        copy_storage(source, target)
    with pytest.raises(StorageIncompleteError):
        check_complete(target.root)


def test_a_file_that_differs_after_it_was_written_is_found(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalFiles.write

    def damaging(self: LocalFiles, path: str, parts: Iterator[bytes]) -> None:
        original(self, path, (part[::-1] if path.endswith("part-1.parquet") else part for part in parts))

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "write", damaging)
        with pytest.raises(StorageCopyFailedError, match=r"part-1\.parquet differs"):
            copy_storage(source, Storage.at(tmp_path / "copy"))
    # A process that was killed before its look has left the damaged file.
    target = Storage.at(tmp_path / "copy")
    for damaged in target.root.local_path.rglob("*.parquet"):
        damaged.write_bytes(damaged.read_bytes()[::-1])
    copy_storage(source, target)
    for file in source.root.local_path.rglob("*.parquet"):
        copied = target.root.local_path / file.relative_to(source.root.local_path)
        assert copied.read_bytes() == file.read_bytes()


def test_a_copy_that_another_process_has_taken_over_deletes_nothing(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, later = Storage.at(tmp_path / "copy"), tmp_path / "copy" / "tables" / "later.parquet"

    def asleep(root: Location) -> None:
        monkeypatch.undo()
        (tmp_path / "copy" / "copying.json").unlink()
        later.parent.mkdir(parents=True, exist_ok=True)
        later.write_bytes(b"of a run")

    monkeypatch.setattr(copying, "check_guarantee", asleep)
    with pytest.raises(StorageCopyFailedError, match="another process"):
        copy_storage(source, target)
    assert later.exists()


def test_a_copy_that_wakes_up_before_its_mark_deletes_nothing_of_a_storage_that_is_in_use(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, later = Storage.at(tmp_path / "copy"), "tables/default/sales/later.parquet"
    original = copying._Copy._mark

    def asleep(self: copying._Copy) -> bool:
        monkeypatch.undo()
        copying._Copy(source.root, target.root).run()
        write(target.root, later, b"of a run")
        return original(self)

    monkeypatch.setattr(copying._Copy, "_mark", asleep)
    with pytest.raises(StorageCopyRefusedError, match="not empty"):
        copy_storage(source, target)
    assert (target.root / later).read_bytes() == b"of a run"
    check_complete(target.root)


def test_a_copy_that_another_process_has_ended_writes_no_further_file(
    source: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, original, written = Storage.at(tmp_path / "copy"), LocalFiles.write, list[str]()
    monkeypatch.setattr(copying, "_WORKERS", 1)

    def asleep(self: LocalFiles, path: str, parts: Iterator[bytes]) -> None:
        written.append(path)
        (target.root / MARKER).delete()
        original(self, path, parts)

    monkeypatch.setattr(LocalFiles, "write", asleep)
    with pytest.raises(StorageCopyFailedError, match="another process"):
        copy_storage(source, target)
    assert len(written) == 1


def test_the_tag_of_a_store_proves_what_was_written(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not location.path.startswith("s3:"):
        return
    for size in (0, 10, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES):
        content, data = copying._Content(), LARGE[:size] + b"x" * max(0, size - len(LARGE))
        (location / "in").files.replace(f"{location}/in", data)
        with (location / "in").open() as stream:
            tag = (location / "out").write(content.read(stream))
        assert content.has_tag(tag), size
        assert content.digest == hashlib.md5(data, usedforsecurity=False).hexdigest()
        assert (location / "out").read_bytes() == data
