"""Schemas that the storage keeps.

Those that were inferred from files once stay the same, whatever later files contain. Those that evolve have
versions: each has a number, and begins with one batch of one flow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.errors import INSTALL_NEWER, HeadraceError, KeptSchemaUnreadableError, StorageNewerError
from headrace.storage.location import Location

_FORMAT = 1
"""The newest format of these files that this version of Headrace knows."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _reading(path: Location, schema: str, consequence: str) -> Iterator[Mapping[str, Any]]:
    """The content of a schema's file. If it cannot be used, the error says what follows its removal."""
    try:
        value: Mapping[str, Any] = path.read_json()
        if value["headrace"] > _FORMAT:
            raise StorageNewerError(
                f"the schema {path} was written by a newer version of Headrace",
                remedies=(INSTALL_NEWER,),
                params={"path": str(path), "format": value["headrace"]},
            )
        yield value
    except HeadraceError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeptSchemaUnreadableError(
            f"{schema} cannot be read from {path}",
            facts=(f"{type(error).__name__}: {error}",),
            remedies=(
                "restore the file from a backup",
                f"or remove it; {consequence}:   {path.remove_command}",
            ),
            params={"path": str(path)},
        ) from error


@dataclass(frozen=True, kw_only=True)
class SchemaKey:
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
    """The schema that a run has inferred for these files, or ``None``."""
    path, what = key.file(folder), f"the inferred schema of {key.path}"
    try:
        with _reading(path, what, "the next run infers the schema again") as value:
            schema: Mapping[str, Any] = value["schema"]
            return schema
    except KeptSchemaUnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def keep_schema(folder: Location, key: SchemaKey, schema: Mapping[str, Any]) -> None:
    """Keep an inferred schema, unless there is one already."""
    record = {
        "headrace": _FORMAT,
        "format": key.format,
        "path": key.path,
        "options": dict(key.options),
        "inferred": _now(),
        "schema": schema,
    }
    key.file(folder).create_json(record)


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    number: int
    schema: Mapping[str, Any]  # the schema, as ``StructType.jsonValue()`` gives it
    added: tuple[str, ...]  # the dotted names of the fields that came with it
    flow: str  # the flow whose batch had records with these fields
    checkpoint: str
    batch: int
    example: Mapping[str, Any] = field(default_factory=dict)  # the coordinates of a record with these fields
    at: str = field(default_factory=_now)


_TRIED: ContextVar[tuple[str, SchemaVersion] | None] = ContextVar("tried", default=None)


@contextmanager
def tried(source: str, version: SchemaVersion) -> Iterator[None]:
    """Let a query that is evaluated in this thread read a source with a version that is not kept."""
    token = _TRIED.set((source, version))
    try:
        yield
    finally:
        _TRIED.reset(token)


@dataclass(frozen=True)
class SchemaVersions:
    folder: Location
    source: str  # the source, such as ``topic orders``; all its reads share the versions

    @property
    def path(self) -> Location:
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.source)[:60]
        return self.folder / f"{name}-{hashlib.sha256(self.source.encode()).hexdigest()[:12]}"

    def newest(self) -> SchemaVersion | None:
        """The newest version; ``None`` while the declared schema is the only one."""
        if (one := _TRIED.get()) is not None and one[0] == self.source:
            return one[1]
        files = sorted(name for name in self.path.list_files() if name.endswith(".json"))
        return self._load(self.path / files[-1]) if files else None

    def add(self, version: SchemaVersion) -> bool:
        """Keep a version; false if another flow has added one with its number."""
        record = {"headrace": _FORMAT, "source": self.source, **asdict(version)}
        return (self.path / f"{version.number:06d}.json").create_json(record)

    def _load(self, path: Location) -> SchemaVersion:
        again = "the next new field adds the version again"
        with _reading(path, f"the schema of {self.source}", again) as value:
            known = {name: value[name] for name in SchemaVersion.__dataclass_fields__}
        return SchemaVersion(**{**known, "added": tuple(known["added"])})
