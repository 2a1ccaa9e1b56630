"""Rows as a table on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.model.changes import COLUMN_SEQUENCES, SEQUENCE

if TYPE_CHECKING:
    from rich.table import Table

    from headrace.observe.read import Rows

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


def table_rows(rows: Rows, *, with_sequences: bool = False) -> tuple[Table, str]:
    """Rows of a table, and a remark if columns are left out.

    Args:
        rows: The rows.
        with_sequences: Whether to show the columns that changes by key are ordered by. They are wide, and
            rarely of interest.
    """
    left_out = [] if with_sequences else [one for one in rows.columns if one in (SEQUENCE, COLUMN_SEQUENCES)]
    kept = [number for number, name in enumerate(rows.columns) if name not in left_out]
    columns, types = ([all_[one] for one in kept] for all_ in (rows.columns, rows.types))
    table = rows_table(columns, types, [[row[one] for one in kept] for row in rows.rows])
    return table, f", without {', '.join(left_out)}" if left_out else ""


def split_columns(text: str | None) -> list[str]:
    """The columns that ``--columns A,B`` names."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []
