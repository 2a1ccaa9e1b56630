"""The Delta tables of a dataset, their policies, and the record of their maintenance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_never

from headrace.errors import HeadraceError
from headrace.maintain.checkpoints import watermark_ms
from headrace.model.maintenance import WATERMARK, MaintenanceSettings, TablePolicy, Watermark
from headrace.model.names import TableName
from headrace.state.identity import generations
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import is_table, load_checksum, newest_version
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot

Role = Literal["table", "quarantine", "tombstones"]
_SECONDARY: tuple[Role, ...] = ("quarantine", "tombstones")
Care = Literal["compacted", "ordered", "vacuumed", "erased", "log", "log_look", "vacuum_look"]
_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})(?:-(\d{1,2})(?:[ T_-](\d{1,2})(?::?(\d{2})(?::?(\d{2})[.\d]*)?)?Z?)?)?"
)
_PARTS = ("year", "month", "day", "hour")
Partition = tuple[tuple[str, str | None], ...]


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
    """Record a maintenance step of a table, with the current time."""
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
    """What was done to a table last, by kind; empty if nothing is known."""
    held = storage.care(table, role).find_json()
    return held if isinstance(held, dict) else {}


def with_watermark(policy: TablePolicy, storage: Storage, table: TableName) -> TablePolicy:
    """The policy of a table, with the time since the watermark of its flows if only partitions that ended
    before it are closed. Without a watermark, or if one of the flows has none, no partition is closed."""
    if policy.closed_partitions != WATERMARK:
        return policy
    watermark = load_watermark(storage, table)
    if watermark is None:
        return policy
    return replace(policy, closed_partitions=(datetime.now(UTC) - watermark).total_seconds())


def load_watermark(storage: Storage, table: TableName) -> datetime | None:
    """The watermark that all flows of a table have reached; ``None`` if one of them has none."""
    found: list[int | None] = []
    for flow in storage.checkpoints(table).list_folders():
        if known := generations(storage.checkpoints(table) / flow):
            found.append(watermark_ms(known[-1]))
    reached = [one for one in found if one is not None]
    if not reached or len(reached) < len(found):
        return None
    return datetime.fromtimestamp(min(reached) / 1000, UTC)


def closed_before(closed: float | Watermark, now: datetime | None = None) -> Callable[[Partition], bool]:
    """Returns a function that tells whether a partition ended at least so many seconds ago. `closed`: the
    seconds; `WATERMARK` if the flow has no watermark, and then the answer is always no."""
    if closed == WATERMARK:
        return lambda _: False
    limit = (now or datetime.now(UTC)) - timedelta(seconds=closed)

    def is_closed(partition: Partition) -> bool:
        end = partition_end(dict(partition))
        return end is not None and end <= limit

    return is_closed


def partition_end(values: Mapping[str, str | None]) -> datetime | None:
    """The end of a partition in UTC; ``None`` if its values have no time.

    Times are recognised in columns with dates (``2026-11-20``), months (``2026-11``), hours
    (``2026-11-20 14`` or a timestamp), and in columns called year, month, day and hour, also beside a date.
    A partition with several such columns ends at the latest of their ends.
    """
    ends = [end for value in values.values() if (end := _end_of(value)) is not None]
    named = {name.lower(): value for name, value in values.items()}
    hour = _number(named.get("hour"))
    if hour is not None and len(ends) == 1 and ends[0][1] == _DAY:
        return ends[0][0] - _DAY + (hour + 1) * _HOUR
    if ends:
        return max(end for end, _ in ends)
    numbers = [_number(named.get(one)) for one in _PARTS]
    given = numbers[: numbers.index(None)] if None in numbers else numbers
    return _end([one for one in given if one is not None]) if given else None


def _end_of(value: str | None) -> tuple[datetime, timedelta] | None:
    """The end of the period that a value names, and the length of the period."""
    found = _TIME.fullmatch(value or "")
    if found is None:
        return None
    numbers = [int(one) for one in found.groups()[:4] if one is not None]
    # A column truncated to days has timestamps at midnight, which mean the whole day.
    if len(numbers) == 4 and numbers[3] == 0 and found[5] is not None:
        numbers.pop()
    end = _end(numbers)
    return None if end is None else (end, {2: timedelta(days=28), 3: _DAY}.get(len(numbers), _HOUR))


def _end(numbers: list[int]) -> datetime | None:
    """The end of a year, a month, a day or an hour."""
    try:
        match numbers:
            case [year]:
                return datetime(year + 1, 1, 1, tzinfo=UTC)
            case [year, month]:
                return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
            case [year, month, day]:
                return datetime(year, month, day, tzinfo=UTC) + _DAY
            case [year, month, day, hour]:
                return datetime(year, month, day, hour, tzinfo=UTC) + _HOUR
            case _:
                return None
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


def load_policy(
    storage: Storage, maintenance: MaintenanceSettings, target: DatasetTable, snapshot: TableSnapshot
) -> TablePolicy:
    """The policy of a table. The policy of a dataset's own table holds for its other tables, too."""
    name, is_own = target.dataset, target.role == "table"
    properties = snapshot.properties
    if not is_own:
        _, properties = load_metadata(storage.table(name), newest_version(storage.table(name)))
    policy = with_watermark(maintenance.of(name, properties), storage, name)
    return policy if is_own else policy.for_secondary_tables


def load_metadata(table: Location, version: int) -> tuple[str, Mapping[str, str]]:
    """Delta's id of a table, and its properties: those of the checksum of a commit, if there is one."""
    try:
        found = load_checksum(table, version)["metadata"]
        return str(found["id"]), dict(found["configuration"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        snapshot = load_snapshot(table)
        return snapshot.table_id, snapshot.properties
