"""Several errors of a plan, raised as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.errors import HeadraceError, PlanFailedError, RowsMissingError
from headrace.model.names import TableName


def raise_all(
    errors: Iterable[HeadraceError], downstream: Mapping[TableName, TableName] | None = None
) -> None:
    """Raise all errors as one, if there are any. `downstream`: the datasets that were not checked, each with
    the one that it reads."""
    unique = {(error.headline, error.location): error for error in errors}
    if unique:
        # Datasets that read each other in a cycle are named by its error.
        named = {name for error in unique.values() for name in error.params.get("cycle", ())}
        unchecked = {name: read for name, read in (downstream or {}).items() if str(name) not in named}
        raise _one_error(list(unique.values()), unchecked)


def _one_error(errors: list[HeadraceError], downstream: Mapping[TableName, TableName]) -> HeadraceError:
    """One error for all; with the datasets that were not checked because of them."""
    error = errors[0]
    if len(errors) > 1:
        located = [(one.location, one) for one in errors if one.location is not None]
        located.sort(key=lambda pair: (pair[0].path, pair[0].line))
        error = PlanFailedError([*(one for _, one in located), *(one for one in errors if not one.location)])
    if not downstream or isinstance(error, RowsMissingError):
        return error
    listed = ", ".join(f"{name.short} (reads {read.short})" for name, read in sorted(downstream.items()))
    names = {"not_checked": sorted(map(str, downstream))}
    fact = f"not checked, because what they read has an error: {listed}"
    return error.with_(facts=(*error.facts, fact), params={**error.params, **names})
