"""The one batch of a flow whose batch query is applied once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.contracts.expectations import with_checks
from headrace.plan.stages import PlannedFlow
from headrace.run.stop import StopSignal
from headrace.sinks.target import BatchStamp
from headrace.storage.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class OnceFeed:
    """The rows of a flow's batch query."""

    planned: PlannedFlow
    marker: Location
    build: Callable[[SparkSession], DataFrame]

    def look(self, stop: StopSignal) -> bool:
        """Create the marker, and return whether it was missing."""
        return self.marker.create_json({"headrace": 1})

    @contextmanager
    def records(self, batch: DataFrame, stamp: BatchStamp, checkpoint: Location) -> Iterator[DataFrame]:
        """The rows of the query, in place of the marker."""
        yield with_checks(self.build(batch.sparkSession), self.planned.expectations)
