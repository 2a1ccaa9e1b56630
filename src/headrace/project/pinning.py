"""The pinned versions of a pipeline's tables: list, add and remove them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headrace.errors import PinInvalidError
from headrace.maintain.pins import Pin, add_pin, find_pins, load_pins, remove_pins
from headrace.maintain.record import load_care
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.observe.read import find_dataset
from headrace.storage.table_log import readable_versions


@dataclass(frozen=True)
class Pins:
    """The pins of a pipeline.

    Args:
        settings: The pipeline's settings.
    """

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

        Args:
            table: The table.
            version: The version; by default the newest.
            seconds: How long.

        Raises:
            TableUnknownError: There is no such table.
            PinInvalidError: The table does not have the version any more.
        """
        name = self._name(table)
        storage = self.settings.storage
        known = readable_versions(storage.table(name))
        chosen = known[-1] if version is None and known else version
        if chosen is None or chosen not in known:
            held = f"its versions: {known[0]} to {known[-1]}" if known else "its log has no version"
            raise PinInvalidError(
                f"{name.short} has no version {chosen}",
                facts=(held,),
                remedies=("choose one of them",),
                params={"table": str(name), "version": chosen},
            )
        # The files of a version that is pinned already were not deleted.
        is_kept = any(one.version == chosen for one in load_pins(storage, name))
        pin = Pin(table=name, version=chosen, until=datetime.now(UTC) + timedelta(seconds=seconds))
        # A vacuum writes what it deletes, and reads the pins then: one of the two sees the other.
        add_pin(storage, pin)
        oldest = int(load_care(storage, name).get("vacuumed", {}).get("readable_from", 0))
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

    def _name(self, table: str) -> TableName:
        return find_dataset(table, self.settings)
