"""The pinned versions of a pipeline's tables: list, add and remove them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.errors import PinInvalidError
from headrace.maintain.dataset_tables import load_maintenance
from headrace.maintain.pins import (
    Pin,
    RegisteredReader,
    add_pin,
    add_reader,
    find_pins,
    load_pins,
    load_readers,
    remove_pins,
    remove_reader,
)
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import find_dataset
from headrace.storage.table_log import readable_versions


@dataclass(frozen=True)
class Pins:
    """The pins of a pipeline."""

    settings: ProjectSettings

    def list(self, table: str | None = None) -> tuple[Pin, ...]:
        """The pins of a table, or of all tables of the storage.

        Raises:
            TableUnknownError: There is no such table.
        """
        storage = self.settings.storage
        return tuple(find_pins(storage)) if table is None else load_pins(storage, self._name(table))

    def add(self, table: str, version: int | None, seconds: float) -> Pin:
        """Keep a version readable from now on.

        Raises:
            TableUnknownError: There is no such table.
            PinInvalidError: The table does not have the version any more.
        """
        name = self._name(table)
        storage = self.settings.storage
        chosen = self._chosen(name, version)
        # A version that is already pinned still has its files.
        is_kept = any(one.version == chosen for one in load_pins(storage, name))
        pin = Pin(table=name, version=chosen, until=datetime.now(UTC) + timedelta(seconds=seconds))
        # A vacuum writes what it deletes, and reads the pins then: one of the two sees the other.
        add_pin(storage, pin)
        oldest = int(load_maintenance(storage, name).get("vacuumed", {}).get("readable_from", 0))
        if chosen < oldest and not is_kept:
            remove_pins(storage, name, chosen)
            raise PinInvalidError(
                f"{name.short}: files of version {chosen} were deleted by a vacuum",
                facts=(f"the oldest version with all its files is {oldest}",),
                remedies=(f"pin version {oldest} or a newer one",),
                params={"table": str(name), "version": chosen},
            )
        return pin

    def remove(self, table: str, version: int | None = None) -> tuple[Pin, ...]:
        """Remove the pin of a version, or all pins of a table; returns those that were removed.

        Raises:
            TableUnknownError: There is no such table.
        """
        return remove_pins(self.settings.storage, self._name(table), version)

    def readers(self, table: str | None = None) -> tuple[RegisteredReader, ...]:
        """The registered readers of a table, or of all tables of the storage.

        Raises:
            TableUnknownError: There is no such table.
        """
        storage = self.settings.storage
        names = storage.find_tables() if table is None else (self._name(table),)
        return tuple(one for name in names for one in load_readers(storage, name))

    def add_reader(
        self, table: str, reader: str, version: int | None, max_lag_s: float | None
    ) -> RegisteredReader:
        """Register a reader of another system, or record the version that it has read.

        Args:
            version: The last version that it has read; by default the newest.
            max_lag_s: Seconds after which commits and files are no longer kept for the reader; ``None`` keeps
                the present value.

        Raises:
            TableUnknownError: There is no such table.
            PinInvalidError: The table does not have the version any more, or a new reader has no
                maximum lag.
        """
        name = self._name(table)
        known = {one.name: one for one in load_readers(self.settings.storage, name)}
        if max_lag_s is None and reader not in known:
            raise PinInvalidError(
                f"{name.short} has no registered reader {reader}",
                facts=("nothing was changed",),
                remedies=(f"register it:   headrace pin {name.short} --reader {reader} --max-lag 7d",),
                params={"table": str(name), "reader": reader},
            )
        lag_s = known[reader].max_lag_s if max_lag_s is None else max_lag_s
        found = RegisteredReader(
            table=name, name=reader, version=self._chosen(name, version), max_lag_s=lag_s
        )
        add_reader(self.settings.storage, found)
        return found

    def remove_reader(self, table: str, reader: str) -> tuple[RegisteredReader, ...]:
        """Remove a registered reader, and return it.

        Raises:
            TableUnknownError: There is no such table.
        """
        return remove_reader(self.settings.storage, self._name(table), reader)

    def _chosen(self, name: TableName, version: int | None) -> int:
        """A version of a table, by default the newest."""
        known = readable_versions(self.settings.storage.table(name))
        chosen = known[-1] if version is None and known else version
        if chosen is None or chosen not in known:
            held = f"its versions: {known[0]} to {known[-1]}" if known else "its log has no version"
            raise PinInvalidError(
                f"{name.short} has no version {chosen}",
                facts=(held,),
                remedies=("choose one of them",),
                params={"table": str(name), "version": chosen},
            )
        return chosen

    def _name(self, table: str) -> TableName:
        return find_dataset(table, self.settings)
