"""The demo's folder: written for the user to read and edit; each demo has a folder of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.declare.spec import OWN_FOLDER
from headrace.errors import DemoFolderTakenError, StorageUnwritableError
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location, open_delta
from headrace.storage.table_log import is_table, newest_commits

if TYPE_CHECKING:
    from deltalake import DeltaTable

_DEFAULT = "headrace-demo"


@dataclass(frozen=True)
class DemoFolder:
    path: Path

    @property
    def broker(self) -> Path:
        """The folder of its broker, as for any pipeline."""
        return self.path / OWN_FOLDER / "broker"

    @property
    def scratch(self) -> Path:
        """For temporary files of the pipeline's processes, which are killed before they can remove them."""
        return self.path / ".demo" / "tmp"

    @property
    def driver_log(self) -> Path:
        return self.path / ".demo" / "driver.log"


def choose_folder(named: Path | None) -> Path:
    """The folder that a user names, else the first free one: `headrace-demo`, `headrace-demo-2` and so on."""
    names = (_DEFAULT if number == 1 else f"{_DEFAULT}-{number}" for number in count(1))
    return named or next(path for path in map(Path, names) if not path.exists())


def write_demo(path: Path, files: Mapping[str, str]) -> DemoFolder:
    demo = DemoFolder(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise DemoFolderTakenError(
            f"{path} has files already" if path.is_dir() else f"{path} is a file",
            facts=("nothing was changed",),
            remedies=(f"use another folder:   headrace demo --directory {shlex.quote(f'{path}-2')}",),
            params={"path": str(path)},
        )
    try:
        demo.scratch.mkdir(parents=True)
        for name, text in files.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageUnwritableError(
            f"{error.filename or path} cannot be written: {error.strerror}",
            remedies=("use a folder that you can write to:   headrace demo --directory ~/headrace-demo",),
            params={"path": str(path)},
        ) from error
    return demo


def check_empty(storage: Location) -> None:
    """Refuse a storage with files: the demo removes nothing."""
    if not storage.entries():
        return
    raise DemoFolderTakenError(
        f"{storage} has files already",
        facts=("the demo does not remove them", "nothing was changed"),
        remedies=(f"use another storage:   headrace demo --storage {shlex.quote(f'{storage}-2')}",),
        params={"path": str(storage)},
    )


class TableWatch:
    def __init__(self, storage: Storage, *, streams: tuple[TableName, ...], view: TableName) -> None:
        self._storage = storage
        self._streams = streams
        self._view = view
        self._tables: dict[TableName, DeltaTable] = {}
        self._rows: dict[TableName, int] = dict.fromkeys(streams, 0)

    def look(self) -> Mapping[TableName, int]:
        for name in self._streams:
            path = self._storage.table(name)
            if name in self._tables:
                self._tables[name].update_incremental()
            elif is_table(path):
                self._tables[name] = open_delta(path)
            else:
                continue
            self._rows[name] = self._tables[name].count()
        return dict(self._rows)

    def holds(self, *rows: int) -> bool:
        """Whether each streaming table had so many rows at the last call, and the view has read them all."""
        found = self._rows.values()
        return all(one >= least for one, least in zip(found, rows, strict=True)) and self._view_is_fresh()

    def _view_is_fresh(self) -> bool:
        path = self._storage.table(self._view)
        source = self._tables.get(self._streams[-1])
        for commit in newest_commits(path):
            if commit.metadata is not None and "inputs" in commit.metadata:
                seen = commit.metadata["inputs"].get(str(self._streams[-1]), {}).get("version", -1)
                return source is not None and bool(seen >= source.version())
        return False
