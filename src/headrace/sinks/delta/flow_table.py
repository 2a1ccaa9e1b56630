"""A Delta table that flows feed batch by batch: what is the same however a batch is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.errors import CheckpointBehindTableError, TableBehindCheckpointError
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.commit import commit_generation
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.table import TableState, no_log, read_state
from headrace.sinks.delta.transaction import held_batch, start_transaction
from headrace.sinks.target import BatchStamp, Guarantee, OpenedGeneration
from headrace.state.facts import FENCED
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FlowTable:
    """A Delta table that flows feed."""

    spark: SparkSession  # A session to read and change the table's metadata with
    path: Location
    maintenance: Maintenance | None = None  # maintains the files and the log of the table
    guarantee: ClassVar[Guarantee] = "exactly once"

    @property
    def location(self) -> str:
        return str(self.path)

    def state(self) -> TableState:
        return read_state(self.spark, self.path)

    def open_generation(self, opened: OpenedGeneration) -> int:
        return commit_generation(self.spark, self.path, opened)

    def start(self, session: SparkSession, stamp: BatchStamp) -> Any | None:
        """Start the transaction of a batch; ``None`` if the table holds the batch.

        Raises:
            CheckpointBehindTableError: The table holds a later batch of this checkpoint.
            TableBehindCheckpointError: The table lacks the batch before this one.
        """
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        held = held_batch(transaction, stamp.checkpoint, self.path)
        if held < 0 and transaction.readVersion() < 0:
            raise no_log(self.path)
        if held == stamp.batch:
            return None
        _refuse_gap(stamp, held, self.location)
        return transaction

    def committed(self, version: int) -> None:
        """Compact the table if that is due."""
        if self.maintenance is not None:
            self.maintenance.offer(self.path, version, beside=self.compacts_beside)

    @property
    def compacts_beside(self) -> bool:
        """Whether a compaction can run while the flow goes on."""
        return False


def _refuse_gap(stamp: BatchStamp, held: int, table: str) -> None:
    if held > stamp.batch:
        fenced = held == FENCED
        raise CheckpointBehindTableError(
            f"flow {stamp.flow}: batch {stamp.batch} is older than the last batch of the table",
            facts=(
                f"checkpoint {stamp.checkpoint} "
                + (
                    "was replaced by a newer checkpoint"
                    if fenced
                    else f"has committed batch {held} to {table}"
                ),
                "the batch was not written",
            ),
            remedies=(f"continue from the table:   headrace reset {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )
    if held < stamp.batch - 1 and stamp.replay is None:
        raise TableBehindCheckpointError(
            f"flow {stamp.flow}: the table lacks the batches between {held} and {stamp.batch}",
            facts=(f"table {table}, checkpoint {stamp.checkpoint}", "the batch was not written"),
            remedies=(f"continue from the table:   headrace reset {stamp.flow}",),
            params={"flow": stamp.flow, "checkpoint": stamp.checkpoint, "batch": stamp.batch, "held": held},
        )
