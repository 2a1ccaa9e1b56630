"""Finds and reads the snapshots of a flow.

A user's function runs as code at module level does: it reads real tables, and may call actions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import PurePosixPath
from typing import Any

from headrace.contracts.changes import snapshot_columns, with_known_types, without_own_columns
from headrace.errors import FeatureUnsupportedError, HeadraceError, SnapshotInvalidError, SnapshotMissingError
from headrace.model.declarations import AutoCdcFlow, Dataset, Flow, StreamingTable, TemporaryView
from headrace.model.project import ProjectSettings
from headrace.model.snapshots import (
    SnapshotFunction,
    SnapshotMarker,
    Snapshots,
    StoredSnapshots,
    Version,
    version_type,
)
from headrace.plan.evaluate import run_code
from headrace.plan.intercept import Interception, suspended
from headrace.plan.modes import Loading
from headrace.plan.names import NameRules, split_name
from headrace.runtime.gateway import new_frame
from headrace.runtime.lazy_pyspark import DataFrame, F, SparkSession, T
from headrace.sources.files.read import CSV_CHECKS, any_file_name
from headrace.sources.files.reader import FILES_MAX_AGE
from headrace.sources.schemas import load_schema
from headrace.state.snapshot_log import SnapshotLog
from headrace.storage.layout import locate
from headrace.storage.location import Location
from headrace.storage.table_log import is_table, newest_version, readable_versions

_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "csv": {"header": "true", "inferSchema": "true", **CSV_CHECKS, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    version: Version
    location: Mapping[str, Any]
    rows: DataFrame

    def marker(self, after: Version | None) -> SnapshotMarker:
        return SnapshotMarker(
            version=self.version, after=after, location=self.location, schema=self.rows.schema.jsonValue()
        )


@dataclass(frozen=True, kw_only=True)
class FoundSnapshots:
    """What a source has after its last version."""

    next: Snapshot | None = None
    skipped: tuple[Version, ...] = ()


def marker_stream(session: SparkSession, pattern: str, columns: Mapping[str, Any]) -> DataFrame:
    """The stream of a flow's markers, one in each batch; its columns are NULL: the batch replaces them."""
    options = {"maxFilesPerTrigger": "1", "maxFileAge": FILES_MAX_AGE, **any_file_name(pattern)}
    with suspended():
        reader = session.readStream.format("text").schema("value STRING").options(**options)
        markers = reader.load(pattern)
        fields = T.StructType.fromJson(dict(columns)).fields
        return markers.select(*(F.lit(None).cast(one.dataType).alias(one.name) for one in fields))


def make_reader(
    flow: Flow | TemporaryView, datasets: Sequence[Dataset], settings: ProjectSettings, session: SparkSession
) -> SnapshotReader:
    assert isinstance(flow, AutoCdcFlow) and flow.snapshots is not None
    target = next(one for one in datasets if one.name == flow.target)
    assert isinstance(target, StreamingTable)
    declared = target.schema and load_schema(target.schema, settings.root, target.location).jsonValue()
    return SnapshotReader(flow, flow.snapshots, settings, session, declared)


