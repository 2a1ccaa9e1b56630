"""Rows as a table on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from headrace.model.names import COLUMN_SEQUENCES, SEQUENCE
from headrace.model.texts import counted
from headrace.observe.fitting import FittedTable, empty_table
from headrace.observe.read import Rows, shown

_LONG = ("string", "binary", "struct", "array", "map", "variant")
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


@dataclass(frozen=True)
class RowsTable:
    """Rows under the names of their columns: numbers to the right, long values folded."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich__(self) -> FittedTable:
        table = empty_table()
        for name, kind in zip(self.columns, self.types, strict=True):
            table.add_column(
                Text(name, no_wrap=True),
                justify="right" if kind.startswith(_NUMBERS) else "left",
                no_wrap=kind not in _LONG,
                min_width=cell_len(name),
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*map(_cell, row))
        return FittedTable(table, is_data=True)


def _cell(value: Any) -> Text:
    return Text(shown(value), style="dim" if value is None else "")


def table_rows(rows: Rows, *, with_sequences: bool = False) -> tuple[RowsTable, str]:
    """Rows of a table, and a remark if columns are left out. `with_sequences`: whether to show the columns
    that changes by key are ordered by. They are wide, and rarely of interest."""
    left_out = [] if with_sequences else [one for one in rows.columns if one in (SEQUENCE, COLUMN_SEQUENCES)]
    kept = [number for number, name in enumerate(rows.columns) if name not in left_out]
    columns, types = ([all_[one] for one in kept] for all_ in (rows.columns, rows.types))
    table = RowsTable(columns, types, [[row[one] for one in kept] for row in rows.rows])
    return table, f", without {', '.join(left_out)}" if left_out else ""


def split_columns(text: str | None) -> list[str]:
    """The columns that ``--columns A,B`` names."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def with_count(table: RowsTable, rows: Sequence[object], of: str = "", *, is_cut: bool) -> Group:
    more = "; use --limit to see more" if is_cut else ""
    return Group(table, Text(f"{counted(len(rows), 'row')}{of}{more}", style="dim"))
