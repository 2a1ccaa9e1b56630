"""What `headrace sql` has defined in a storage: tables, scans and streams.

The storage has the statements. A stream runs as a pipeline: a spec, and an SQL file for each Delta table,
scan and stream. These files are in the same folder, or on this machine if the storage is in a bucket.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace import errors
from headrace.errors import SourceLocation, did_you_mean
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.secrets import is_secret_key
from headrace.plan.stored import load_stored
from headrace.project.ingest_code import build_spec
from headrace.runtime.places import cache_folder, replace_file
from headrace.shell.stream_sql import (
    FlowSql,
    build_flow,
    build_scan,
    build_table,
    invalid_sql,
    read_options,
    scans_of,
    table_columns,
)
from headrace.storage.layout import locate
from headrace.storage.local import link_folder, remove_link
from headrace.storage.location import Location
from headrace.storage.table_log import is_table
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import (
    CreateScan,
    CreateStream,
    CreateTable,
    Definition,
    Kind,
    parse_stream_statement,
)
from headrace.syntax.tokens import Cursor

_STATEMENTS = "statements"
_CODE = "transformations"


class Definitions:
    def __init__(self, settings: ProjectSettings) -> None:
        self.settings = settings
        self._location: Location = settings.storage.streams

    @property
    def root(self) -> Path:
        """The folder of the files from which a stream runs."""
        if self._location.is_local:
            return self._location.local_path
        mark = hashlib.sha256(self._location.path.encode()).hexdigest()[:20]
        return cache_folder() / "streams" / mark

    def name_of(self, parts: tuple[str, ...]) -> TableName:
        return TableName.of_parts(parts, self.settings.database, self.settings.catalog)

    def key_of(self, definition: Definition) -> str:
        if isinstance(definition, CreateTable):
            return str(self.name_of(definition.name))
        assert definition.name is not None
        return definition.name

    def names(self, kind: Kind) -> list[str]:
        files = (self._location / _STATEMENTS).list_files()
        found = (file.removesuffix(".sql").partition(".") for file in files if file.endswith(".sql"))
        return sorted(name for one, _, name in found if one == kind)

    def find(self, kind: Kind, name: str) -> tuple[Definition, str] | None:
        file = self._file(kind, name)
        try:
            text = file.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None
        location = SourceLocation("/".join(file.below(self._location)), 1, 1, is_sql=True)
        found = parse_stream_statement(Cursor(SqlText(text, location)))
        assert isinstance(found, CreateTable | CreateScan | CreateStream)
        if isinstance(found, CreateStream) and found.name is None:
            found = replace(found, name=name)
        return found, text

    def table(self, name: TableName) -> CreateTable | None:
        """The definition of a table; ``None`` if it was not made here."""
        found = self.find("table", str(name))
        return None if found is None else found[0]  # type: ignore[return-value]

    def stream(self, name: str, location: SourceLocation | None = None) -> tuple[CreateStream, str]:
        found = self.find("stream", name)
        if found is None:
            raise self.unknown("stream", name, location)
        return found  # type: ignore[return-value]

    def unknown(self, kind: Kind, name: str, location: SourceLocation | None) -> errors.SqlNameUnknownError:
        known = self.names(kind)
        otherwise = f"CREATE {kind.upper()} {name} .."
        if kind == "stream":
            begins = "name one of them, or" if known else "nothing is left to drop; or name"
            otherwise = f"{begins} the storage of the stream:   headrace sql --storage PATH"
        return errors.SqlNameUnknownError(
            f"there is no {kind} `{name}` in {self.settings.storage.root}",
            location=location,
            facts=[f"{kind}s: {', '.join(known) or 'none'}"],
            remedies=did_you_mean(name, known, otherwise),
            params={"kind": kind, "name": name, "known": known},
        )

    def add(self, definition: Definition, text: str) -> bool:
        """Keep a definition; ``False`` if it exists, and the statement has ``IF NOT EXISTS``."""
        kind, key = definition.kind, self.key_of(definition)
        if self._file(kind, key).exists():
            if definition.if_not_exists:
                return False
            kept = "; its rows and files are kept" if kind == "table" else ""
            raise errors.SqlNameTakenError(
                f"the {kind} `{key}` exists already",
                location=definition.location,
                remedies=[
                    f"keep the {kind} as it is:   CREATE {kind.upper()} IF NOT EXISTS {key} ..",
                    f"or remove its definition first{kept}:   DROP {kind.upper()} {key}",
                ],
                params={"kind": kind, "name": key},
            )
        self._check_secrets(definition.options, definition.location)
        if isinstance(definition, CreateTable):
            self._check_table(definition)
        elif isinstance(definition, CreateScan):
            build_scan(definition, self._source(definition), self.name_of(definition.table))
        self.write(kind, key, text)
        return True

    def write(self, kind: Kind, name: str, text: str) -> None:
        """Keep the statement of a definition, in place of an earlier one."""
        file = self._file(kind, name)
        if not self._location.is_local:
            file.replace(text)
            return
        with self._location.writing():
            _write(file.local_path, text)

    def remove(self, kind: Kind, name: str) -> None:
        """Forget a definition; rows and checkpoints stay."""
        self._file(kind, name).delete()
        self._code(kind, name).unlink(missing_ok=True)

    def lease(self, name: str) -> Location:
        return self._location / f"{name.casefold()}.lease.json"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name.casefold()}.log"

    def open(self, name: str, stream: CreateStream) -> tuple[ProjectSettings, FlowSql]:
        """Write the files of a stream, and return the settings of a pipeline with this stream alone."""
        target = self.name_of(stream.target)
        table = self.table(target)
        if table is None or table.is_kafka:
            raise self._not_writable(stream, target, table)
        found = {scan: self.find("scan", scan) for scan in scans_of(stream.query, self.names("scan"))}
        scans = {scan: one[0] for scan, one in found.items() if one and isinstance(one[0], CreateScan)}
        tables = {scan: self._source(one) for scan, one in scans.items()}
        reads_kafka = {
            scan: source is not None and source.is_kafka
            for scan, source in tables.items()
            if scans[scan].streaming
        }
        flow = build_flow(name, stream, target, tuple(table_columns(table)), reads_kafka)
        texts = {self._code("table", str(target)): build_table(table, target)}
        for scan, one in scans.items():
            texts[self._code("scan", scan)] = build_scan(one, tables[scan], self.name_of(one.table))
        texts[self._code("stream", name)] = flow.text
        for file, text in texts.items():
            _write(file, text)
        settings = self.settings
        root = settings.storage.root
        storage = os.path.relpath(str(root), self.root) if root.is_local else str(root)
        spec = build_spec(
            self.root, settings.name, storage, settings.database, settings.kafka, settings.configuration
        )
        _write(self.root / "headrace.yml", spec)
        self._link_checkpoint(stream, target, name)
        libraries = tuple(f"{_CODE}/{file.name}" for file in texts)
        file, kept_in = self.root / "headrace.yml", None if root.is_local else self._location
        return replace(settings, file=file, kept_in=kept_in, libraries=libraries), flow

    def _source(self, scan: CreateScan) -> CreateTable | None:
        name = self.name_of(scan.table)
        table = self.table(name)
        self.settings.redactor.add_settings(scan.options)
        if table is not None:
            self.settings.redactor.add_settings(table.options)
        elif not is_table(self.settings.storage.table(name)):
            raise self.unknown("table", str(name), scan.table_location)
        return table

    def _not_writable(
        self, stream: CreateStream, target: TableName, table: CreateTable | None
    ) -> errors.SqlNameUnknownError | errors.SqlInvalidError:
        if table is not None:
            problem = f"`{target.short}` is a Kafka table; a stream writes Delta tables"
            return invalid_sql(stream.target_location, problem)
        error = self.unknown("table", str(target), stream.target_location)
        if not is_table(self.settings.storage.table(target)):
            return error
        return error.with_(
            summary=f"the table `{target.short}` was not made by headrace sql",
            remedies=[
                f"write a flow of its pipeline: CREATE FLOW name AS INSERT INTO {target.short} BY NAME ..",
                "or write another table: CREATE TABLE name (columns) USING delta",
            ],
        )

    def _check_table(self, table: CreateTable) -> None:
        name = self.name_of(table.name)
        self.settings.redactor.add_settings(table.options)
        stored = load_stored(self.settings.storage, name)
        if stored is not None:
            raise errors.SqlNameTakenError(
                f"the storage has a table `{name.short}`, which was not made by headrace sql",
                location=table.location,
                remedies=["choose another name"],
                params={"kind": "table", "name": str(name)},
            )
        table_columns(table)
        if table.path is not None:
            folder = self._folder(table.path, table.location)
            _link(self.settings.storage.table(name), folder, table.location)

    def drop_table(self, name: TableName, location: SourceLocation) -> None:
        table = self.table(name)
        if table is None:
            raise errors.TableUnknownError(
                f"there is no table `{name.short}` that headrace sql has made",
                location=location,
                remedies=["list the tables:   headrace status"],
                params={"table": str(name)},
            )
        if not table.is_kafka and is_table(self.settings.storage.table(name)):
            problem = f"the table `{name.short}` exists in the storage; headrace sql does not remove tables"
            raise invalid_sql(location, problem)
        remove_link(self.settings.storage.table(name))
        self.remove("table", str(name))

    def _check_secrets(self, options: Mapping[str, str], location: SourceLocation) -> None:
        """Refuse a secret that would be in a bucket. On a local disk, only the owner can read it."""
        found = next(filter(is_secret_key, options), None)
        if found is not None and not self._location.is_local:
            problem = f"the statement has a secret (`{found}`), and the storage is a bucket"
            name = found.removeprefix("kafka.")
            raise invalid_sql(
                location, problem, f"set it in headrace.yml:   kafka: {{{name}: ${{KAFKA_SECRET}}}}"
            )

    def _folder(self, text: str, location: SourceLocation) -> Path:
        """A folder on a local disk; a relative path begins at the folder of the pipeline."""
        if not self._location.is_local:
            problem = f"the path `{text}` needs a storage on a local disk, and this one is a bucket"
            raise invalid_sql(location, problem, "leave the path out: the storage has a folder for it")
        path = self.settings.paths.map(text).removeprefix("file://").removeprefix("file:")
        if ":" in path.partition("/")[0] or not text.strip():
            remedy = "leave the path out: the storage has a folder for the table"
            raise invalid_sql(location, f"`{text}` is not a folder on a local disk", remedy)
        return Path(os.path.normpath(self.settings.root.absolute() / path))

    def _link_checkpoint(self, stream: CreateStream, target: TableName, name: str) -> None:
        """Make the checkpoint's folder a part of the storage, if the stream names one."""
        text = read_options(stream).checkpoint
        if text is None:
            return
        folder = self._folder(text, stream.location)
        link = self.settings.storage.flow_checkpoints(target, name)
        if link.resolve() != locate(folder).resolve() and locate(folder).entries():
            problem = f"the checkpointLocation {folder} holds the checkpoint of another query"
            facts = ["a checkpoint belongs to one flow, and one that plain Spark has made has no ranges"]
            raise invalid_sql(stream.location, problem, "name an empty folder").with_(facts=facts)
        _link(link, folder, stream.location)

    def _file(self, kind: Kind, name: str) -> Location:
        return self._location / _STATEMENTS / f"{kind}.{name.casefold()}.sql"

    def _code(self, kind: Kind, name: str) -> Path:
        return self.root / _CODE / f"{kind}_{name.casefold()}.sql"


def _link(link: Location, folder: Path, location: SourceLocation) -> None:
    with link.writing():
        taken = link_folder(link, folder)
    if taken is not None:
        raise invalid_sql(location, f"it is stored in {taken}, and cannot be moved to {folder}")


def _write(file: Path, text: str) -> None:
    """Write a file that only its owner can read: options can have passwords."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, text, is_private=True)
