"""The maintenance of the tables that an update commits to, as flows use it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from headrace.model.maintenance import TablePolicy
from headrace.sinks.delta.compaction import Compaction
from headrace.storage.location import Location


class Maintenance(Protocol):
    """Maintains the tables that an update commits to."""

    def policy(self, table: Location, properties: Mapping[str, str]) -> TablePolicy:
        """The policy of a table."""

    def watch(self, table: Location) -> None:
        """Maintain a table from now on, even before its next commit."""

    def turn(self, table: Location) -> AbstractContextManager[None]:
        """Hold off compactions that need a pause between two batches, while the block runs."""

    def offer(self, table: Location, version: int, *, concurrently: bool) -> None:
        """Take note of a commit; returns at once.

        `concurrently`: whether a compaction can run while the flow goes on.
        """

    def compacted(self, table: Location, done: Compaction | Exception) -> None:
        """Report a compaction, or why it has failed."""

    def indexing(self, table: Location, *, read: int, rows: int) -> None:
        """Report how many rows of a large table were read for the index of its keys."""

    def finish(self) -> None:
        """Do what is due, at the end of the flows."""

    def stop(self) -> None:
        """End the work at hand, and begin nothing else."""
