"""Rows as a table on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_LONG = ("string", "binary", "struct", "array", "map", "variant")
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


def rows_table(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Rows under the names of their columns; numbers to the right, long values folded."""
    from rich.table import Table
    from rich.text import Text

    from headrace.observe.read import shown

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
    for name, kind in zip(columns, types, strict=True):
        table.add_column(
            Text(name),
            justify="right" if kind.startswith(_NUMBERS) else "left",
            no_wrap=kind not in _LONG,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(shown(value), style="dim" if value is None else "") for value in row))
    return table


def split_columns(text: str | None) -> list[str]:
    """The columns that ``--columns A,B`` names."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []
