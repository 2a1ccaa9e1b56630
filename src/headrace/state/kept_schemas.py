"""Schemas that were inferred from files once. They stay the same, whatever later files contain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.state.schema_records import FORMAT, read_schema_file, refuse_unreadable
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class SchemaKey:
    """The files that a schema was inferred from."""

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
    """Return the schema that a run has inferred for these files, or ``None``."""
    path = key.file(folder)
    with refuse_unreadable(
        path, f"the inferred schema of {key.path}", "the next run infers the schema again"
    ):
        try:
            schema: Mapping[str, Any] = read_schema_file(path)["schema"]
        except FileNotFoundError:
            return None
        return schema


def keep_schema(folder: Location, key: SchemaKey, schema: Mapping[str, Any]) -> None:
    """Keep an inferred schema, unless there is one already."""
    record = {
        "headrace": FORMAT,
        "format": key.format,
        "path": key.path,
        "options": dict(key.options),
        "inferred": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema": schema,
    }
    key.file(folder).create_json(record)
