"""When a table is compacted, and how long its old files and its log are kept."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, Protocol

from headrace.model.names import TableName
from headrace.model.texts import DAY_S, seconds_or_none

POLICY_PROPERTY: Final = "headrace.maintenance"
"""The table property with the policy that the table's declaration has, as a JSON object."""

MANAGED: Final = "pipelines.autoOptimize.managed"
Z_ORDER: Final = "pipelines.autoOptimize.zOrderCols"
AUTO_COMPACT: Final = "delta.autoOptimize.autoCompact"
TARGET_SIZE: Final = "delta.targetFileSize"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_CLEANUP: Final = "delta.enableExpiredLogCleanup"

SAFE_RETENTION_S: Final = 7 * DAY_S
"""Readers and writers that Headrace does not know are expected to end within this time."""
_TARGET_SIZES = ((10 << 30, 128 << 20), (1 << 40, 256 << 20))
_LARGE_TARGET = 1 << 30
_SMALL_PART = 4
_UNREADABLE_S = 36500 * DAY_S
_SECONDARY_LOG_S = 7 * DAY_S
_MANAGED_KEYS = ("compact", "vacuum")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TablePolicy:
    compact: bool = True
    auto: bool = True  # whether runs compact it; else only ``headrace maintain`` does
    small_files: int = 32  # the table is compacted if that makes at least so many files fewer
    # The table is also compacted after so many commits, if that makes any file fewer; `None` looks at the
    # files alone.
    commits: int | None = None
    # The bytes of a compacted file; `None` chooses them by the size of the table.
    target_file_size: int | None = None
    deleted_ratio: float = 0.5  # files are rewritten if deletion vectors hide a larger part of their rows
    z_order: tuple[str, ...] = ()  # the columns by which ``headrace maintain`` orders rows when it compacts
    vacuum: bool = True  # whether old files are deleted
    vacuum_every_s: float = DAY_S  # the time between two vacuums in a continuous run
    retention_s: float = SAFE_RETENTION_S  # how long files are kept that are no longer part of the table
    log_retention_s: float = 30 * DAY_S  # how long the commits of the table's log are kept
    cleans_log: bool = True  # whether Headrace deletes old commits; if not, Delta can still do so
    # A reader that has not read a commit for so long does not hold a vacuum back silently.
    reader_lag_s: float = 30 * DAY_S
    allow_short_retention: bool = False  # whether the retention may be shorter than `SAFE_RETENTION_S`

    @property
    def for_secondary_tables(self) -> TablePolicy:
        """The policy for quarantine and tombstone tables, without the keys that are only for the table.
        Neither `verify` nor the ledger needs their commits, so these are kept for a week at most."""
        kept_s = min(self.log_retention_s, _SECONDARY_LOG_S)
        only = {"z_order": (), "commits": None}
        return self.with_values({**only, "cleans_log": True, "log_retention_s": kept_s})

    def target_bytes(self, table_bytes: int) -> int:
        if self.target_file_size is not None:
            return self.target_file_size
        return next((size for below, size in _TARGET_SIZES if table_bytes < below), _LARGE_TARGET)

    def small_bytes(self, table_bytes: int) -> int:
        """Smaller files of a table with so many bytes are compacted."""
        return max(self.target_bytes(table_bytes) // _SMALL_PART, 1)

    def with_values(self, values: Mapping[str, Any]) -> TablePolicy:
        """The policy with other values, by the names of its fields; unknown names are left out."""
        known = {one.name for one in fields(self)}
        return replace(self, **{name: value for name, value in values.items() if name in known})

    def with_properties(self, properties: Mapping[str, str]) -> TablePolicy:
        given = {name.lower(): value for name, value in properties.items()}

        def is_off(name: str) -> bool:
            return given.get(name.lower(), "true").lower() == "false"

        values: dict[str, Any] = {}
        if is_off(AUTO_COMPACT):
            values["auto"] = False
        if is_off(MANAGED):
            values |= dict.fromkeys(_MANAGED_KEYS, False)
        if columns := given.get(Z_ORDER.lower()):
            values["z_order"] = tuple(one.strip() for one in columns.split(",") if one.strip())
        if given.get(LOG_CLEANUP.lower(), "true").lower() != "false":
            values["cleans_log"] = False
        for name, key in ((FILE_RETENTION, "retention_s"), (LOG_RETENTION, "log_retention_s")):
            if (text := given.get(name.lower())) is not None:
                # If the time cannot be parsed, files are kept as long as possible.
                seconds = seconds_or_none(text)
                values[key] = _UNREADABLE_S if seconds is None else seconds
                if key == "retention_s":
                    # As in Delta, the property itself allows a short retention.
                    values["allow_short_retention"] = True
        if (size := given.get(TARGET_SIZE.lower())) is not None and _SIZE.fullmatch(size):
            values["target_file_size"] = parse_bytes(size)
        return self.with_values(values)


@dataclass(frozen=True, kw_only=True)
class MaintenanceSettings:
    # The values for all tables, by the names of `TablePolicy`.
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[TableName, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, table: TableName, properties: Mapping[str, str]) -> TablePolicy:
        """The policy of a table: the later of these wins. The defaults, the spec for all tables, the
        properties of Delta and Databricks, the declaration of the table, the spec for this table."""
        policy = TablePolicy().with_values(self.values).with_properties(properties)
        policy = policy.with_values(_declared(properties))
        return policy.with_values(self.tables.get(table, {}))


def parse_bytes(value: Any) -> int:
    """The bytes of ``128m``, ``64mb`` or ``134217728``."""
    found = _SIZE.fullmatch(str(value)) if isinstance(value, str | int) else None
    size = int(float(found[1]) * 1024 ** (" kmgt".index(found[2].lower() or " "))) if found else 0
    if size < 1 or isinstance(value, bool):
        raise ValueError("must be a size, such as 128m or 1g")
    return size


def _declared(properties: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        value = json.loads(properties.get(POLICY_PROPERTY, "{}"))
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return {**value, "z_order": tuple(value["z_order"])} if "z_order" in value else value


class StoredRows(Protocol):
    """A data file, as a compaction sees it."""

    @property
    def partition(self) -> tuple[tuple[str, Any], ...]: ...

    @property
    def size(self) -> int: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def deleted(self) -> int: ...


class FileRows(NamedTuple):
    partition: tuple[tuple[str, Any], ...]
    size: int
    rows: int | None  # its rows, deleted ones too; ``None`` if the log has no statistics
    deleted: int


@dataclass(frozen=True, kw_only=True)
class FoldableFiles:
    number: int  # the files that it would save, or free of deleted rows; each partition keeps one file
    hides_many: bool = False  # whether deletion vectors hide a larger part of all rows than the policy allows
    has_large: bool = False  # whether one of the files with mostly deleted rows is not small

    def wanted_commits(self, policy: TablePolicy) -> int | None:
        """The commits since the last compaction after which the next one is due; ``None`` for never."""
        if self.number >= policy.small_files or (self.hides_many and self.has_large):
            return 0
        # A small table with many changes would otherwise be rewritten after almost every batch.
        after = (policy.commits, max(policy.small_files // 2, 1) if self.hides_many else None)
        return min((one for one in after if one is not None), default=None) if self.number else None


def is_mostly_deleted(file: StoredRows, policy: TablePolicy) -> bool:
    # As in Delta: without statistics, any deleted row is enough.
    return file.deleted > policy.deleted_ratio * (file.rows or 0)


def count_foldable(files: Iterable[StoredRows], policy: TablePolicy) -> FoldableFiles:
    listed = list(files)
    below = policy.small_bytes(sum(one.size for one in listed))
    small = Counter(one.partition for one in listed if one.size < below)
    masked = [one for one in listed if is_mostly_deleted(one, policy)]
    known = [(one.deleted, one.rows) for one in listed if one.rows is not None]
    return FoldableFiles(
        number=sum(one - 1 for one in small.values()) + len(masked),
        hides_many=sum(one[0] for one in known) > policy.deleted_ratio * sum(one[1] for one in known),
        has_large=any(one.size >= below for one in masked),
    )