@dataclass(frozen=True)
class SnapshotReader:
    _flow: AutoCdcFlow
    _source: Snapshots
    _settings: ProjectSettings
    _session: SparkSession
    _declared: Mapping[str, Any] | None  # the declared columns of the table

    @property
    def log(self) -> SnapshotLog:
        return SnapshotLog(self._settings.storage.snapshots(self._flow.target))

    def find(self, markers: Sequence[SnapshotMarker]) -> FoundSnapshots:
        last = markers[-1].version if markers else None
        if isinstance(self._source, SnapshotFunction):
            return self._after(last, self._call(self._source.function, last))
        location = self.location
        if location is None:
            return FoundSnapshots()
        if is_table(location):
            version, table = newest_version(location), str(location)
            found = {"table": table, "version": version}
            rows = self._read_table(table, version)
            return self._after(last, Snapshot(version=version, location=found, rows=rows))
        return self._find_folder(location, markers)

    def read(self, marker: SnapshotMarker) -> DataFrame | None:
        """The rows of a snapshot; ``None`` if the source no longer has it."""
        if isinstance(self._source, SnapshotFunction):
            found = self._call(self._source.function, marker.after)
            return None if found is None or found.version != marker.version else found.rows
        if "table" in marker.location:
            table, version = marker.location["table"], marker.location["version"]
            is_readable = version in readable_versions(locate(table))
            return self._read_table(table, version) if is_readable else None
        path = locate(marker.location["path"]) if "path" in marker.location else None
        return self._read_files(path) if path is not None and path.exists() else None

    def newest(self) -> DataFrame:
        """The rows of the next snapshot, or of the last one if the source still has it."""
        markers = self.log.load()
        found = self.find(markers).next
        rows = self.read(markers[-1]) if found is None and markers else None
        return self.example()[0] if rows is None else rows

    def example(self) -> tuple[DataFrame, str]:
        """The next or last snapshot, which has the columns of the table, and the type of its version."""
        markers = self.log.load()
        try:
            found = self.find(markers).next
        except SnapshotInvalidError:
            # If the versions have another type now, the table is refused until it is refreshed in full.
            found = self.find(()).next
        if found is not None:
            return found.rows, version_type(found.version)
        if not markers:
            is_path = isinstance(self._source, StoredSnapshots) and self._source.is_path
            named = f", such as {self._source.name}/1.json (its name is its version)" if is_path else ""
            raise SnapshotMissingError(
                f"flow {self._flow.name}: {self._source.name} has no snapshot yet, so the columns of the "
                "table are not known",
                location=self._flow.location,
                remedies=[f"add the first snapshot{named}, then run again:   headrace run"],
                params={"flow": self._flow.name, "source": self._source.name},
            )
        last = markers[-1]
        schema = T.StructType.fromJson(dict(last.schema))
        with suspended():
            return new_frame(self._session, [], schema), version_type(last.version)

    @property
    def location(self) -> Location | None:
        """The table or the folder; ``None`` for a function, and for names that are not of this storage."""
        if isinstance(self._source, SnapshotFunction):
            return None
        name = self._source.name
        if self._source.is_path:
            return locate(name, self._settings.data_folder, self._flow.location)
        table = NameRules(self._settings).table(split_name(name) or (name,))
        return None if table is None else self._settings.storage.table(table)

    def _after(self, last: Version | None, found: Snapshot | None) -> FoundSnapshots:
        if found is None or found.version == last:
            return FoundSnapshots()
        if last is not None:
            self._check_type(found.version, last)
            if not found.version > last:  # type: ignore[operator]
                return FoundSnapshots(skipped=(found.version,))
        return FoundSnapshots(next=found)

    def _read_table(self, path: str, version: int) -> DataFrame:
        with suspended():
            rows = self._session.read.format("delta").option("versionAsOf", version).load(path)
            return without_own_columns(rows)

    def _find_folder(self, folder: Location, markers: Sequence[SnapshotMarker]) -> FoundSnapshots:
        last = markers[-1].version if markers else None
        entries = self._entries(folder, last)
        if last is not None and entries:
            self._check_type(next(iter(entries)), last)
        known = {marker.version for marker in markers}
        newer = sorted(one for one in entries if last is None or one > last)  # type: ignore[operator]
        older = sorted(set(entries) - known - set(newer))
        skipped = tuple(one for one in older if is_complete(entries[one]))
        version = next((one for one in newer if is_complete(entries[one])), None)
        if version is None:
            return FoundSnapshots(skipped=skipped)
        path = entries[version]
        found = Snapshot(version=version, location={"path": str(path)}, rows=self._read_files(path))
        return FoundSnapshots(next=found, skipped=skipped)

    def _entries(self, folder: Location, last: Version | None) -> dict[Version, Location]:
        found: dict[Version, Location] = {}
        listed = list_snapshots(folder)
        for path, version in listed:
            if version is None:
                if not is_complete(path):
                    continue
                remedy = _rename_remedy(path, [last, *(other for _, other in listed)])
                raise self._invalid(f"the name of {path} is not a version", remedy)
            if version in found:
                raise self._invalid(
                    f"{found[version]} and {path} have the same version", "remove one of the two"
                )
            if found:
                self._check_type(version, next(iter(found)))
            found[version] = path
        return found

    def _read_files(self, path: Location) -> DataFrame:
        format = format_of(path)
        if format is None:
            raise self._invalid(
                f"the format of {path} is not known", f"give its files one suffix of {KNOWN_SUFFIXES}"
            )
        with suspended():
            reader = self._session.read.format(format).options(
                **any_file_name(str(path)), **_OPTIONS.get(format, {})
            )
            if format not in ("csv", "json"):
                return without_own_columns(reader.load(str(path)))
            if self._declared is not None:
                reader = reader.schema(snapshot_columns(self._declared, self._flow.history))
            rows = reader.load(str(path))
            markers = [] if self._declared is not None else self.log.load()
            if markers and (schema := with_known_types(rows, markers[-1].schema)) != rows.schema:
                rows = reader.schema(schema).load(str(path))
            return without_own_columns(rows)

    def _call(self, function: Callable[[Version | None], Any], last: Version | None) -> Snapshot | None:
        from pyspark.sql.classic.dataframe import DataFrame

        flow = self._flow
        interception = Interception(
            settings=self._settings, mode=Loading(session=lambda: self._session, may_write=True)
        )
        given = run_code(lambda: function(last), interception, name=flow.name, location=flow.location)
        match given:
            case None | (None, _):
                return None
            case (DataFrame() as rows, version) if not rows.isStreaming:
                try:
                    version_type(version)
                except TypeError:
                    problem = f"{self._source.name} returned a version of the type {type(version).__name__}"
                    raise self._invalid(problem, "return a number, text, a date or a datetime") from None
                with suspended():
                    return Snapshot(version=version, location={}, rows=without_own_columns(rows))
            case _:
                kind = type(given).__name__
                raise self._invalid(
                    f"{self._source.name} returned a {kind}, not a snapshot",
                    "return (DataFrame, version), or None if there is no next snapshot",
                )

    def _check_type(self, version: Version, last: Version) -> None:
        """Refuse a version that cannot be compared with the last one."""
        kinds = [version_type(one) for one in (version, last)]
        zones = [isinstance(one, datetime) and one.tzinfo is not None for one in (version, last)]
        if kinds[0] != kinds[1] or zones[0] != zones[1]:
            raise self._invalid(
                f"the version {version} cannot be compared with the version {last}",
                "use versions of one type, and apply all snapshots again:   "
                f"headrace full-refresh {self._flow.target.short}",
            )

    def _invalid(self, problem: str, *remedies: str) -> HeadraceError:
        return SnapshotInvalidError(
            f"flow {self._flow.name}: {problem}",
            location=self._flow.location,
            facts=["the snapshot was not applied"],
            remedies=remedies,
            params={"flow": self._flow.name, "source": self._source.name},
        )


