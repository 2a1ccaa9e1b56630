"""The quarantine table of a dataset: the rejected rows of each batch, committed before the dataset's own.

A batch is keyed by its checkpoint and number. Until the dataset holds it, its rejected rows are pending, and
a replay of the batch replaces them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.runtime.lazy_pyspark import DataFrame, SparkSession, T
from headrace.sinks.delta.commit import commit_quarantine, fence_rows, replace_quarantine, replace_rejected
from headrace.sinks.delta.table import delta_log, forget_snapshot, no_log
from headrace.sinks.delta.transaction import held_batch, run_until_held, start_transaction, write_files
from headrace.sinks.protocol import fenced
from headrace.sinks.target import BatchStamp, RefreshStamp
from headrace.state.facts import FENCED
from headrace.storage.location import Location
from headrace.storage.table_log import is_table

Check = Callable[[], object]
"""Raises `BatchFencedError` if the target has replaced the checkpoint of a batch."""

# Flows of one dataset share its quarantine, and Delta fails where two sessions create a table at once.
_CREATION = threading.Lock()
_WIDE: set[str] = set()
"""The tables of this process that have all fields."""


@dataclass(frozen=True, kw_only=True)
class QuarantineTable:
    """A quarantine table; it is created with its first rejected rows."""

    path: Location
    columns: str
    maps_names: bool = False  # whether its columns may have names with any character
    widens: bool = False  # whether a table of an earlier version may lack fields of structs

    def exists(self, session: SparkSession) -> bool:
        """Whether any batch has rejected rows. A table that Delta knows, and that is not there, is an error:
        the disk may be unmounted, and would hide a table that is created now when it is mounted again."""
        if is_table(self.path):
            return True
        if delta_log(session, self.path).unsafeVolatileSnapshot().version() >= 0:
            raise no_log(self.path)
        return False

    def forget_missing(self, session: SparkSession) -> None:
        """Allow a missing table to be created again: its rows are computed again, or were removed with the
        dataset."""
        if not is_table(self.path):
            forget_snapshot(session, self.path)

    def write(self, session: SparkSession, rows: DataFrame, stamp: BatchStamp, check_first: Check) -> int:
        """Write and commit the rejected rows of a batch, in place of those of an earlier attempt. Returns how
        many rows the batch has in the table now.

        `check_first`: see `check`.
        """
        self._create(session)
        transaction, held = self.check(session, stamp, check_first)
        if held >= stamp.batch:
            return replace_quarantine(rows, self.path, stamp)
        files = write_files(transaction, rows)
        commit_quarantine(session, transaction, files, stamp)
        return files.rows

    def check(self, session: SparkSession, stamp: BatchStamp, check_first: Check) -> tuple[Any, int]:
        """Start a transaction, and refuse a replaced checkpoint. Returns the checkpoint's last batch, too.

        `check_first` is called before a checkpoint's first commit here: a process that replaces a checkpoint
        fences it in this table, unless the table does not exist yet.
        """
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        held = held_batch(transaction, stamp.checkpoint, self.path)
        if held == FENCED:
            raise fenced(stamp, held)
        if held < 0:
            check_first()
        return transaction, held

    def replace(self, session: SparkSession, rows: DataFrame, stamp: RefreshStamp) -> None:
        self._create(session)
        replace_rejected(rows, self.path, stamp)

    def forget(self, session: SparkSession, checkpoint: str, after: int) -> None:
        """Remove the rejected rows of batches that the dataset will never hold."""
        if self.exists(session):
            statement = f"DELETE FROM {self._name} WHERE checkpoint = '{checkpoint}' AND batch > {after}"
            run_until_held(session, self.path, statement)

    def fence(self, session: SparkSession, checkpoint: str, after: int) -> None:
        """Remove the rows of a replaced checkpoint after a batch, and let it add no rows any more."""
        if self.exists(session):
            fence_rows(session, self.path, checkpoint, after)

    def rename(self, session: SparkSession, checkpoint: str, after: int, flow: str) -> None:
        """Give the rows of a checkpoint after a batch another flow."""
        if self.exists(session):
            rows = f"checkpoint = '{checkpoint}' AND batch > {after} AND flow <> '{flow}'"
            run_until_held(session, self.path, f"UPDATE {self._name} SET flow = '{flow}' WHERE {rows}")

    def clear(self, session: SparkSession) -> None:
        if self.exists(session):
            run_until_held(session, self.path, f"DELETE FROM {self._name}")

    def drop(self, session: SparkSession) -> None:
        """Delete the table; its next rows may have other columns."""
        self.path.delete_folder()
        forget_snapshot(session, self.path)

    def holds(self, session: SparkSession, stamp: BatchStamp) -> bool:
        """Whether an earlier attempt has committed rejected rows of a batch."""
        if not self.exists(session):
            return False
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        return held_batch(transaction, stamp.checkpoint, self.path) >= stamp.batch

    @property
    def _name(self) -> str:
        return "delta.`" + str(self.path).replace("`", "``") + "`"

    def _create(self, session: SparkSession) -> None:
        mapping = ", delta.columnMapping.mode = 'name'" if self.maps_names else ""
        with _CREATION:
            if self.exists(session):
                self._widen(session)
            else:
                session.sql(
                    f"CREATE TABLE {self._name} ({self.columns}) USING delta "
                    # A batch that comes again replaces its own rows, beside the commits of other flows.
                    f"PARTITIONED BY (flow) TBLPROPERTIES (delta.appendOnly = false{mapping})"
                )

    def _widen(self, session: SparkSession) -> None:
        """Add the fields of records that a table of an earlier version does not have."""
        if not self.widens or str(self.path) in _WIDE:
            return
        held = session.read.format("delta").load(str(self.path)).schema
        wanted = T.StructType.fromDDL(self.columns)
        added = [
            f"{column.name}.{one.name} {one.dataType.simpleString()}"
            for column in wanted.fields
            if isinstance(column.dataType, T.StructType) and column.name in held.fieldNames()
            for one in column.dataType.fields
            if one.name not in held[column.name].dataType.fieldNames()
        ]
        if added:
            session.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({', '.join(added)})")
        _WIDE.add(str(self.path))
