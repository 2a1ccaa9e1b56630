"""Tables on a screen: whole if the screen is wide enough, else a block for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

UNLIMITED = 100_000  # the width of output to a file or another program
STATE_STYLES = {
    "running": "green",
    "up to date": "green",
    "retrying": "yellow",
    "reconnecting": "yellow",
    "skipped": "yellow",
    "behind": "yellow",
    "orphaned": "yellow",
    "unknown": "yellow",
    "failed": "bold red",
    "unreadable": "bold red",
}
"""How the state of a flow or view is shown."""

_INDENT, _GAP = "  ", "   "
_NOTHING = ("", "-", "\N{EN DASH}")


def empty_table(padding: int = 2) -> Table:
    """A table without lines. `padding`: the columns after a cell."""
    return Table(box=None, pad_edge=False, padding=(0, padding, 0, 1), header_style="dim")


@dataclass(frozen=True)
class FittedTable:
    """A table for `rich`. If the screen is too narrow for it, each row becomes a block. `is_data`: the block
    has a line for each column; else its title is the first column, and the others fill the lines below."""

    table: Table
    is_data: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.fits(options.max_width):
            yield self.table
        elif self.is_data:
            yield from self._lists()
        else:
            yield from chain.from_iterable(self._blocks(options.max_width))

    def fits(self, width: int) -> bool:
        """Whether the table has room without a name or a value that is cut."""
        _, right, _, left = self.table.padding
        columns = self.table.columns
        used = (left + right) * (len(columns) - 1)
        for column in columns:
            texts = [_text(one).plain for one in (column.header, *column.cells)]
            words = texts if column.no_wrap else [word for text in texts for word in text.split()]
            used += max([column.min_width or 0, *map(cell_len, words)])
        return used <= width

    def row_height(self, width: int) -> int:
        """The lines of the highest row."""
        return 1 if self.fits(width) else max(map(len, self._blocks(width)), default=1)

    def _rows(self) -> Iterator[tuple[RenderableType, ...]]:
        return zip(*(column.cells for column in self.table.columns), strict=True)

    def _lists(self) -> Iterator[RenderableType]:
        for number, row in enumerate(self._rows()):
            if number:
                yield ""
            shown = empty_table()
            shown.show_header = False
            shown.add_column(style="dim", no_wrap=True)
            shown.add_column(overflow="fold")
            for column, value in zip(self.table.columns, row, strict=True):
                shown.add_row(column.header, value)
            yield shown

    def _blocks(self, width: int) -> Iterator[list[Text]]:
        for row in self._rows():
            title, *values = map(_text, row)
            lines, line = [title], Text(_INDENT, overflow="fold")
            for column, value in zip(self.table.columns[1:], values, strict=True):
                if value.plain.strip() in _NOTHING:
                    continue
                pair = Text.assemble((f"{column.header}: ", "dim"), value)
                if line.plain == _INDENT:
                    line.append_text(pair)
                elif line.cell_len + len(_GAP) + pair.cell_len <= width:
                    line.append(_GAP).append_text(pair)
                else:
                    lines.append(line)
                    line = Text(_INDENT, overflow="fold").append_text(pair)
            yield [*lines, line] if line.plain != _INDENT else lines


def _text(cell: RenderableType) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(str(cell))
