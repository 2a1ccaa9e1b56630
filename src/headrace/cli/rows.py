"""Rows as a table on a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.model.changes import COLUMN_SEQUENCES, SEQUENCE
from headrace.model.texts import counted
from headrace.observe.read import Rows, shown

_LONG = ("string", "binary", "struct", "array", "map", "variant")
_UNLIMITED = 100_000
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")


@dataclass(frozen=True)
class RowsTable:
    """Rows for `rich` to render, under the names of their columns: numbers to the right, long values folded.
    If a terminal is too narrow for the names, each row is a list of its columns and values."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        table = self._table()
        measured = Measurement.get(console, options.update_width(_UNLIMITED), table)
        if not console.is_terminal:
            # Output to a file or another program is not folded.
            table.width = measured.maximum
            yield table
        elif measured.minimum <= options.max_width:
            yield table
        else:
            yield from self._lists()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
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
        return table

    def _lists(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), show_header=False)
            table.add_column(style="dim", no_wrap=True)
            table.add_column(overflow="fold")
            for name, value in zip(self.columns, row, strict=True):
                table.add_row(Text(name), _cell(value))
            yield table


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
    """A table of rows with their number below it."""
    more = "; use --limit to see more" if is_cut else ""
    return Group(table, Text(f"{counted(len(rows), 'row')}{of}{more}", style="dim"))
