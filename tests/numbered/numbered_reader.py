"""Reads logs of numbered records for the proof; shares no code with the source."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from headrace.model.ranges import RecordCoordinates
from headrace.verify.checkpoints import Lineage
from headrace.verify.evidence import Evidence
from headrace.verify.reader import Extent, Found, SourceReader
from headrace.verify.source_range import Partition, SourceRange, Spans


class NumberedRange(SourceRange):
    """Numbers of logs."""

    coordinates = RecordCoordinates.of(log="STRING", number="BIGINT")

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, str(self.identity["file"]), str(self.identity["log"]))


class NumberedReader(SourceReader):
    """Asks the SQLite file of a log."""

    range = NumberedRange
    system = "the logs"
    holder = "the log"

    def numbers(self, lineage: Lineage, partition: Partition) -> list[int]:
        file = next(one.identity["file"] for one in lineage.last_sources)
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT number FROM records WHERE log = ?", (partition[0],))
            return sorted(number for (number,) in found)

    def extent(self, lineage: Lineage, partition: Partition, identity: str | None) -> Extent | str:
        held = self.numbers(lineage, partition)
        return Extent(0, held[-1] + 1) if held else f"the log {partition[0]} is empty"

    def find(self, evidence: Evidence, asked: Mapping[Partition, Spans]) -> Mapping[Partition, Found]:
        return {
            partition: Found(Spans.of_offsets(np.array(self._asked(evidence, partition, spans), np.int64)))
            for partition, spans in asked.items()
        }

    def _asked(self, evidence: Evidence, partition: Partition, spans: Spans) -> list[int]:
        held = self.numbers(evidence.lineages[0], partition)
        return [one for one in held if any(low <= one < high for low, high in spans.pairs())]
