"""The layout of a storage root. It describes itself, so no metastore is needed."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import SourceLocation, StorageIncompleteError, StorageUnsupportedError
from headrace.model.folders import Entry
from headrace.model.names import TableName
from headrace.storage.locate import locate
from headrace.storage.location import Files, Item, Location, Result

MARKER = "copying.json"
"""The file in the target that names the source. A copy writes it first, and removes it last."""


def load_source(root: Location) -> str | None:
    """The storage of which a storage is an incomplete copy; ``None`` for a complete storage."""
    found = (root / MARKER).find_json()
    return None if found is None else str(found["from"])


def copy_command(source: str, target: str) -> str:
    return f"headrace storage copy --storage {shlex.quote(source)} --to {shlex.quote(target)}"


def check_complete(root: Location) -> None:
    if (source := load_source(root)) is not None:
        raise StorageIncompleteError(
            f"the storage {root} is an incomplete copy of {source}",
            facts=("nothing was read or written",),
            remedies=(f"finish the copy:   {copy_command(source, root.path)}",),
            params={"storage": str(root), "source": source},
        )


class ReadOnceFiles:
    """Remembers each listing, and each small object that was read, until `forget`. A file that a listing
    lacks does not exist.

    No write is possible: a run, and what keeps two writers apart, read the storage itself.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.scheme, self.silence_s = files.scheme, files.silence_s
        self.walk, self.look, self.resolve = files.walk, files.look, files.resolve
        self.forget()

    def forget(self) -> None:
        """Read everything again from now on."""
        self._listings: dict[str, dict[str, Entry]] = {}  # by the path of the folder, and by name
        self._contents: dict[str, bytes | None] = {}  # ``None`` for a missing file
        self._known: dict[str, bool] = {}  # whether there is a file or a folder at a path

    @property
    def table_options(self) -> Mapping[str, str]:
        return self._files.table_options

    def open(self, path: str) -> BinaryIO:
        if path not in self._contents and self._is_listed(path) is not False:
            try:
                file = self._files.open(path)
            except FileNotFoundError:
                self._contents.setdefault(path, None)
            else:
                if not isinstance(file, io.BytesIO):
                    return file
                # Other threads read at the same time: all of them get what the first one has read.
                self._contents.setdefault(path, file.getvalue())
        data = self._contents.get(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return io.BytesIO(data)

    def gather(self, look: Callable[[Item], Result], items: Iterable[Item]) -> Sequence[Result]:
        return self._files.gather(look, items)

    def exists(self, path: str) -> bool:
        if self._listings.get(path):
            return True
        listed = self._is_listed(path)
        if listed is None and path not in self._known:
            self._known[path] = self._files.exists(path)
        return self._known[path] if listed is None else listed

    def entries(self, folder: str) -> Sequence[Entry]:
        if folder not in self._listings:
            listed = {entry.name: entry for entry in self._files.entries(folder)}
            self._listings.setdefault(folder, listed)
        return list(self._listings[folder].values())

    def _is_listed(self, path: str) -> bool | None:
        """Whether the listing of its folder has a path; ``None`` if the folder was not listed."""
        folder, _, name = path.rpartition("/")
        held = self._listings.get(folder)
        return None if held is None else name in held

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a command that only reads has written a file")

    create = replace = add = write = swap = delete = delete_all = delete_folder = _refuse
    make_folder = copy = find_unsafe = free_bytes = _refuse


_UNSAFE = re.compile("[%#?]")


def table_name(folder: Location) -> TableName:
    """The name of the table in a folder of a storage, see `Storage.table`."""
    return TableName(folder.parent.name, folder.name)


@dataclass(frozen=True)
class Storage:
    """A storage root, and where everything in it lies."""

    root: Location

    @classmethod
    def at(
        cls, text: str | Path, folder: Path | None = None, source: SourceLocation | None = None
    ) -> Storage:
        """The storage at a path or a URI, see `locate`; its folder need not exist yet.

        Raises:
            StorageUnsupportedError: The kind of storage is not supported; or the URI of an object store has
                a `%`, `#` or `?`, which some clients decode, or take for the end of the path.
        """
        root = locate(text, folder, source).resolve()
        if not root.is_local and (found := _UNSAFE.search(root.path)) is not None:
            raise StorageUnsupportedError(
                f"the location `{text}` is not supported: it has the character `{found[0]}`",
                location=source,
                facts=("nothing was read or written",),
                remedies=("choose a prefix without `%`, `#` and `?`",),
                params={"storage": str(text), "scheme": root.files.scheme},
            )
        return cls(root)

    def read_once(self) -> tuple[Storage, ReadOnceFiles]:
        """The same storage for a command that only reads, and its files, which are read once."""
        files = ReadOnceFiles(self.root.files)
        return Storage(Location(self.root.path, files)), files

    @property
    def tables(self) -> Location:
        return self.root / "tables"

    @property
    def events(self) -> Location:
        return self.root / "events"

    @property
    def leases(self) -> Location:
        return self.root / "leases"

    @property
    def plans(self) -> Location:
        return self.root / "plans"

    def last_plan(self, home: Location | Path) -> Location:
        """The record of the last plan of a pipeline, by its folder. A pipeline in the storage, as of
        `headrace ingest`, has a record of its own: it shares the storage with another one."""
        folder = (home if isinstance(home, Location) else locate(home)).resolve()
        return self.plans / "-".join((*folder.below(self.root), "last.json"))

    @property
    def schemas(self) -> Location:
        return self.root / "schemas"

    @property
    def streams(self) -> Location:
        """What `headrace sql` has defined."""
        return self.root / "streams"

    def table(self, dataset: TableName) -> Location:
        return self.tables / dataset.schema / dataset.name

    def find_tables(self) -> tuple[TableName, ...]:
        """The names of the tables that the storage holds, also those whose creation did not end."""
        names = [
            TableName(schema, name)
            for schema in self.tables.list_folders()
            for name in (self.tables / schema).list_folders()
        ]
        found = self.root.files.gather(lambda name: (self.table(name) / "_delta_log").exists(), names)
        return tuple(name for name, is_table in zip(names, found, strict=True) if is_table)

    @property
    def quarantines(self) -> Location:
        return self.root / "quarantine"

    def quarantine(self, dataset: TableName) -> Location:
        """The table of a dataset's rejected rows."""
        return self.quarantines / dataset.schema / dataset.name

    def tombstones(self, dataset: TableName) -> Location:
        """The table of the keys that were deleted from a dataset."""
        return self.root / "tombstones" / dataset.schema / dataset.name

    def snapshots(self, dataset: TableName) -> Location:
        """The folder with a file for each snapshot that is applied to a table, which one flow does."""
        return self.root / "snapshots" / str(dataset)

    @property
    def once(self) -> Location:
        """The folder with the one file that the flows read whose batch query is applied once."""
        return self.root / "once"

    def pins(self, dataset: TableName) -> Location:
        """The file with the versions of a table that are kept."""
        return self.root / "pins" / f"{dataset}.json"

    @property
    def backups(self) -> Location:
        """The files that `headrace checkpoint repair` has taken out of checkpoints."""
        return self.root / "backups"

    def backup(self, dataset: TableName, flow: str, generation: int) -> Location:
        return self.backups / f"{dataset}.{flow}" / f"{generation:04d}"

    def care(self, dataset: TableName, role: str = "table") -> Location:
        """The file that says when a dataset's table, ``quarantine`` or ``tombstones`` were compacted and
        vacuumed last."""
        folder = self.root / "care"
        return (folder if role == "table" else folder / role) / f"{dataset}.json"

    def checkpoints(self, dataset: TableName) -> Location:
        """The folder of the checkpoints of all flows of a table."""
        return self.root / "checkpoints" / str(dataset)

    def flow_checkpoints(self, dataset: TableName, flow: str) -> Location:
        """The folder that holds the flow's generations, each a checkpoint of its own."""
        return self.checkpoints(dataset) / flow

    def checkpoint(self, dataset: TableName, flow: str, generation: int) -> Location:
        return self.flow_checkpoints(dataset, flow) / f"{generation:04d}"

    def ledger(self, dataset: TableName, flow: str) -> Location:
        return self.root / "ledger" / str(dataset) / flow

    def lease(self, dataset: TableName, flow: str) -> Location:
        return self.leases / f"{dataset}.{flow}.json"
