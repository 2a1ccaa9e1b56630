"""Folders of files as a source of a flow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import FeatureUnsupportedError, HeadraceError
from headrace.model.folders import FileFolder, plain_path
from headrace.model.lineage import DatasetId, of_path
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position, SourceRange
from headrace.model.texts import counted
from headrace.runtime.gateway import quiet
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, SparkSession, T
from headrace.sources.bad_records import SCHEMA_MARK
from headrace.sources.files.by_header import HeaderedFiles, find_groups
from headrace.sources.files.guard import FileGuard
from headrace.sources.files.headers import HeaderGroup, HeaderRules
from headrace.sources.files.lists import (
    COMPACT_INTERVAL,
    FileFacts,
    FileLists,
    FilePosition,
    ReadFile,
    are_whole,
    describe_files,
    folder_of_source,
    join_descriptions,
    last_entry,
    load_entries,
    load_seen,
    seed_list,
    seed_log,
)
from headrace.sources.files.options import FORMAT_OPTION
from headrace.sources.files.reader import FILES_MAX_AGE, FORMATS, FilesReader
from headrace.sources.kind import SourceKind
from headrace.sources.limits import Meter, Taken
from headrace.sources.parts import (
    FILE_RECORD,
    FILE_ROW,
    FilePart,
    FileParts,
    Part,
    as_record,
    file_uri,
    range_of,
    row_number,
)
from headrace.sources.requests import (
    Found,
    Lag,
    Past,
    Seed,
    Seeding,
    SourceRead,
    StreamRead,
    Systems,
    Unrecoverable,
)
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity, folder_of, load_identity
from headrace.state.facts import History, ListOrigin, PastRead, SourceFacts
from headrace.storage.layout import is_uri, locate, locate_supported, shown_path
from headrace.storage.location import Location

_BYTES, _FILES = "maxBytesPerTrigger", "maxFilesPerTrigger"


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    kind = "files"
    wraps_records = False
    rereads = True
    reads_records = True
    kept_options = ("recursiveFileLookup", "pathGlobFilter", "maxFileAge")

    path: str  # the folder, or a pattern of folders and files
    format: str

    @property
    def folder_read(self) -> FileFolder:
        return folder_of_source(self._identity())

    def describe(self) -> str:
        return f"files {self.path}"

    def datasets(
        self, settings: ProjectSettings, identity: Mapping[str, Any] | None = None
    ) -> tuple[DatasetId, ...]:
        return (of_path(self.path, settings.data_folder),)

    def label(self, root: Path) -> str:
        return f"{self.format} files {shown_path(self.path, root)}"

    def common_input(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        same = isinstance(other, FileSource) and _plain(self.path) == _plain(other.path)
        return f"the folder {_plain(self.path)}" if same else None

    def look(self, systems: Systems, past: Past) -> FileFacts:
        source = self.identity(self._identity())
        if not past.opens or past.ledger is None:
            return FileFacts(source=source)
        # A list can be long, and only a new checkpoint needs to know all that was read.
        return FileFacts(
            source=source, unlisted=_unlisted(source, past), read_elsewhere=_read_elsewhere(source, past)
        )

    def find(self, systems: Systems, *, is_new: bool) -> Found | None:
        try:
            return Found(describe_folder(self.folder_read))
        except OSError:
            # A folder that cannot be listed is reported by the run.
            return None

    def is_drained(self, facts: SourceFacts, position: Position, checkpoint: Location) -> bool:
        assert isinstance(position, FilePosition)
        if last_entry(checkpoint, self.folder) != position.entry:
            return False
        read = set(map(plain_path, load_seen(checkpoint, self.folder)))
        folder = self.folder_read
        try:
            return not folder.is_sinks and all(file.path in read for file in folder.files())
        except OSError:
            # A folder that cannot be listed is reported by the run.
            return False

    def meter(self, systems: Systems) -> FileMeter | None:
        return FileMeter(self) if self.adaptive else None

    def read_range(self, read: SourceRead, one: SourceRange | None, checkpoint: Location) -> DataFrame:
        options = {k: v for k, v in read.request.batch_options.items() if k.lower() != "path"}
        reader = read.session.read.format(read.request.format).options(**options)
        if read.request.schema is not None:
            reader = reader.schema(read.request.schema)
        if one is None:
            return reader.load(self.path).where(F.lit(False))
        if not self.folder_read.is_pattern:
            # Folders named `key=value` give columns.
            reader = reader.option("basePath", self.path)
        # A path names one file, even if it has special characters.
        reader = reader.option("__globPaths__", "false")
        parts = one.until if isinstance(one.until, FileParts) else None
        paths = self.files(one, checkpoint) if parts is None else list(map(plain_path, parts.paths))

        def choose(rows: DataFrame) -> DataFrame:
            return rows if parts is None else parts.choose(rows, row_number())

        rules = HeaderRules.of(read.request.options)
        if rules is not None:
            there = [path for path in paths if locate(path).exists()]
            groups = find_groups(read.session, self.options, rules, there)
            if not groups:
                return reader.load(self.path).where(F.lit(False))
            given = read.request.schema
            schema = T.StructType.fromDDL(given) if isinstance(given, str) else given
            return HeaderedFiles(reader, schema, rules).load(groups, choose)
        if parts is not None:
            return choose(reader.load(paths))
        found = load_existing(reader, paths, exists=lambda path: locate(path).exists())
        return reader.load(self.path).where(F.lit(False)) if found is None else found

    def headers(
        self, session: SparkSession, one: SourceRange, checkpoint: Location
    ) -> tuple[HeaderRules, Sequence[HeaderGroup]] | None:
        rules = HeaderRules.of(self.options)
        if rules is None:
            return None
        return rules, find_groups(session, self.options, rules, self.files(one, checkpoint))

    def files(self, one: SourceRange, checkpoint: Location) -> list[str]:
        assert isinstance(one.until, FilePosition)
        first = one.start.entry + 1 if isinstance(one.start, FilePosition) else 0
        entries = load_entries(checkpoint, self.folder, first, one.until.entry)
        return [plain_path(uri) for uris in entries.values() for uri in uris]

    def read_records(self, read: SourceRead, records: DataFrame) -> DataFrame:
        """Lines of text files: other formats keep no records."""
        records = records.where(F.lit(read.request.format == "text"))
        given = read.request.schema
        schema = T.StructType.fromDDL(given) if isinstance(given, str) else given
        keys = [one for one in (schema.fields if schema is not None else ()) if one.name != "value"]
        found = (F.regexp_extract("path", f"/{re.escape(one.name)}=([^/]*)", 1) for one in keys)
        columns = (text.cast(one.dataType).alias(one.name) for text, one in zip(found, keys, strict=True))
        file = {"file_path": F.col("path"), "file_size": F.lit(None).cast("long")}
        file["file_modification_time"] = F.lit(None).cast("timestamp")
        metadata = F.struct(*(column.alias(name) for name, column in file.items())).alias("_metadata")
        return records.select(F.col("value").cast("string").alias("value"), *columns, metadata)

    def owns(self) -> Column:
        # Only lines have a value, which a reader can parse again.
        return F.col("path").isNotNull() & F.col("value").isNotNull()

    def _identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {"path": self.path}
        if (self.option("recursiveFileLookup") or "").lower() == "true":
            identity["recursive"] = True
        if (glob := self.option("pathGlobFilter")) is not None:
            identity["glob"] = glob
        if (age := self.option("maxFileAge") or FILES_MAX_AGE) != FILES_MAX_AGE:
            identity["max_age"] = age
        return identity


class FileMeter(Meter):
    """Counts files, or their bytes where the limit is one of bytes."""

    def __init__(self, source: FileSource) -> None:
        self._bytes = source.option(_BYTES)
        self._first = int(self._bytes or source.option(_FILES) or 1)

    def first_limit(self, facts: SourceFacts, position: Position | None) -> int:
        return self._first

    def taken(self, one: SourceRange, limit: int, duration_s: float) -> Taken:
        files = one.marks.get("files", {"count": 0, "bytes": 0})
        count, size = files["count"], files["bytes"]
        if self._bytes is not None:
            return Taken(size, duration_s)
        return Taken(count, duration_s, size / count if count else None)


class FilesKind(SourceKind):
    source = FileSource
    guard = FileGuard
    reader = FilesReader()
    record = FILE_RECORD
    coordinates = FILE_ROW
    keys = FileFacts.keys

    def opens(self, format: str) -> bool:
        return format in FORMATS

    def build(self, read: StreamRead) -> FileSource:
        options = dict(read.options)
        format = options.pop(FORMAT_OPTION, read.format)
        path = options.get("path", "")
        if locate_supported(path) is None:
            raise FeatureUnsupportedError(
                f"a stream reads the files of {path}, which are not on this machine",
                location=read.location,
                remedies=["files are read from local folders so far"],
                params={"path": path},
            )
        return FileSource(**replace(read, options=options).common, format=format, path=path)

    def position(self, value: Mapping[str, Any]) -> FilePosition:
        return FilePosition.from_json(value)

    def describe(self, source: SourceIdentity) -> str:
        return f"files {source.identity.get('path')}"

    def removed(self, source: SourceIdentity, history: History, ledger: Location) -> Iterator[Unrecoverable]:
        lists = FileLists.of_ledger(ledger)
        files = [file for read in history.last_reads(source, self.keys) for file in _listed(read, lists)]
        paths = [plain_path(file.path) for file in files if not file.lost]
        gone = [path for path in paths if not locate(path).exists()]
        if gone:
            more = f", such as {gone[0]}" if len(gone) > 1 else f": {gone[0]}"
            count = counted(len(gone), "file")
            text = f"{count} that it has read no longer {'exists' if len(gone) == 1 else 'exist'}{more}"
            yield Unrecoverable(text, len(gone), f"put the {'file' if len(gone) == 1 else 'files'} back")

    def parts(
        self, one: SourceRange, source: Source, session: SparkSession, checkpoint: Location
    ) -> Sequence[FilePart]:
        assert isinstance(source, FileSource)
        paths = source.files(one, checkpoint)
        return [
            FilePart(path=file_uri(f"file:{path}" if path.startswith("/") else path), source=one.index)
            for path in paths
        ]

    def range_of(self, one: SourceRange, parts: Sequence[Part]) -> SourceRange:
        return range_of(one, parts)

    def as_record(self, frame: DataFrame, record: Part) -> DataFrame:
        is_line = frame.columns[:1] == ["value"]
        return as_record(frame, record, F.col("value").cast("binary") if is_line else None)

    def lag(self, one: SourceRange, systems: Systems, checkpoint: Location | None) -> Lag | None:
        if checkpoint is None:
            return None
        assert isinstance(one.until, FilePosition)
        folder = folder_of_source(one.identity)
        try:
            sources = load_identity(checkpoint).sources
            (number,) = (folder_of(source) for source in sources if source.index == one.index)
            seen = load_seen(checkpoint, number)
            read = {plain_path(uri) for uri, entry in seen.items() if entry <= one.until.entry}
            if folder.is_sinks:
                return None
            waiting = [file for file in folder.files() if file.path not in read]
        except (HeadraceError, OSError, ValueError):
            return None
        return Lag(len(waiting), sum(file.size for file in waiting), counts_files=True)

    def seed(
        self, source: SourceIdentity, position: Position, origin: ListOrigin | None, seeding: Seeding
    ) -> Seed:
        assert isinstance(position, FilePosition)
        if origin is None:
            return Seed()
        listed = FileLists.of_ledger(seeding.ledger).load_source(*origin, position.entry)
        read = tuple(replace(file, source=source.index, carried=True) for file in listed)
        interval = int(seeding.setting(COMPACT_INTERVAL) or 10)
        return Seed(
            marks={"files": describe_files(read, len(read))},
            contents=seed_log(source, position.entry, read, interval),
            ledger=seed_list(seeding.checkpoint, read),
        )

    def join_marks(self, one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if ("files" in one) != ("files" in two) or one.get(SCHEMA_MARK) != two.get(SCHEMA_MARK):
            return None
        files = {"files": join_descriptions(one["files"], two["files"])} if "files" in two else {}
        return {**one, **two, **files}

    def take_over(self, old: Location, ledger: Location) -> None:
        FileLists.of_ledger(ledger).take_over(FileLists.of_ledger(old))


def load_existing(reader: Any, paths: list[str], exists: Callable[[str], bool]) -> DataFrame | None:
    """The rows of those files that exist; ``None`` if all are gone. The flow's guard reports the others."""
    from pyspark.errors import AnalysisException

    try:
        # Spark looks for each file itself: on an object store, each look is a request.
        with quiet():
            return reader.load(paths)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
    there = [path for path in paths if exists(path)]
    return reader.load(there) if there else None


