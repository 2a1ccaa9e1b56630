"""The tables of a dataset with their policies, and what needs their old versions: flows and views that read
them, pinned versions, and the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_never

from headrace.errors import HeadraceError, PinInvalidError
from headrace.model.maintenance import MaintenanceSettings, TablePolicy
from headrace.model.names import TableName
from headrace.sources.delta.facts import DeltaPosition
from headrace.state.checkpoint import (
    find_checkpoints,
    load_identity,
    load_offsets,
    load_query,
    load_state,
    offsets_path,
)
from headrace.state.ledger import Ledger, view_ledgers
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.row_counts import newest_refresh
from headrace.storage.table_log import (
    committed_ms,
    follow_commits,
    is_table,
    load_checksum,
    newest_version,
    readable_commit,
    versions,
)
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot

Role = Literal["table", "quarantine", "tombstones"]
_SECONDARY: tuple[Role, ...] = ("quarantine", "tombstones")
Care = Literal["compacted", "ordered", "vacuumed", "erased", "log", "log_look", "vacuum_look"]


@dataclass(frozen=True)
class DatasetTable:
    """A Delta table of a storage. `role`: the dataset's own table, the table of its rejected rows, or the
    table of its deleted keys."""

    dataset: TableName
    role: Role = "table"

    @property
    def title(self) -> str:
        return self.dataset.short if self.role == "table" else f"{self.dataset.short} ({self.role})"

    def path(self, storage: Storage) -> Location:
        match self.role:
            case "table":
                return storage.table(self.dataset)
            case "quarantine":
                return storage.quarantine(self.dataset)
            case "tombstones":
                return storage.tombstones(self.dataset)
            case _:
                assert_never(self.role)


def secondary_tables(storage: Storage, dataset: TableName) -> Iterator[DatasetTable]:
    """The quarantine table and the tombstone table of a dataset, if they exist."""
    for role in _SECONDARY:
        one = DatasetTable(dataset, role)
        if is_table(one.path(storage)):
            yield one


def record_maintenance(
    storage: Storage, table: TableName, care: Care, outcome: Mapping[str, Any], role: Role = "table"
) -> None:
    at = datetime.now(UTC).isoformat(timespec="seconds")

    def change(held: Any) -> dict[str, Any]:
        return {**(held if isinstance(held, dict) else {}), care: {"at": at, **outcome}}

    try:
        storage.care(table, role).update_json(change)
    except HeadraceError:
        if care in ("vacuumed", "erased"):
            # `headrace pin` refuses versions by the first, and erasures end by the second.
            raise


def forget_maintenance(storage: Storage, table: TableName, care: Care, role: Role = "table") -> None:
    if care in load_maintenance(storage, table, role):
        storage.care(table, role).update_json(
            lambda held: {key: value for key, value in held.items() if key != care}
        )


def load_maintenance(storage: Storage, table: TableName, role: Role = "table") -> Mapping[str, Any]:
    """The last maintenance of a table, by its kind; empty if none is recorded."""
    held = storage.care(table, role).find_json()
    return held if isinstance(held, dict) else {}


def load_policy(
    storage: Storage, maintenance: MaintenanceSettings, target: DatasetTable, snapshot: TableSnapshot
) -> TablePolicy:
    """The policy of a table. The policy of a dataset's own table holds for its other tables, too."""
    name, is_own = target.dataset, target.role == "table"
    properties = snapshot.properties
    if not is_own:
        _, properties = load_metadata(storage.table(name), newest_version(storage.table(name)))
    policy = maintenance.of(name, properties)
    return policy if is_own else policy.for_secondary_tables


