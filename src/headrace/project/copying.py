"""Copies a storage to another place, such as a bucket: verified, and resumable.

A mark in the target is written first and removed last. With it, each command refuses the target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, BinaryIO
from uuid import uuid4

from headrace.errors import SecondDriverError, StorageCopyFailedError, StorageCopyRefusedError
from headrace.model.names import TableName
from headrace.sources.registry import kind_of
from headrace.state.checkpoint import FILE, find_checkpoints, load_identity
from headrace.state.lease import held_leases
from headrace.storage.guarantee import RECORD, check_guarantee
from headrace.storage.layout import (
    MARKER,
    Storage,
    check_complete,
    copy_command,
    load_source,
    locate_supported,
)
from headrace.storage.location import PART_BYTES, FileState, Location

_LEFT = ("leases/", "care/requests/", "care/answers/", RECORD, MARKER)
"""What belongs to running processes, and to the store."""
_DATA = (".parquet", ".bin")
"""Endings of data files, which never change: one with the same content is not copied again."""
_WORKERS = 8
_SLICE = 1000


def copy_storage(source: Storage, target: Storage) -> dict[str, Any]:
    """Copy all files except leases and requests. Returns the number and the size of the copied files."""
    check_complete(source.root)
    copy = _Copy(source.root, target.root)
    copy.check()
    names = {TableName.parse(one, one) for one in (source.root / "checkpoints").list_folders()}
    try:
        with held_leases(source, sorted({*source.find_tables(), *names}, key=str)):
            return copy.run()
    except SecondDriverError as error:
        again = f"stop that process, then copy again:   {copy.command}"
        raise error.with_(remedies=(again,)) from error.__cause__


class _Copy:
    def __init__(self, source: Location, target: Location) -> None:
        self._source, self._target = source, target
        self._marked = ""
        self._held: set[str] = set()
        self.command = copy_command(source.path, target.path)

    def check(self) -> None:
        """Check that the target can take the copy, and that all checkpoints can be moved."""
        source, target = self._source, self._target
        if source == target or source.below(target) or target.below(source):
            raise self._refused("one is in the other")
        of = load_source(target)
        if of is not None and of != source.path:
            finish = f"finish that copy:   {copy_command(of, target.path)}"
            raise self._refused(f"it is an incomplete copy of {of}", finish)
        if of is None and {entry.name for entry in target.entries()} - {RECORD}:
            raise self._refused("the target is not empty")
        links = source.local_path.glob("tables/*/*") if source.is_local else ()
        if link := next((one for one in links if one.is_symlink()), None):
            again = f"drop its stream in `headrace sql`, then copy again:   {self.command}"
            raise self._refused(f"{link} is a link to a folder outside of the storage", again)
        for _, flow, known in find_checkpoints(Storage(source)):
            for one in load_identity(known[-1]).sources:
                # A flow knows such a source by its path, and would read it again under another path.
                is_path = "path" in kind_of(one.kind).keys
                place = locate_supported(one.identity["path"]) if is_path else None
                if place is not None and place.below(source):
                    text = f"the checkpoint of flow {flow} names files of the storage by their paths: {place}"
                    raise self._refused(text, "keep this storage where it is")

    def run(self) -> dict[str, Any]:
        source, target = self._source, self._target
        files = self._list_source()
        if not files:
            raise self._refused("there is nothing to copy", "check `storage` in headrace.yml")
        is_first = self._mark()
        check_guarantee(target)
        held = _sizes(target)
        self._check_mark()
        if is_first and held.keys() - {RECORD, MARKER}:
            # Since the first look, another process has copied the storage, or filled the target.
            (target / MARKER).delete()
            raise self._refused("the target is not empty")
        target.delete_files(name for name in held if name not in files and name not in (MARKER, RECORD))
        self._held = {
            name for name, state in files.items() if held.get(name) == state.size and _is_data(name)
        }
        copied: dict[str, int] = {}
        # The log of a table comes last: with it, other readers find the table.
        names = sorted(files, key=lambda one: "/_delta_log/" in one)
        with ThreadPoolExecutor(_WORKERS) as pool:
            for start in range(0, len(names), _SLICE):
                part = names[start : start + _SLICE]
                copied |= zip(part, pool.map(self._copy, part), strict=True)
        self._verify(files, copied)
        self._check_mark()
        (target / MARKER).delete()
        total = {"files": len(copied), "size_bytes": sum(copied.values()), "kept": len(self._held)}
        return {"source": str(source), "target": str(target), **total}

    def _mark(self) -> bool:
        """Mark the target as an incomplete copy by this process, also if another one has begun it. Returns
        whether the target had no mark."""
        mark, value = self._target / MARKER, {"headrace": 1, "from": self._source.path, "copier": uuid4().hex}
        try:
            held = mark.read_bytes()
        except FileNotFoundError:
            held = None
        self._marked = json.dumps(value)
        is_ours = held is None or load_source(self._target) == self._source.path
        if not (is_ours and (mark.create(self._marked) if held is None else mark.swap(held, self._marked))):
            raise self._refused("another process copies to it at this moment")
        return held is None

    def _check_mark(self) -> None:
        """Check that no other process has taken the copy over, for example while this machine was asleep."""
        try:
            marked = (self._target / MARKER).read_text()
        except FileNotFoundError:
            marked = ""
        if marked != self._marked:
            raise self._failed("another process has gone on with this copy")

    def _list_source(self) -> dict[str, FileState]:
        """The files to copy. Hidden ones are unfinished, or checksums of a local disk."""
        found = _list(self._source).items()
        return {
            k: v for k, v in found if not k.startswith(_LEFT) and not k.rpartition("/")[2].startswith(".")
        }

    def _copy(self, name: str) -> int:
        self._check_mark()
        source, target, content = self._source / name, self._target / name, _Content()
        is_identity = name.startswith("checkpoints/") and name.endswith(f"/{FILE}")
        try:
            if name in self._held:
                # A copy that was broken off may not have checked it.
                if (known := _read(source)).digest == _read(target).digest:
                    return known.size
                self._held.discard(name)
            with self._moved(source) if is_identity else source.open() as stream:
                tag = target.write(content.read(stream))
        except FileNotFoundError as error:
            raise self._failed(f"{source} has changed while the storage was copied") from error
        # The tag of an encrypted object is not a hash of its content.
        if not content.has_tag(tag) and _read(target).digest != content.digest:
            target.delete()
            raise self._failed(f"{target} differs from {source} after it was written")
        return content.size

    def _moved(self, file: Location) -> BinaryIO:
        """The identity of a checkpoint, with the paths of tables in the target."""
        old, new = (json.dumps(f"{root}/")[:-1] for root in (self._source, self._target))
        return BytesIO(file.read_text().replace(old, new).encode())

    def _verify(self, files: Mapping[str, FileState], copied: Mapping[str, int]) -> None:
        """Check that the source is still the same, and that the target holds it whole."""
        now = self._list_source()
        if changed := [name for name in {**files, **now} if files.get(name) != now.get(name)]:
            raise self._failed(f"{self._source / changed[0]} has changed while the storage was copied")
        held = _sizes(self._target)
        if wrong := [name for name, size in copied.items() if held.get(name) != size]:
            raise self._failed(f"{self._target / wrong[0]} does not have the size with which it was written")

    def _failed(self, text: str) -> StorageCopyFailedError:
        return StorageCopyFailedError(
            f"the storage was not copied: {text}",
            facts=(f"{self._target} is incomplete, and no command uses it",),
            remedies=(f"copy again, which takes what is missing:   {self.command}",),
            params={"source": str(self._source), "target": str(self._target)},
        )

    def _refused(self, why: str, remedy: str = "") -> StorageCopyRefusedError:
        return StorageCopyRefusedError(
            f"{self._source} cannot be copied to {self._target}: {why}",
            facts=("nothing was written",),
            remedies=(remedy or "name an empty folder, or a new prefix, after `--to`",),
            params={"source": str(self._source), "target": str(self._target)},
        )


class _Content:
    """The content of a file, read in parts, and its hashes: of the whole, and as stores tag objects that were
    written in parts."""

    def __init__(self) -> None:
        self.size = 0
        self._whole = hashlib.md5(usedforsecurity=False)
        self._parts: list[bytes] = []

    @property
    def digest(self) -> str:
        return self._whole.hexdigest()

    def read(self, stream: BinaryIO) -> Iterator[bytes]:
        while part := stream.read(PART_BYTES):
            self.size += len(part)
            self._whole.update(part)
            self._parts.append(hashlib.md5(part, usedforsecurity=False).digest())
            yield part

    def has_tag(self, tag: str | None) -> bool:
        joined = hashlib.md5(b"".join(self._parts), usedforsecurity=False).hexdigest()
        return tag is not None and tag.strip('"') in (self.digest, f"{joined}-{len(self._parts)}")


def _read(file: Location) -> _Content:
    content = _Content()
    with file.open() as stream:
        all(content.read(stream))
    return content


def _list(root: Location) -> dict[str, FileState]:
    """The states of all files, by their paths in the storage."""
    return {"/".join(file.below(root)): state for file, state in sorted(root.walk_states())}


def _sizes(root: Location) -> dict[str, int]:
    return {name: state.size for name, state in _list(root).items()}


def _is_data(name: str) -> bool:
    return name.endswith(_DATA) and "/_delta_log/" not in name and not name.startswith("checkpoints/")
