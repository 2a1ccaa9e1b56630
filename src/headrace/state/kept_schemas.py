"""Schemas that were inferred once, and hold from then on, whatever later files look like."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import KeptSchemaUnreadableError, StorageNewerError
from headrace.state.files import write_json

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SchemaKey:
    """What a schema was inferred from.

    Args:
        format: The files' format.
        path: Their folder.
        options: What decides how they are read.
    """

    format: str
    path: str
    options: Mapping[str, str]

    def file(self, folder: Path) -> Path:
        """Where the schema is kept: named for the folder, and told apart by everything else."""
        said = json.dumps([self.format, self.path, sorted(self.options.items())])
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(self.path).name)[:40]
        return folder / f"{name or 'files'}-{hashlib.sha256(said.encode()).hexdigest()[:12]}.json"


def load_schema(folder: Path, key: SchemaKey) -> Mapping[str, Any] | None:
    """The schema that is kept for these files; ``None`` before a run has inferred one.

    Raises:
        KeptSchemaUnreadableError: It cannot be read.
        StorageNewerError: A newer version of Headrace wrote it.
    """
    path = key.file(folder)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
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
            f"the columns that were inferred for {key.path} cannot be read from {path}",
            facts=(f"{type(error).__name__}: {error}",),
            remedies=("put the file back, or remove it: the next run infers the columns anew",),
            params={"path": str(path)},
        ) from error


def keep_schema(folder: Path, key: SchemaKey, schema: Mapping[str, Any]) -> None:
    """Keep a schema that has just been inferred; one that is there already stays.

    Raises:
        StorageUnwritableError: The storage cannot be written.
    """
    path = key.file(folder)
    if path.exists():
        return
    record = {
        "headrace": FORMAT,
        "format": key.format,
        "path": key.path,
        "options": dict(key.options),
        "inferred": datetime.now(UTC).isoformat(timespec="seconds"),
        "schema": schema,
    }
    write_json(path, record)
