"""The catalog and the schema that ``USE`` has set for the rest of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from headrace.model.names import is_own_catalog


@dataclass(frozen=True)
class NamesInUse:
    """The catalog and the schema that complete names with one or two parts.

    Args:
        catalog: The catalog that ``USE CATALOG`` has set; ``None`` for the pipeline's catalog.
    """

    catalog: str | None = None
    schema: str | None = None  # the schema that ``USE SCHEMA`` has set; ``None`` for the pipeline's schema

    def qualified(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the parts of a name, completed with the schema and the catalog in use."""
        if len(parts) == 1 and self.schema is not None:
            parts = (self.schema, *parts)
        return (self.catalog, *parts) if self.catalog is not None and len(parts) == 2 else parts

    def used(self, catalog: str | None, schema: str | None, own_catalog: str | None) -> NamesInUse:
        """Returns the catalog and the schema in use after a ``USE`` statement.

        Args:
            catalog: The catalog, if the statement names one. Its default schema is then used, unless the
                statement names a schema.
        """
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