def load_metadata(table: Location, version: int) -> tuple[str, Mapping[str, str]]:
    """Delta's id of a table, and its properties: those of the checksum of a commit, if there is one."""
    try:
        found = load_checksum(table, version)["metadata"]
        return str(found["id"]), dict(found["configuration"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        snapshot = load_snapshot(table)
        return snapshot.table_id, snapshot.properties


UNKNOWN = -1
_VIEW_LAG = timedelta(days=30)
"""A view that was not refreshed for longer is computed as a whole when it is."""


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A version of a table that stays readable."""

    table: TableName
    version: int
    until: datetime

    def to_json(self) -> dict[str, Any]:
        return {"dataset": str(self.table), "version": self.version, "until": self.until.isoformat()}


def load_pins(storage: Storage, table: TableName, now: datetime | None = None) -> tuple[Pin, ...]:
    """The pins of a table that have not ended, by version."""
    file = storage.pins(table)
    try:
        found = [
            Pin(table=table, version=int(one["version"]), until=datetime.fromisoformat(one["until"]))
            for one in file.read_json()
        ]
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(table, file, error) from error
    at = now or datetime.now(UTC)
    return tuple(sorted((one for one in found if one.until > at), key=lambda one: one.version))


def _damaged(table: TableName, file: Location, error: Exception) -> PinInvalidError:
    named = re.findall(r'"version":\s*(\d+)', file.read_bytes().decode(errors="replace"))
    again = [f"headrace pin {table.short} --version {one} --for 30d" for one in dict.fromkeys(named)]
    return PinInvalidError(
        f"the file with the pins of {table.short} is damaged: {file}",
        facts=(f"{type(error).__name__}: {error}", "nothing was changed"),
        remedies=(
            f"delete the file:   {file.remove_command}",
            *(f"and add its pin again:   {one}" for one in again),
            *([] if named else ["and add its pins again, as in the examples:   headrace pin --help"]),
        ),
        params={"dataset": str(table), "path": str(file)},
    )


def _replace(file: Location, is_kept: Callable[[Any], bool], *added: Mapping[str, Any]) -> None:
    file.update_json(lambda held: [*filter(is_kept, held or ()), *added])


def add_pin(storage: Storage, pin: Pin) -> None:
    """Keep a version from now on; a pin of the same version is replaced."""
    load_pins(storage, pin.table)
    _replace(storage.pins(pin.table), lambda one: one["version"] != pin.version, pin.to_json())


def remove_pins(storage: Storage, table: TableName, version: int | None) -> tuple[Pin, ...]:
    removed = tuple(one for one in load_pins(storage, table) if version in (None, one.version))
    versions = {one.version for one in removed}
    if removed:
        _replace(storage.pins(table), lambda one: one["version"] not in versions)
    return removed


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Needs the files and the log of a table from a version on. `kind`: a flow that reads the table, a view
    that is refreshed by what has changed in it, a pinned version, or the ledger of a flow that writes it."""

    kind: Literal["flow", "view", "pin", "ledger"]
    name: str  # the name of the flow or view, or the end of the pin
    version: int  # the version; `UNKNOWN` if it is not known
    first_unread: int | None = None  # the first version that it has not read yet; ``None`` for a pin
    reads_all: bool = False  # whether it needs all files of the version, and not only those of later commits
    log_version: int | None = None  # the first commit that it needs, if this is not the version
    skips_erasures: bool = False  # whether it skips commits that only delete rows
    plans_snapshot: bool = False  # whether Spark plans again the snapshot with which it started

    def __str__(self) -> str:
        match self.kind:
            case "flow" | "view":
                return f"{self.kind} {self.name}"
            case "pin":
                return f"the pin of version {self.version} until {self.name}"
            case "ledger":
                return f"the ledger of flow {self.name}"

    @property
    def first_commit(self) -> int:
        return self.version if self.log_version is None else self.log_version

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "version": self.version}


def find_holders(
    storage: Storage, table: TableName, table_id: str, role: Role = "table"
) -> tuple[Holder, ...]:
    """What needs versions of a table. `role`: the dataset's own table, its quarantine table or its tombstone
    table."""
    path = DatasetTable(table, role).path(storage)
    if role != "table":
        return tuple(_readers(storage, table_id, path))
    pins = (
        Holder(kind="pin", name=f"{one.until:%Y-%m-%d}", version=one.version, reads_all=True)
        for one in load_pins(storage, table)
    )
    return (
        *_readers(storage, table_id, path),
        *pins,
        *_ledgers(storage, table, table_id),
        *_views(storage, table, table_id),
    )


def find_read_tables(storage: Storage) -> frozenset[str]:
    """Delta's ids of the tables that flows of a storage read."""
    found: set[str] = set()
    for _, _, known in find_checkpoints(storage):
        try:
            sources = load_identity(known[-1]).sources
        except (HeadraceError, OSError, ValueError):
            continue
        found |= {str(one.identity["table_id"]) for one in sources if "table_id" in one.identity}
    return frozenset(found)


def lag_seconds(holder: Holder, table: Location, commits: Iterable[int], now: datetime) -> float | None:
    """The age of the oldest rows that a flow has not read, in seconds; ``None`` if it has read all."""
    if holder.kind != "flow":
        return None
    for version in commits:
        if version >= (holder.first_unread or 0) and _is_read_by(holder, table, version):
            return max(now.timestamp() - committed_ms(table, version) / 1000, 0.0)
    return None


def _is_read_by(holder: Holder, table: Location, version: int) -> bool:
    commit = readable_commit(table, version)
    return commit is None or (commit.adds_rows if holder.skips_erasures else commit.changes_data)


def _readers(storage: Storage, table_id: str, table: Location) -> Iterator[Holder]:
    """The flows of a storage whose newest checkpoint reads a table."""
    for _, flow, known in find_checkpoints(storage):
        yield from _reads(known[-1], flow, table_id, table)


def _reads(checkpoint: Location, flow: str, table_id: str, table: Location) -> Iterator[Holder]:
    try:
        identity = load_identity(checkpoint)
        sources = [one for one in identity.sources if one.identity.get("table_id") == table_id]
        finished, query = load_state(checkpoint).last_finished, load_query(checkpoint)
        for source in sources:
            index = source.index
            at = _position(checkpoint, finished, index)
            # At a restart, Spark plans the last batch again, from where it started.
            before = _position(checkpoint, finished - 1, index)
            start = before or at
            if at is None or start is None:
                yield Holder(kind="flow", name=flow, version=UNKNOWN, first_unread=0)
            else:
                skips = query is not None and index in query.skips_erasures
                needed = min(at.version, start.version)
                yield Holder(
                    kind="flow",
                    name=flow,
                    version=_first_with_rows(table, at) if skips and not at.is_snapshot else needed,
                    first_unread=at.last_version + 1,
                    reads_all=at.is_snapshot,
                    log_version=needed,
                    skips_erasures=skips and not at.is_snapshot,
                    plans_snapshot=before is None or before.is_snapshot,
                )
    except (HeadraceError, OSError, ValueError):
        # A checkpoint that cannot be read may be one of a reader.
        yield Holder(kind="flow", name=flow, version=UNKNOWN, first_unread=0)


def _first_with_rows(table: Location, at: DeltaPosition) -> int:
    """The first version from a position on that adds rows for the stream, or the next version."""
    if at.index >= 0:
        return at.version
    first = max(at.version, *versions(table)[:1])
    for commit in follow_commits(table, first):
        if commit.adds_rows:
            return commit.version
        first = commit.version + 1
    return first


def _position(checkpoint: Location, batch: int, index: int) -> DeltaPosition | None:
    is_there = batch >= 0 and offsets_path(checkpoint, batch).exists()
    held = load_offsets(checkpoint, batch) if is_there else ()
    text = held[index] if index < len(held) else None
    return None if text is None else DeltaPosition.from_json(json.loads(text))


def _ledgers(storage: Storage, table: TableName, table_id: str) -> Iterator[Holder]:
    """The ledgers of the flows that write a table: they need the commits that they do not have yet."""
    for flow in storage.checkpoints(table).list_folders():
        ledger = Ledger(storage.ledger(table, flow), table, flow)
        try:
            yield Holder(kind="ledger", name=flow, version=ledger.next_version(table_id))
        except (HeadraceError, OSError, ValueError):
            yield Holder(kind="ledger", name=flow, version=UNKNOWN)


def _views(storage: Storage, table: TableName, table_id: str) -> Iterator[Holder]:
    """The views whose next refresh follows the changes of a table since the version that they have read."""
    since = datetime.now(UTC) - _VIEW_LAG
    for view in view_ledgers(storage):
        try:
            last = newest_refresh(storage.table(view))
        except (HeadraceError, OSError, ValueError):
            # Without its log, the view is computed as a whole.
            continue
        metadata = (None if last is None else last.metadata) or {}
        seen = metadata.get("inputs", {}).get(str(table), {})
        if last is None or last.at < since or not metadata.get("exact") or seen.get("table_id") != table_id:
            continue
        first = int(seen["version"]) + 1
        yield Holder(kind="view", name=view.short, version=first, first_unread=first, reads_all=True)
