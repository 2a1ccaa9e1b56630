"""The layout of a storage root on this disk, for tests that look at its files or break them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.model.names import TableName


@dataclass(frozen=True)
class Disk:
    """A storage root as plain paths, independent of the code that the tests judge."""

    root: Path

    @property
    def tables(self) -> Path:
        return self.root / "tables"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def plans(self) -> Path:
        return self.root / "plans"

    @property
    def schemas(self) -> Path:
        return self.root / "schemas"

    def table(self, dataset: TableName) -> Path:
        return self.tables / dataset.schema / dataset.name

    def flow_checkpoints(self, dataset: TableName, flow: str) -> Path:
        return self.root / "checkpoints" / str(dataset) / flow

    def checkpoint(self, dataset: TableName, flow: str, generation: int) -> Path:
        return self.flow_checkpoints(dataset, flow) / f"{generation:04d}"

    def ledger(self, dataset: TableName, flow: str) -> Path:
        return self.root / "ledger" / str(dataset) / flow

    def lease(self, dataset: TableName, flow: str) -> Path:
        return self.leases / f"{dataset}.{flow}.json"
