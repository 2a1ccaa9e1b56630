"""A Delta table that flows feed batch by batch: what is the same however a batch is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.commit import commit_generation, fence_replay
from headrace.sinks.delta.maintenance import Maintenance
from headrace.sinks.delta.table import no_log
from headrace.sinks.delta.transaction import held_batch, start_transaction
from headrace.sinks.protocol import is_held
from headrace.sinks.target import BatchStamp, OpenedGeneration
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FlowTable:
    """A Delta table that flows feed."""

    spark: SparkSession  # A session to read and change the table's metadata with
    path: Location
    maintenance: Maintenance | None = None  # maintains the files and the log of the table

    @property
    def location(self) -> str:
        return str(self.path)

    def open_generation(self, opened: OpenedGeneration) -> int:
        return commit_generation(self.spark, self.path, opened)

    def start(self, session: SparkSession, stamp: BatchStamp) -> Any | None:
        """Start the transaction of a batch; ``None`` if the table holds the batch."""
        transaction = start_transaction(session, self.path, stamp.checkpoint)
        held = held_batch(transaction, stamp.checkpoint, self.path)
        if held < 0 and transaction.readVersion() < 0:
            raise no_log(self.path)
        return None if is_held(stamp, held, self.location) else transaction

    def fence_replay(self, session: SparkSession, stamp: BatchStamp) -> bool:
        return fence_replay(session, self.path, stamp)

    def committed(self, version: int) -> None:
        if self.maintenance is not None:
            self.maintenance.offer(self.path, version, concurrently=self.compacts_concurrently)

    @property
    def compacts_concurrently(self) -> bool:
        """Whether a compaction can run while the flow goes on."""
        return False
