"""Pinned versions of tables, and registered readers of other systems: what they need is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from headrace.errors import PinInvalidError
from headrace.model.names import TableName
from headrace.storage.layout import Storage
from headrace.storage.location import Location

Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A version of a table that stays readable."""

    table: TableName
    version: int
    until: datetime

    def to_json(self) -> dict[str, Any]:
        return {"dataset": str(self.table), "version": self.version, "until": self.until.isoformat()}


def _load(
    file: Location,
    table: TableName,
    what: str,
    key: str,
    again: Callable[[str], str],
    read: Callable[[Any], Kept],
) -> list[Kept]:
    """The entries of a file; none if the file does not exist.

    Args:
        key: The field that names an entry.
        again: The command that makes an entry again, by its name.
    """
    try:
        return [read(one) for one in file.read_json()]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        named = re.findall(rf'"{key}":\s*"?([\w.-]+)', file.read_bytes().decode(errors="replace"))
        raise PinInvalidError(
            f"the file with the {what} of {table.short} is damaged: {file}",
            facts=(f"{type(error).__name__}: {error}", "nothing was changed"),
            remedies=(
                f"delete the file:   {file.remove_command}",
                *(f"and add its entry again:   {again(name)}" for name in dict.fromkeys(named)),
                *([] if named else ["and add its entries again, as in the examples:   headrace pin --help"]),
            ),
            params={"dataset": str(table), "path": str(file)},
        ) from error


def _replace(file: Location, is_kept: Callable[[Any], bool], *added: Mapping[str, Any]) -> None:
    file.update_json(lambda held: [*filter(is_kept, held or ()), *added])


def load_pins(storage: Storage, table: TableName, now: datetime | None = None) -> tuple[Pin, ...]:
    """The pins of a table that have not ended, by version."""

    def read(one: Any) -> Pin:
        return Pin(table=table, version=int(one["version"]), until=datetime.fromisoformat(one["until"]))

    def again(version: str) -> str:
        return f"headrace pin {table.short} --version {version} --for 30d"

    found = _load(storage.pins(table), table, "pins", "version", again, read)
    at = now or datetime.now(UTC)
    return tuple(sorted((one for one in found if one.until > at), key=lambda one: one.version))


def add_pin(storage: Storage, pin: Pin) -> None:
    """Keep a version from now on; a pin of the same version is replaced."""
    load_pins(storage, pin.table)
    _replace(storage.pins(pin.table), lambda one: one["version"] != pin.version, pin.to_json())


def remove_pins(storage: Storage, table: TableName, version: int | None) -> tuple[Pin, ...]:
    """Remove the pins of a version, or all pins of a table; returns the removed pins."""
    removed = tuple(one for one in load_pins(storage, table) if version in (None, one.version))
    versions = {one.version for one in removed}
    if removed:
        _replace(storage.pins(table), lambda one: one["version"] not in versions)
    return removed


@dataclass(frozen=True, kw_only=True)
class RegisteredReader:
    table: TableName
    name: str
    version: int
    max_lag_s: float  # seconds after which commits are no longer kept for the reader

    def to_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.table),
            "reader": self.name,
            "version": self.version,
            "max_lag_s": self.max_lag_s,
        }


def load_readers(storage: Storage, table: TableName) -> tuple[RegisteredReader, ...]:

    def read(one: Any) -> RegisteredReader:
        version, max_lag_s = int(one["version"]), float(one["max_lag_s"])
        return RegisteredReader(table=table, name=str(one["reader"]), version=version, max_lag_s=max_lag_s)

    def again(name: str) -> str:
        return f"headrace pin {table.short} --reader {name} --max-lag 7d"

    found = _load(storage.registered_readers(table), table, "registered readers", "reader", again, read)
    return tuple(sorted(found, key=lambda one: one.name))


def add_reader(storage: Storage, reader: RegisteredReader) -> None:
    """Register a reader, or replace its entry."""
    load_readers(storage, reader.table)
    file = storage.registered_readers(reader.table)
    _replace(file, lambda one: one["reader"] != reader.name, reader.to_json())


def remove_reader(storage: Storage, table: TableName, name: str) -> tuple[RegisteredReader, ...]:
    removed = tuple(one for one in load_readers(storage, table) if one.name == name)
    if removed:
        _replace(storage.registered_readers(table), lambda one: one["reader"] != name)
    return removed
