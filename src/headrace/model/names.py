"""Names of tables and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SPARK_CATALOG = "spark_catalog"
"""The name of Spark's own catalog, which all sessions have."""


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
    def parse(cls, text: str, default_schema: str, catalog: str | None = None) -> TableName:
        """Read a one-, two- or three-part name, as `of_parts` does."""
        return cls.of_parts([part.strip("`") for part in text.split(".")], default_schema, catalog)

    @classmethod
    def of_parts(cls, parts: Sequence[str], default_schema: str, catalog: str | None = None) -> TableName:
        """The dataset of a name with one, two or three parts.

        A catalog that is not the pipeline's becomes a part of the schema: ``silver.sales.orders`` is the
        table ``silver__sales.orders``.
        """
        if len(parts) == 1:
            return cls(default_schema, parts[0])
        if len(parts) == 2 or is_own_catalog(parts[0], catalog):
            return cls(parts[-2], parts[-1])
        return cls("__".join(parts[:-1]), parts[-1])


def is_own_catalog(name: str, catalog: str | None) -> bool:
    """Whether a catalog is the pipeline's, or that of the session."""
    return name.casefold() in (SPARK_CATALOG, (catalog or SPARK_CATALOG).casefold())


def quoted_column(name: str) -> str:
    """The name of a column for Spark's parser, with backquotes."""
    return "`" + name.replace("`", "``") + "`"


def quoted_path(path: str) -> str:
    """The dotted path of a column or a field for Spark's parser."""
    return ".".join(map(quoted_column, path.split(".")))
