"""Values of rows and records: they are shown only if somebody asks for them, and the spec allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException

from headrace.dashboard.site import PipelineView
from headrace.observe.read import Rows, shown

LIMIT = 20
_LONGEST = 2000  # characters of a value
_VALUES = frozenset({"example", "examples", "facts", "params", "record", "value"})
"""Keys of details whose values can come from records: an error quotes the rows that failed."""


def allow(view: PipelineView) -> None:
    """Refuse the values of rows if the spec switches them off."""
    if not view.settings.shows_rows:
        raise HTTPException(403, "The spec has switched off the values of rows: ui: {rows: false}.")


def table(view: PipelineView, title: str, rows: Rows | None, command: str) -> Mapping[str, Any]:
    """Rows for the template."""
    cells = [] if rows is None else [[text(view, one) for one in row] for row in rows.rows]
    columns = [] if rows is None else list(zip(rows.columns, rows.types, strict=True))
    return {
        "title": title,
        "columns": columns,
        "rows": cells,
        "is_cut": rows is not None and rows.is_cut,
        "command": command,
    }


def text(view: PipelineView, value: Any) -> str:
    found = view.settings.redactor(shown(value))
    return found if len(found) <= _LONGEST else found[:_LONGEST] + " …"


def without_values(details: Any) -> Any:
    """Details of an event or a commit without values of records."""
    match details:
        case Mapping():
            return {key: without_values(value) for key, value in details.items() if key not in _VALUES}
        case list() | tuple():
            return [without_values(one) for one in details]
        case _:
            return details
