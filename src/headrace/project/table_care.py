"""Compacts and vacuums tables of a pipeline where that is due."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError
from headrace.maintain.readers import find_lagging, find_readers
from headrace.maintain.table_files import TableFiles, measure_files
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.sizes import size_text
from headrace.project.engine import Engine
from headrace.project.operations import logged_operation, new_update
from headrace.sinks.delta.compaction import compact_files, vacuum_files
from headrace.state.lease import held_leases
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

CareStep = Literal["optimize", "vacuum"]


@dataclass(frozen=True, kw_only=True)
class TableCare:
    """What was done to one table.

    Args:
        table: The table.
        before: Its files before; ``None`` if they could not be read.
        after: Its files after.
        steps: What was done.
        warning: Why something that was due was not done.
    """

    table: TableName
    before: TableFiles | None = None
    after: TableFiles | None = None
    steps: tuple[CareStep, ...] = ()
    warning: str | None = None

    def lines(self) -> Iterator[str]:
        """What was done, with files and bytes before and after: one line for each fact."""
        if self.steps and self.before and self.after:
            done = " and ".join({"optimize": "compacted", "vacuum": "vacuumed"}[one] for one in self.steps)
            yield f"{self.table.short}  {done}: {_change(self.before, self.after)}"
        if self.warning is not None:
            yield f"{self.table.short}  {self.warning}"

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "table": str(self.table),
            "steps": list(self.steps),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
            "warning": self.warning,
        }


@dataclass(frozen=True, kw_only=True)
class TableKeeper:
    """Takes care of tables. A failure never raises: it becomes a warning.

    Args:
        settings: The settings of the pipeline.
        engine: Starts Spark if something is due.
        steps: What may be done: ``optimize``, ``vacuum``.
    """

    settings: ProjectSettings
    engine: Engine
    steps: Sequence[str]

    def keep(self, names: Sequence[TableName]) -> tuple[TableCare, ...]:
        """Compact and vacuum tables where that is due.

        Args:
            names: The tables; those that do not exist are left out.
        """
        storage = self.settings.storage
        return tuple(self._keep(name) for name in names if is_table(storage.table(name)))

    def _keep(self, name: TableName) -> TableCare:
        care = TableCare(table=name)
        path = self.settings.storage.table(name)
        try:
            files = measure_files(path)
            care = replace(care, before=files, after=files)
            if self._due(files):
                with held_leases(self.settings.storage, [name]):
                    care = self._work(care, path)
        except HeadraceError as error:
            care = replace(care, warning=f"not maintained: {error.summary}")
        except Exception as error:
            _LOG.info("maintenance of %s failed", name, exc_info=True)
            reason = str(error).strip().partition("\n")[0]
            care = replace(care, warning=f"not maintained: {type(error).__name__}: {reason}")
        return care

    def _due(self, files: TableFiles) -> bool:
        return ("optimize" in self.steps and files.needs_compaction) or (
            "vacuum" in self.steps and files.needs_vacuum
        )

    def _work(self, care: TableCare, path: Location) -> TableCare:
        """Do what is due, under the leases of the table's flows."""
        session = self.engine.session()
        with logged_operation(self.settings, new_update(), "MAINTENANCE", [care.table]) as outcome:
            if care.before and care.before.needs_compaction and "optimize" in self.steps:
                compact_files(session, path)
                care = replace(care, after=measure_files(path), steps=("optimize",))
            if care.after and care.after.needs_vacuum and "vacuum" in self.steps:
                care = self._vacuum(session, care, path, care.after)
            outcome.update({key: value for key, value in care.to_json().items() if key != "table"})
        return care

    def _vacuum(self, session: SparkSession, care: TableCare, path: Location, files: TableFiles) -> TableCare:
        table_id = self.engine.read_table(path).table_id
        readers = find_readers(self.settings.storage, table_id)
        if lagging := find_lagging(readers, path, files.kept_since.timestamp() * 1000):
            reason = f"not vacuumed: flow {lagging.flow} has not read all versions before "
            return replace(care, warning=f"{reason}{files.kept_since:%Y-%m-%d %H:%M} UTC")
        vacuum_files(session, path)
        return replace(care, after=measure_files(path), steps=(*care.steps, "vacuum"))


def _change(before: TableFiles, after: TableFiles) -> str:
    pairs = [
        ("", (before.files, before.size_bytes), (after.files, after.size_bytes)),
        (
            "; in the storage ",
            (before.stored_files, before.stored_bytes),
            (after.stored_files, after.stored_bytes),
        ),
    ]
    return "".join(f"{where}{_files(*one)} -> {_files(*two)}" for where, one, two in pairs)


def _files(number: int, size: int) -> str:
    return f"{number:,} {'file' if number == 1 else 'files'} ({size_text(size)})"
