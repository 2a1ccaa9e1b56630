"""Names of tables, and where a pipeline keeps what it knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class TableName:
    """A dataset's name within its pipeline: always a schema and a name."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @classmethod
    def parse(cls, text: str, default_schema: str) -> TableName:
        """Read a one-, two- or three-part name; the catalog of three parts is dropped."""
        parts = [part.strip("`") for part in text.split(".")]
        if len(parts) == 1:
            return cls(default_schema, parts[0])
        return cls(parts[-2], parts[-1])


@dataclass(frozen=True)
class Storage:
    """The layout of a storage root; it describes itself, so no metastore is needed."""

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
        """The folder that holds the flow's generations, each a checkpoint of its own."""
        return self.root / "checkpoints" / str(dataset) / flow

    def checkpoint(self, dataset: TableName, flow: str, generation: int) -> Path:
        return self.flow_checkpoints(dataset, flow) / f"{generation:04d}"

    def ledger(self, dataset: TableName, flow: str) -> Path:
        return self.root / "ledger" / str(dataset) / flow

    def lease(self, dataset: TableName, flow: str) -> Path:
        return self.leases / f"{dataset}.{flow}.json"
