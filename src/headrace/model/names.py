"""Names of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class TableName:
    """A dataset's name within its pipeline: always a schema and a name."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def short(self) -> str:
        """The name in messages: without the schema `default`."""
        return self.name if self.schema == "default" else str(self)

    @classmethod
    def parse(cls, text: str, default_schema: str) -> TableName:
        """Read a one-, two- or three-part name; the catalog of three parts is dropped."""
        parts = [part.strip("`") for part in text.split(".")]
        if len(parts) == 1:
            return cls(default_schema, parts[0])
        return cls(parts[-2], parts[-1])
