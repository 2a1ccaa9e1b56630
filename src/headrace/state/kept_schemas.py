"""Schemas that were inferred from files once. They stay the same, whatever later files contain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import KeptSchemaUnreadableError, StorageNewerError
from headrace.storage.location import Location

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SchemaKey:
    """The files that a schema was inferred from.

    Args:
        format: The files' format.
        path: Their folder.
        options: The options that decide how they are read.
    """

    format: str
    path: str
    options: Mapping[str, str]

    def file(self, folder: Location) -> Location:
        """Return the file of the schema: the name of the files' folder, and a hash of the whole key."""
        key = json.dumps([self.format, self.path, sorted(self.options.items())])
        name = self.path.rstrip("/").rpartition("/")[2]
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40]
        return folder / f"{name or 'files'}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def load_schema(folder: Location, key: SchemaKey) -> Mapping[str, Any] | None:
    """Return the schema that a run has inferred for these files, or ``None``.

    Raises:
        KeptSchemaUnreadableError: The schema cannot be read.
        StorageNewerError: A newer version of Headrace wrote the schema.
    """
    path = key.file(folder)
    try:
        value = path.read_json()
        if value["headrace"] > FORMAT:
            raise StorageNewerError(
                f"the schema {path} was written by a newer version of Headrace",
                params={"path": str(path), "format": value["headrace"]},
            )
        schema: Mapping[str, Any] = value["schema"]
        return schema
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeptSchemaUnreadableError(
            f"the inferred schema of {key.path} cannot be read from {path}",
            facts=(f"{type(error).__name__}: {error}",),
            remedies=("restore the file, or remove it: the next run infers the schema again",),
            params={"path": str(path)},
        ) from error


def keep_schema(folder: Location, key: SchemaKey, schema: Mapping[str, Any]) -> None:
    """Keep an inferred schema, unless there is one already.

    Raises:
        StorageUnwritableError: The storage cannot be written.
    """
    record = {
        "headrace": FORMAT,
        "format": key.format,
        "path": key.path,
        "options": dict(key.options),
        "inferred": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema": schema,
    }
    key.file(folder).create_json(record)
