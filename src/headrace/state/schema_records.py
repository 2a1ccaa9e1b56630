"""How the JSON file of a schema is read, and refused where that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.errors import KeptSchemaUnreadableError, StorageNewerError
from headrace.storage.location import Location

FORMAT = 1
"""The newest format of these files that this version of Headrace knows."""


def read_schema_file(path: Location) -> Mapping[str, Any]:
    """Return the content of a schema's file."""
    value: Mapping[str, Any] = path.read_json()
    if value["headrace"] > FORMAT:
        raise StorageNewerError(
            f"the schema {path} was written by a newer version of Headrace",
            params={"path": str(path), "format": value["headrace"]},
        )
    return value


@contextmanager
def refuse_unreadable(path: Location, schema: str, consequence: str) -> Iterator[None]:
    """Refuses a file whose content cannot be used.

    Args:
        consequence: What happens if the user removes the file.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeptSchemaUnreadableError(
            f"{schema} cannot be read from {path}",
            facts=(f"{type(error).__name__}: {error}",),
            remedies=(f"restore the file, or remove it: {consequence}",),
            params={"path": str(path)},
        ) from error
