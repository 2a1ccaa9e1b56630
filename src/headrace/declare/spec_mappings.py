"""The keys `tables` and `paths` of the spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.declare.spec_model import Spec
from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.mappings import PathMap, TableMap, absolute_target, is_name
from headrace.model.names import SPARK_CATALOG

_PATTERN = re.compile(r"(?:`[^`]+`|[\w-]+)(?:\.(?:`[^`]+`|[\w-]+)){0,2}(?:(?<!\.)\.\*)?")
_PATTERNS = "write a.b.c, a.b.* or a.*"
_CATALOG = re.compile(r"spark\.sql\.catalog\.(\w+)$")


def build_tables(spec: Spec, folder: Path, locations: Mapping[str, SourceLocation]) -> TableMap:
    """The tables of other systems.

    Raises:
        SpecInvalidError: A key is not a name, or a catalog is not configured.
    """
    found = map(_CATALOG.match, spec.configuration)
    catalogs = {SPARK_CATALOG, spec.catalog, *(one[1] for one in found if one)}
    targets = {}
    for name, target in spec.tables.items():
        if not _PATTERN.fullmatch(name):
            raise _invalid(f"tables.{name}", "is not a name of a table", _PATTERNS, locations)
        if is_name(target) and target.partition(".")[0] not in catalogs:
            raise _invalid(
                f"tables.{name}",
                f"is `{target}`, which is neither a path nor a catalog of `configuration`",
                f"for a folder write ./{target}",
                locations,
            )
        targets[name] = target if is_name(target) else absolute_target(target, folder)
    return TableMap(targets)


def build_paths(spec: Spec, folder: Path, locations: Mapping[str, SourceLocation]) -> PathMap:
    """The paths of other systems.

    Raises:
        SpecInvalidError: A key is not the beginning of a path.
    """
    for prefix in spec.paths:
        if not re.match(r"/[^/]|[a-zA-Z][a-zA-Z0-9+.-]*:", prefix):
            remedy = "write such as dbfs:/ or /Volumes/main"
            raise _invalid(f"paths.{prefix}", "is not the beginning of an absolute path", remedy, locations)
    return PathMap({prefix: absolute_target(target, folder) for prefix, target in spec.paths.items()})


def _invalid(
    key: str, problem: str, remedy: str, locations: Mapping[str, SourceLocation]
) -> SpecInvalidError:
    return SpecInvalidError(
        f"`{key}` {problem}",
        location=locations.get(key.partition(".")[2]),
        remedies=[remedy],
        params={"key": key},
    )
