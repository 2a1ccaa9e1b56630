"""Paths of other systems in a pipeline's code, as `paths` in the spec maps them."""

from __future__ import annotations

import os
import re

from headrace.errors import PathUnmappedError, SourceLocation
from headrace.model.folders import FileFolder
from headrace.model.mappings import ENTRY_MISSING, FOREIGN_PATH
from headrace.model.project import ProjectSettings
from headrace.storage.locate import locate

_LOCAL = re.compile(r"/|dbfs:")
"""Paths that only a mapping can make readable; Spark may have a connector for the others."""


def mapped_path(path: str, settings: ProjectSettings, location: SourceLocation | None = None) -> str:
    """The path that Spark gets for a path in a pipeline's code.

    An entry of `paths` replaces it. Else a relative path starts at the folder of the pipeline's data, and a
    URI stays as it is.
    """
    found = settings.paths.find(path)
    if found is not None:
        return found.path
    foreign = FOREIGN_PATH.match(path)
    if foreign and _LOCAL.match(path) and not _exists(path, settings):
        prefix = foreign[0]
        raise PathUnmappedError(
            f"the path {path} is of another system, and no entry of `paths` has it",
            location=location,
            remedies=[f"{ENTRY_MISSING}{settings.spec_to_edit}:   paths: {{{_entry(prefix)}}}"],
            params={"path": path, "prefix": prefix},
        )
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        # The names of files in Spark's logs begin with the scheme of the path.
        return re.sub(r"^s3a://", "s3://", path, flags=re.IGNORECASE)
    return os.path.normpath(settings.data_folder / path)


def find_unmapped(
    error: BaseException, settings: ProjectSettings, location: SourceLocation
) -> PathUnmappedError | None:
    """The error for a missing file whose path is of another system, and in no entry of `paths`."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        try:
            mapped_path(error.filename, settings, location)
        except PathUnmappedError as unmapped:
            return unmapped
    return None


def _entry(prefix: str) -> str:
    key = f'"{prefix}"' if prefix.endswith(":") else prefix.rstrip("/")
    return f"{key}: ./{prefix.strip('/:').lower()}"


def _exists(path: str, settings: ProjectSettings) -> bool:
    mapped = any(path.startswith(target) for target in settings.paths.targets.values())
    return path.startswith("/") and (mapped or FileFolder(path=path, storage=locate(path).files).exists())
