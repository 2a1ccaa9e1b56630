"""Names of tables and columns, and the columns and operations of change records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

SEQUENCE: Final = "_sequence"
"""The column of the table with the sequence of each row: ``value``, and the place of its record in the source
(``partition``, ``source``, ``position``)."""

COLUMN_SEQUENCES: Final = "_sequences"
"""The column with the sequence of each column that keeps its value where a record has NULL
(``ignore_null_updates``); NULL where it is that of the row."""

START: Final = "__START_AT"
END: Final = "__END_AT"
"""The columns of a table with histories (SCD type 2): the sequence with which a row begins, and that of the
next row or of the delete; NULL for the current row."""

KEPT_PROPERTY: Final = "pipelines.cdc.tombstoneGCThresholdInSeconds"
"""The table property with the time for which tombstones and hidden events are kept, in seconds."""

FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns of a change feed that the table does not have."""

OPERATION: Final = "_cdc_operation"
"""The column of a change record with its operation; the table does not have this column."""

DuplicateKeys = Literal["fail", "replace"]
"""What a flow does with a record whose key has several rows in the table."""

UPSERT: Final = "upsert"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"


@dataclass(frozen=True, kw_only=True)
class ChosenColumns:
    included: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        return self.included or self.excluded

    def of(self, columns: Iterable[str]) -> list[str]:
        left_out = {name.casefold() for name in self.excluded}
        wanted = None if self.included is None else {name.casefold() for name in self.included}
        return [
            name
            for name in columns
            if name.casefold() not in left_out and (wanted is None or name.casefold() in wanted)
        ]

    def text(self, verb: str) -> str:
        """``, <verb> a, b``, ``, <verb> all but a, b``, or nothing for all columns."""
        if self.included is not None:
            return f", {verb} {', '.join(self.included)}"
        return f", {verb} all but {', '.join(self.excluded)}" if self.excluded else ""


ALL_COLUMNS: Final = ChosenColumns()


SPARK_CATALOG = "spark_catalog"  # the name of Spark's own catalog, which all sessions have


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
        return self.within("default")

    def within(self, schema: str) -> str:
        """The name without its schema, if that is the default schema of the reader."""
        return self.name if self.schema == schema else str(self)

    @classmethod
    def parse(cls, text: str, default_schema: str, catalog: str | None = None) -> TableName:
        """Read a one-, two- or three-part name, as `of_parts` does."""
        return cls.of_parts([part.strip("`") for part in text.split(".")], default_schema, catalog)

    @classmethod
    def of_parts(cls, parts: Sequence[str], default_schema: str, catalog: str | None = None) -> TableName:
        """The dataset of a name with one, two or three parts. A catalog that is not the pipeline's becomes a
        part of the schema: ``silver.sales.orders`` is the table ``silver__sales.orders``."""
        if len(parts) == 1:
            return cls(default_schema, parts[0])
        if len(parts) == 2 or is_own_catalog(parts[0], catalog):
            return cls(parts[-2], parts[-1])
        return cls("__".join(parts[:-1]), parts[-1])


def is_own_catalog(name: str, catalog: str | None) -> bool:
    """Whether a catalog is the pipeline's, or that of the session."""
    return name.casefold() in (SPARK_CATALOG, (catalog or SPARK_CATALOG).casefold())


def quoted_column(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def quoted_path(path: str) -> str:
    """The dotted path of a column or a field for Spark's parser."""
    return ".".join(map(quoted_column, path.split(".")))


@dataclass(frozen=True)
class NamesInUse:
    """The catalog and the schema that complete names with one or two parts."""

    catalog: str | None = None  # the catalog that `USE CATALOG` has set; `None` for the pipeline's catalog
    schema: str | None = None  # the schema that ``USE SCHEMA`` has set; ``None`` for the pipeline's schema

    def qualified(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the parts of a name, completed with the schema and the catalog in use."""
        if len(parts) == 1 and self.schema is not None:
            parts = (self.schema, *parts)
        return (self.catalog, *parts) if self.catalog is not None and len(parts) == 2 else parts

    def used(self, catalog: str | None, schema: str | None, own_catalog: str | None) -> NamesInUse:
        """Returns the catalog and the schema in use after a ``USE`` statement. `catalog`: the catalog, if the
        statement names one. Its default schema is then used, unless the statement names a schema."""
        if catalog is None:
            return NamesInUse(self.catalog, schema or self.schema)
        if is_own_catalog(catalog, own_catalog):
            return NamesInUse(None, schema)
        return NamesInUse(catalog, schema or "default")


_names: ContextVar[NamesInUse | None] = ContextVar("headrace_names_in_use", default=None)


def names_in_use() -> NamesInUse:
    """The catalog and the schema in use at this line of the file that is being loaded."""
    return _names.get() or NamesInUse()


@contextmanager
def separate_names() -> Iterator[None]:
    """Load a file in the block: earlier ``USE`` statements do not apply to it, nor its own to later files."""
    token = _names.set(NamesInUse())
    try:
        yield
    finally:
        _names.reset(token)


def use_names(catalog: str | None, schema: str | None, own_catalog: str | None) -> None:
    """Set the catalog and the schema for the rest of the file; see `NamesInUse.used`."""
    _names.set(names_in_use().used(catalog, schema, own_catalog))
