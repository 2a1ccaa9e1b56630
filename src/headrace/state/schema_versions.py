"""The schemas of reads that evolve: each has a number, and begins with one batch of one flow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.state.schema_records import FORMAT, read_schema_file, refuse_unreadable
from headrace.storage.location import Location


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """One schema of a read."""

    number: int
    schema: Mapping[str, Any]  # the schema, as ``StructType.jsonValue()`` gives it
    added: tuple[str, ...]  # the dotted names of the fields that came with it
    flow: str  # the flow whose batch had records with these fields
    checkpoint: str
    batch: int
    example: Mapping[str, Any] = field(default_factory=dict)  # the coordinates of a record with these fields
    at: str = field(default_factory=_now)


@dataclass(frozen=True)
class SchemaVersions:
    """The versions of the schema of what a reader reads."""

    folder: Location
    source: str  # the source, such as ``topic orders``; all its reads share the versions

    @property
    def path(self) -> Location:
        """The folder of the versions."""
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.source)[:60]
        return self.folder / f"{name}-{hashlib.sha256(self.source.encode()).hexdigest()[:12]}"

    def newest(self) -> SchemaVersion | None:
        """The newest version; ``None`` while the declared schema is the only one."""
        files = sorted(name for name in self.path.list_files() if name.endswith(".json"))
        return self._load(self.path / files[-1]) if files else None

    def add(self, version: SchemaVersion) -> bool:
        """Keep a version; false if another flow has added one with its number."""
        record = {"headrace": FORMAT, "source": self.source, **asdict(version)}
        return self._file(version.number).create_json(record)

    def _file(self, number: int) -> Location:
        return self.path / f"{number:06d}.json"

    def _load(self, path: Location) -> SchemaVersion:
        with refuse_unreadable(
            path, f"the schema of {self.source}", "the next new field adds the version again"
        ):
            value = read_schema_file(path)
            known = {name: value[name] for name in SchemaVersion.__dataclass_fields__}
            return SchemaVersion(**{**known, "added": tuple(value["added"])})
