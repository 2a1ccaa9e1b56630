"""Orphaned tables: a pipeline has written them, but its files no longer declare them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import LogUnreadableError, SourceLocation, TableInUseError
from headrace.maintain.checkpoints import measure
from headrace.maintain.holders import DatasetTable, find_holders, secondary_tables
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import find_dataset, find_table
from headrace.observe.snapshot import load_ingested
from headrace.plan import columns, properties
from headrace.plan.properties import PIPELINE
from headrace.plan.stored import StoredTable, load_stored, load_stored_at
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.table import unregister_table
from headrace.state.checkpoint import generations, load_identity
from headrace.state.lease import held_leases
from headrace.storage.location import Location
from headrace.storage.table_log import LOG, is_table, load_commit, newest_version
from headrace.storage.table_snapshot import load_snapshot


@dataclass(frozen=True, kw_only=True)
class OrphanedTable:
    name: TableName
    # The folders that a removal deletes, in an order that lets an interrupted removal be repeated.
    folders: tuple[Location, ...]
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.name),
            "paths": [str(one) for one in self.folders],
            "files": self.files,
            "size_bytes": self.size_bytes,
        }


def find_orphaned(settings: ProjectSettings, deleted: TableName | None = None) -> tuple[TableName, ...]:
    """The tables that this pipeline has written, but that its files did not declare in the last run.
    `deleted`: a table whose folder may be gone, and its checkpoints may be left."""
    storage = settings.storage
    own = storage.last_plan(settings.home).name
    # Topics are ingested one by one, so no plan has all their tables.
    ingested = load_ingested(settings)
    if ingested is None:
        return ()
    declared = set(ingested)
    recorded = datetime.max.replace(tzinfo=UTC)
    is_known = False
    # A pipeline that is defined in the storage, such as one of `headrace ingest`, has its own plan record.
    for file in storage.plans.list_files():
        if not file.endswith("last.json"):
            continue
        try:
            record = (storage.plans / file).read_json()
            if record["pipeline"] != settings.name:
                # Of two pipelines that share a storage, only the last one that ran has a record.
                continue
            recorded = min(recorded, datetime.fromisoformat(record["at"]))
            is_known |= file == own
            declared |= {TableName(str(schema), str(name)) for schema, name in record["tables"]}
        except (OSError, ValueError, KeyError, TypeError):
            # The tables that the pipeline declares are unknown until its next run records them.
            return ()
    if not (is_known and declared):
        # A failed run leaves no record; that of an ingested topic does not have the tables of the files.
        return ()
    return tuple(
        name
        for name in dict.fromkeys((*storage.find_tables(), *filter(None, [deleted])))
        if name not in declared and _is_abandoned(settings, name, recorded)
    )


def _is_abandoned(settings: ProjectSettings, name: TableName, recorded: datetime) -> bool:
    """Whether this pipeline has written a table, and not since a time; false for a damaged table."""
    try:
        stored = load_stored(settings.storage, name)
        if stored is None:
            flows = settings.storage.checkpoints(name)
            newest = (generations(flows / one)[-1] for one in flows.list_folders())
            return {load_identity(one).pipeline for one in newest} == {settings.name}
        if stored.properties.get(PIPELINE) != settings.name:
            return False
        table = settings.storage.table(name)
        # A run of selected datasets does not record what the files declare.
        return load_commit(table, newest_version(table)).timestamp_ms < recorded.timestamp() * 1000
    except (LogUnreadableError, LookupError):
        return False


def load_orphaned(settings: ProjectSettings, name: TableName) -> OrphanedTable:
    """The folders and files that a removal of a table deletes."""
    storage = settings.storage
    if name not in find_orphaned(settings, name):
        raise _not_orphaned(settings, find_dataset(name.short, settings))
    table = storage.table(name)
    holders = [
        one
        for one in (find_holders(storage, name, load_snapshot(table).table_id) if is_table(table) else ())
        if one.kind == "pin" or (one.kind == "flow" and one.first_unread != 0)
    ]
    if holders:
        readers = [str(one) for one in holders]
        removals = {
            f"headrace pin {name.short} --remove --version {one.version}"
            for one in holders
            if one.kind != "flow"
        }
        flows = any(one.kind == "flow" for one in holders)
        raise TableInUseError(
            f"{name.short} cannot be removed: {readers[0]} needs it",
            facts=(f"it is needed by {', '.join(readers)}", "nothing was removed"),
            remedies=(
                *(["let the flows read another table, or remove their declarations and checkpoints"] * flows),
                *sorted(removals),
            ),
            params={"dataset": str(name), "readers": readers},
        )
    secondary = [one.path(storage) for one in secondary_tables(storage, name)]
    folders = (
        storage.checkpoints(name),
        storage.ledger(name, "x").parent,
        storage.snapshots(name),
        *secondary,
        table,
    )
    sizes = [measure(one) for one in folders]
    return OrphanedTable(
        name=name,
        folders=tuple(one for one, size in zip(folders, sizes, strict=True) if size["files"]),
        files=sum(size["files"] for size in sizes),
        size_bytes=sum(size["size_bytes"] for size in sizes),
    )


def _not_orphaned(settings: ProjectSettings, name: TableName) -> TableInUseError:
    stored = load_stored(settings.storage, name)
    writer = None if stored is None else stored.properties.get(PIPELINE)
    removal = f"headrace tables {name.short} --remove"
    then = f"then remove the table with its rows:   {removal}"
    location = None
    if writer != settings.name:
        why = "this pipeline has not written it" if writer is None else f"the pipeline {writer} writes it"
        remedies: tuple[str, ...] = ("delete its folder, if no program needs it",)
        if writer is not None:
            remedies = (f"remove it from the folder of the pipeline {writer}:   {removal}",)
    elif (location := _declared_at(settings, name)) is not None:
        why = "the pipeline declares it"
        remedies = ("remove the declaration, then run the pipeline once:   headrace run", then)
    elif load_ingested(settings) is None:
        records = settings.storage.root / "ingest"
        why = f"a record in {records} cannot be read, and the table could be that of an ingested topic"
        remedies = (f"let all .json files in {records} be readable and whole", then)
    else:
        why = "it was still declared in the last run of the whole pipeline, or there was no such run"
        remedies = ("run the whole pipeline without its declaration:   headrace run", then)
    return TableInUseError(
        f"{name.short} cannot be removed: {why}",
        location=location,
        facts=("nothing was removed",),
        remedies=remedies,
        params={"dataset": str(name), "writer": writer},
    )


def _declared_at(settings: ProjectSettings, name: TableName) -> SourceLocation | None:
    """Where the last run has found the declaration of a table; ``None`` if it is not known."""
    for file in settings.storage.plans.list_files():
        try:
            record = (settings.storage.plans / file).read_json()
            if record["pipeline"] == settings.name and str(name) in record["places"]:
                return SourceLocation(*record["places"][str(name)])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def remove_orphaned(
    settings: ProjectSettings, name: TableName, session: Callable[[], SparkSession]
) -> OrphanedTable:
    """Remove a table, its quarantine and tombstones, and the checkpoints and ledgers of its flows. `session`:
    starts Spark; called only if the pipeline registers its tables in a Hive metastore."""
    storage = settings.storage
    found = load_orphaned(settings, name)
    with held_leases(storage, [name]):
        if settings.configuration.get("spark.sql.catalogImplementation") == "hive":
            unregister_table(session(), name, storage.table(name))
        for one in (DatasetTable(name), DatasetTable(name, "quarantine"), DatasetTable(name, "tombstones")):
            storage.care(name, one.role).delete()
        storage.pins(name).delete()
        for folder in found.folders:
            _delete_log_last(folder)
    return found


def _delete_log_last(folder: Location) -> None:
    """Delete a folder. If this is interrupted in a table, the command finds the table again by its log."""
    for name in folder.list_folders():
        if name != LOG:
            (folder / name).delete_folder()
    for name in folder.list_files():
        (folder / name).delete()
    folder.delete_folder()


_OWN = "headrace."


@dataclass(frozen=True, kw_only=True)
class TableDescription:
    stored: StoredTable
    path: Location

    @property
    def name(self) -> TableName:
        return self.stored.name

    @property
    def kind(self) -> str:
        """``streaming table``, ``materialized view``, or ``table`` for a table of another writer."""
        return (self.stored.kind or "table").replace("_", " ")

    @property
    def keys(self) -> tuple[str, ...]:
        return properties.keys_of(self.stored.properties)

    @property
    def scd_type(self) -> str | None:
        """``1`` or ``2`` for a table that change records are applied to."""
        return self.stored.properties.get(properties.SCD_TYPE)

    @property
    def properties(self) -> dict[str, str]:
        return {k: v for k, v in sorted(self.stored.properties.items()) if not k.startswith(_OWN)}

    @property
    def columns(self) -> tuple[tuple[str, str, bool, str | None], ...]:
        return tuple(
            (
                str(one["name"]),
                columns.type_text(one["type"]),
                bool(one["nullable"]),
                (one.get("metadata") or {}).get("comment"),
            )
            for one in columns.fields(self.stored.schema)
        )

    def to_json(self) -> dict[str, Any]:
        stored = self.stored
        return {
            "dataset": str(self.name),
            "kind": self.kind,
            "pipeline": stored.pipeline,
            "path": str(self.path),
            "version": stored.version,
            "comment": stored.comment,
            "columns": [
                {"name": name, "type": kind, "nullable": nullable, "comment": comment}
                for name, kind, nullable, comment in self.columns
            ],
            "partition_cols": list(stored.partition_cols),
            "cluster_by": list(stored.cluster_by),
            "keys": list(self.keys),
            "stored_as_scd_type": self.scd_type,
            "flows": list(stored.flows),
            "properties": self.properties,
        }


def list_tables(
    settings: ProjectSettings,
) -> tuple[tuple[TableDescription, ...], tuple[LogUnreadableError, ...]]:
    """The tables of the storage, and the errors of those whose logs are damaged."""
    storage = settings.storage
    found: list[TableDescription] = []
    damaged: list[LogUnreadableError] = []
    for name in sorted(storage.find_tables()):
        try:
            stored = load_stored(storage, name)
        except LogUnreadableError as error:
            damaged.append(error)
            continue
        if stored is not None:
            found.append(TableDescription(stored=stored, path=storage.table(name)))
    return tuple(found), tuple(damaged)


def describe_table(settings: ProjectSettings, table: str) -> TableDescription:
    path = find_table(table, settings.storage, settings.database)
    stored = load_stored_at(path)
    assert stored is not None, "a table that was found has metadata"
    return TableDescription(stored=stored, path=path)
