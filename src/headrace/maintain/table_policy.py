"""The policy of a Delta table of a dataset."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.maintain.closed_partitions import with_watermark
from headrace.maintain.dataset_tables import DatasetTable
from headrace.model.maintenance import MaintenanceSettings, TablePolicy
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import load_checksum, newest_version
from headrace.storage.table_snapshot import TableSnapshot, load_snapshot


def load_policy(
    storage: Storage, maintenance: MaintenanceSettings, target: DatasetTable, snapshot: TableSnapshot
) -> TablePolicy:
    """The policy of a table. The policy of a dataset's own table holds for its other tables, too.

    Raises:
        OSError: The log of the dataset's own table cannot be read.
        ValueError: That log is damaged.
    """
    name, is_own = target.dataset, target.role == "table"
    properties = snapshot.properties if is_own else load_properties(storage.table(name))
    policy = with_watermark(maintenance.of(name, properties), storage, name)
    return policy if is_own else policy.for_secondary_tables


def load_properties(table: Location, version: int | None = None) -> Mapping[str, str]:
    """The properties of a table: those of the checksum of its newest commit, if there is one.

    Raises:
        OSError: The log cannot be read.
        ValueError: The log is damaged.
    """
    try:
        return dict(
            load_checksum(table, newest_version(table) if version is None else version)["metadata"][
                "configuration"
            ]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return load_snapshot(table).properties
