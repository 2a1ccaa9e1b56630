"""The layout of a storage root, which describes itself, and the locations of paths and URIs."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from headrace.errors import SourceLocation, StorageIncompleteError, StorageUnsupportedError
from headrace.model.folders import Entry, plain_path
from headrace.model.names import TableName
from headrace.model.project import S3Reach, S3Settings
from headrace.storage.local import LocalFiles
from headrace.storage.location import Files, Item, Location, Result

if TYPE_CHECKING:
    from headrace.storage.s3.access import Buckets


S3 = "s3"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCAL = LocalFiles()
_LEARNERS: list[Callable[[str], None]] = []
"""The functions `learn` of specs without settings for S3, until this process opens its first bucket. Most
pipelines use no bucket, so the client of S3 is imported only then."""
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*|)", re.DOTALL)


KINDS: Mapping[str, Callable[[str], Files]] = {
    _LOCAL.scheme: lambda _: _LOCAL,
    S3: lambda bucket: _buckets().files(bucket),
}
"""Opens the files of each kind of storage, by URI scheme; called with the host of a URI."""

_REFUSED = {
    "gs": "Google Cloud Storage is not supported yet: its conditional writes are not tested",
    **dict.fromkeys(
        ("abfs", "abfss", "wasb", "wasbs", "az"),
        "Azure is not supported: no test server has the file endpoint that Spark uses there",
    ),
}


def locate(text: str | Path, folder: Path | None = None, source: SourceLocation | None = None) -> Location:
    """Return the location of a path, a ``file:`` URI, or a URI of another kind of storage. Relative paths
    begin at the folder, by default the current one."""
    if isinstance(text, Path):
        return Location(os.path.normpath(text.absolute()), _LOCAL)
    scheme = urlsplit(text).scheme
    if not scheme:
        return Location(os.path.normpath((folder or Path.cwd()) / Path(text).expanduser()), _LOCAL)
    path = plain_path(text)
    if not is_uri(path):
        return Location(os.path.normpath(path), _LOCAL)
    found = split_uri(path)
    known = _REFUSED.get(scheme)
    if found is not None and found[0] == S3 and "_" in found[1]:
        known = (
            f"the bucket's name `{found[1]}` has an underscore, which Spark's client of S3 does not accept"
        )
    elif found is not None and found[0] in KINDS:
        scheme, host, key = found
        return Location(f"{scheme}://{host}/{key}".rstrip("/"), KINDS[scheme](host))
    raise StorageUnsupportedError(
        f"the location `{text}` is not supported",
        location=source,
        facts=(
            *(() if known is None else (known,)),
            "supported: a local path, file:///PATH, and s3://BUCKET/PREFIX",
            "nothing was read or written",
        ),
        remedies=("give a local path, such as ./lake, or s3://BUCKET/PREFIX",),
        params={"storage": text, "scheme": scheme, "supported": sorted(KINDS)},
    )


def use_s3(
    settings: S3Settings, storage: str | None, learn: Callable[[str], None], source: SourceLocation | None
) -> None:
    """Use the settings of a spec for the buckets of this process, first for that of its storage. `learn` is
    called with each secret that is found."""
    found = split_uri(plain_path(storage or ""))
    bucket = found[1] if found is not None and found[0] == S3 else None
    if bucket is None and settings == S3Settings():
        _LEARNERS.append(learn)
    else:
        _buckets().use(settings, bucket, learn, source)


def reach_s3(bucket: str) -> S3Reach:
    return _buckets().files(bucket).access.reach(bucket)


def _buckets() -> Buckets:
    from headrace.storage.s3.access import BUCKETS

    while _LEARNERS:
        BUCKETS.use(S3Settings(), None, _LEARNERS.pop())
    return BUCKETS


def split_uri(text: str) -> tuple[str, str, str] | None:
    """The scheme, the host and the path of a URI that is not of this machine, in one spelling for each
    location; ``None`` for another text. As in Hadoop, ``#`` and ``?`` are characters of names."""
    found = _URI.fullmatch(text)
    if found is None or found[1].lower() == _LOCAL.scheme:
        return None
    scheme = found[1].lower()
    parts = [part for part in found[3].split("/") if part not in ("", ".")]
    is_wrong = ".." in parts or (scheme == S3 and not _BUCKET.fullmatch(found[2]))
    return None if is_wrong else (scheme, found[2], "/".join(parts))


def locate_supported(text: str, folder: Path | None = None) -> Location | None:
    """As `locate`, but ``None`` for a URI of a kind of storage that is not supported."""
    try:
        return locate(text, folder)
    except StorageUnsupportedError:
        return None


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, of any scheme, and not a path."""
    return bool(urlsplit(text).scheme)


def shown_path(path: str, folder: Path) -> str:
    """A path or URI for users: relative if it is in a folder."""
    if is_uri(path):
        return path
    found = Path(path)
    return f"./{found.relative_to(folder)}" if found.is_relative_to(folder) else str(found)


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
    make_folder = copy = find_unsafe = space = _refuse


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

    def alerts(self, pipeline: str) -> Location:
        """The file with the alerts of a pipeline that have not ended."""
        return self.root / "alerts" / f"{pipeline}.json"

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
