"""The layout of a storage root, as the proof knows it: it shares no code with what wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.model.names import TableName


@dataclass(frozen=True)
class Storage:
    """A storage root on a local disk."""

    root: Path

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    def table(self, dataset: TableName) -> Path:
        return self.tables / dataset.schema / dataset.name

    def flow_checkpoints(self, dataset: TableName, flow: str) -> Path:
        """The folder that holds the flow's generations, each a checkpoint of its own."""
        return self.root / "checkpoints" / str(dataset) / flow

    def ledger(self, dataset: TableName, flow: str) -> Path:
        return self.root / "ledger" / str(dataset) / flow