def describe_folder(folder: FileFolder) -> str:
    """The number of files, such as ``2 files that match *.json (1 that does not)``."""
    count = sum(1 for _ in folder.files())
    words = counted(count, "file")
    notes = []
    if folder.glob is not None:
        words += f" that {'matches' if count == 1 else 'match'} {folder.glob}"
        if others := sum(1 for _ in replace(folder, glob=None).files()) - count:
            notes.append(f"{others:,} that {'does' if others == 1 else 'do'} not")
    if ignored := folder.count_ignored():
        notes.append(f"{ignored:,} ignored, the name begins with . or _")
    return words + (f" ({'; '.join(notes)})" if notes else "")


def _unlisted(source: SourceIdentity, past: Past) -> frozenset[ListOrigin]:
    """The reads of a folder whose lists in the ledger do not hold all files that were read."""
    assert past.ledger is not None
    lists = FileLists.of_ledger(past.ledger)
    return frozenset(
        (read.checkpoint, read.source.index)
        for read in past.history.last_reads(source, FileFacts.keys)
        if not are_whole(
            _listed(read, lists), FilePosition.from_json(read.until).entry, read.marks.get("files")
        )
    )


def _read_elsewhere(source: SourceIdentity, past: Past) -> str | None:
    """A file of a folder that is new, or chooses other files now, which was read through another folder."""
    before = past.history.last_reads(source, FileFacts.keys)
    if any(dict(read.source.identity) == source.identity for read in before) or past.ledger is None:
        return None
    lists = FileLists.of_ledger(past.ledger)
    last = {
        read.source.identity["path"]: read
        for read in past.history.reads(source.kind)
        if read.source.identity["path"] != source.identity["path"]
    }
    others = {plain_path(file.path) for read in last.values() for file in _listed(read, lists)}
    # A folder that cannot be listed is reported by the run.
    with suppress(OSError):
        files = (file.path for file in folder_of_source(source.identity).files())
        return min((path for path in files if path in others), default=None)
    return None


def _listed(read: PastRead, lists: FileLists) -> tuple[ReadFile, ...]:
    return lists.load_source(read.checkpoint, read.source.index, FilePosition.from_json(read.until).entry)


def _plain(path: str) -> str:
    plain = plain_path(path)
    return plain.rstrip("/") if is_uri(plain) else os.path.normpath(plain)


KIND = FilesKind()
