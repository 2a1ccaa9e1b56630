"""Registered readers: readers of other systems, with the version that they have read and a maximum lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import PinInvalidError
from headrace.model.names import TableName
from headrace.storage.layout import Storage


@dataclass(frozen=True, kw_only=True)
class RegisteredReader:
    """A registered reader of a table."""

    table: TableName
    name: str
    version: int
    max_lag_s: float  # seconds after which commits are no longer kept for the reader

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.table),
            "reader": self.name,
            "version": self.version,
            "max_lag_s": self.max_lag_s,
        }


def load_readers(storage: Storage, table: TableName) -> tuple[RegisteredReader, ...]:
    """The registered readers of a table, by name.

    Raises:
        PinInvalidError: The file of the readers is damaged.
        OSError: The file cannot be read.
    """
    file = storage.registered_readers(table)
    try:
        held = file.read_json()
        found = [
            RegisteredReader(
                table=table,
                name=str(one["reader"]),
                version=int(one["version"]),
                max_lag_s=float(one["max_lag_s"]),
            )
            for one in held
        ]
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise PinInvalidError(
            f"the file with the registered readers of {table.short} is damaged: {file}",
            facts=(f"{type(error).__name__}: {error}", "nothing was changed"),
            remedies=(
                "delete the file, and register the readers again:   "
                f"headrace pin {table.short} --reader NAME --max-lag 7d",
            ),
            params={"table": str(table), "path": str(file)},
        ) from error
    return tuple(sorted(found, key=lambda one: one.name))


def add_reader(storage: Storage, reader: RegisteredReader) -> None:
    """Register a reader, or replace its entry.

    Raises:
        StorageUnwritableError: The storage cannot be written.
    """
    load_readers(storage, reader.table)
    storage.registered_readers(reader.table).update_json(
        lambda held: [*(one for one in held or () if one["reader"] != reader.name), reader.to_json()]
    )


def remove_reader(storage: Storage, table: TableName, name: str) -> tuple[RegisteredReader, ...]:
    """Remove a reader, and return it.

    Raises:
        StorageUnwritableError: The storage cannot be written.
    """
    removed = tuple(one for one in load_readers(storage, table) if one.name == name)
    if removed:
        storage.registered_readers(table).update_json(
            lambda held: [one for one in held or () if one["reader"] != name]
        )
    return removed
