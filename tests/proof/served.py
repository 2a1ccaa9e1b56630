"""A table that follows files by AUTO CDC, and sinks that follow the table or the files."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from cdc_oracle import Change, current_rows, growing_changes
from headrace.run.failpoints import Point
from landing import Site

CURRENT = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, value STRING")

hr.create_streaming_table("current")
hr.create_auto_cdc_flow("current", "changes", ["id"], "at", apply_as_deletes="op = 'delete'",
                        column_list=["id", "value"])

@hr.append_flow(target="served", name="served")
def serve():
    return hr.read_changes("current", images="all")
"""
"""The table `current`, and the flow of the sink `served`, which a test declares."""
POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")


class Served(ABC):
    """The pipeline, and what has been put into its files."""

    def __init__(self, root: Path) -> None:
        self.site = Site(root)
        self.put: list[Change] = []
        self._random = random.Random(11)

    def produce(self, number: int = 12) -> None:
        """A file with inserts, updates and deletes of few keys, out of their order."""
        new = growing_changes(self._random, len(self.put), number)
        lines = ({"id": one.key, "at": one.sequence, "op": one.operation, "value": one.value} for one in new)
        self.site.put(f"{len(self.put):05d}.json", *lines)
        self.put += new

    def step(self) -> None:
        self.produce()
        self.site.run_well()
        self.check()

    def check(self) -> None:
        assert self.rows() == current_rows(self.put)

    @abstractmethod
    def rows(self) -> dict[int, Any]:
        """The values that a reader of the sink `served` finds, by their keys."""