def without_versions(name: str, *, is_view: bool) -> FeatureUnsupportedError:
    """The error for snapshots of a view, or of a table that this storage does not have."""
    return FeatureUnsupportedError(
        f"`{name}` is a temporary view, which has no versions"
        if is_view
        else f"`{name}` is not a table of this pipeline or its storage, so its versions are not known",
        remedies=[
            "declare it as a materialized view: a run applies its newest version"
            if is_view
            else "give the path of the Delta table, with a /",
            "or give a function that returns the rows and a version",
        ],
        params={"what": f"snapshots of {name}"},
    )


_NAMES = "name the snapshots by whole numbers, dates (2026-01-31) or timestamps (2026-01-31T08-30-00)"


def _rename_remedy(path: Location, versions: Sequence[Version | None]) -> str:
    """How to name a snapshot. `versions`: the one that was applied last, and those of the folder."""
    numbers = [one for one in versions if isinstance(one, int)]
    if not numbers:
        last = versions[0]
        return _NAMES if last is None else f"rename it to a version of the same type, above {last}"
    suffix = _SUFFIXES.search(path.name)
    new = path.parent / f"{max(numbers) + 1}{suffix[0] if suffix else ''}"
    move = path.move_command(str(new), is_folder=path.name not in path.parent.list_files())
    return f"rename it to the next version, above all that were applied:   {move}"


_FORMATS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".orc": "orc",
}
_COMPRESSED = re.compile(r"\.(gz|bz2|zst)$")
_SUFFIXES = re.compile(r"(\.(gz|bz2|zst|snappy|parquet|json|jsonl|ndjson|csv|orc))+$")
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})[T_ ](\d{2})[-:]?(\d{2})(?:[-:]?(\d{2}))?Z?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")

KNOWN_SUFFIXES = ", ".join(_FORMATS)


def list_snapshots(folder: Location) -> list[tuple[Location, Version | None]]:
    names = sorted(entry.name for entry in folder.entries())
    return [(folder / name, parse_name(name)) for name in names if not _is_hidden(name)]


def is_complete(path: Location) -> bool:
    """Whether a snapshot has files, and Spark is not writing it."""
    return not (path / "_temporary").exists() and bool(_data_files(path))


def parse_name(name: str) -> Version | None:
    """The number, date or datetime in a name such as ``date=2026-01-31`` or ``7.csv``; else ``None``."""
    text = _SUFFIXES.sub("", name).rpartition("=")[2]
    try:
        if text.isdecimal():
            return int(text)
        if (found := _TIME.fullmatch(text)) is not None:
            day, hour, minute, second = found.groups()
            return datetime.fromisoformat(f"{day}T{hour}:{minute}:{second or '00'}")
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def format_of(path: Location) -> str | None:
    """Spark's format of the files of a snapshot; ``None`` if they have none of the suffixes, or several."""
    suffixes = {PurePosixPath(_COMPRESSED.sub("", one.name)).suffix for one in _data_files(path)}
    formats = {_FORMATS.get(one) for one in suffixes}
    return formats.pop() if len(formats) == 1 else None


def _data_files(path: Location) -> list[Location]:
    """The files of a snapshot that Spark reads."""
    files = [one for one in path.walk() if not any(map(_is_hidden, one.below(path)))]
    return files or ([path] if path.name in path.parent.list_files() else [])


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))
