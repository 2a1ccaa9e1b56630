"""Errors about names and paths of other systems, with all the entries that the spec lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.declare.loader import find_files
from headrace.declare.outside_names import OutsideName, entry_lines, find_outside
from headrace.errors import HeadraceError, PathUnmappedError, PlanFailedError, TableNotFoundError
from headrace.model.mappings import ENTRY_MISSING
from headrace.model.names import is_own_catalog
from headrace.model.project import ProjectSettings


@contextmanager
def listing_entries(settings: ProjectSettings) -> Iterator[None]:
    """Add to an error about a missing entry all the entries that the pipeline's files need."""
    try:
        yield
    except HeadraceError as error:
        raise _with_entries(error, settings) from error.__cause__


def _with_entries(error: HeadraceError, settings: ProjectSettings) -> HeadraceError:
    errors = error.errors if isinstance(error, PlanFailedError) else (error,)
    missing = tuple(one for each in errors for one in _missing(each))
    if not missing:
        return error
    named = [one for one in find_outside(find_files(settings), settings.root) if _is_open(one, settings)]
    known = {one.text.casefold() for one in named}
    named += [one for one in missing if one.text.casefold() not in known]
    spec = settings.spec_to_edit
    lines = [f"entries for {spec}, with paths to correct:"]
    if settings.is_bundle:
        lines.append(f"  bundle: {settings.file.name}")
    lines += entry_lines(named, indent="  ")
    remedies = [one for one in error.remedies if not one.startswith(ENTRY_MISSING)]
    return error.with_(
        facts=(*error.facts, "\n".join(lines)),
        remedies=(
            f"add the entries above to {settings.spec_to_edit}, with the paths that have the data",
            *remedies,
        ),
        params={**error.params, "missing": sorted(one.text for one in named)},
    )


def _missing(error: HeadraceError) -> Iterator[OutsideName]:
    """The name or the path that an error is about."""
    if error.location is None:
        return
    name = str(error.params.get("name", ""))
    if isinstance(error, TableNotFoundError) and "." in name:
        yield OutsideName("table", name, error.location)
    if isinstance(error, PathUnmappedError):
        yield OutsideName("path", str(error.params["path"]), error.location)


def _is_open(one: OutsideName, settings: ProjectSettings) -> bool:
    """Whether the spec has no entry for a name or a path."""
    if one.kind == "path":
        return settings.paths.find(one.text) is None
    parts = tuple(one.text.split("."))
    return not is_own_catalog(parts[0], settings.catalog) and settings.tables.find(parts) is None
