"""How rows are shown on terminals of several widths."""

from __future__ import annotations

import io

from rich.console import Console, Group
from rich.table import Table

from headrace.cli.output import Result, TextOutput
from headrace.cli.rows import RowsTable
from headrace.observe.fitting import FittedTable

ROWS = RowsTable(
    ("id", "name", "kafka_partition", "kafka_offset"),
    ("long", "string", "integer", "long"),
    ((1, "ada", 0, 12), (2, "a long name " * 5, 1, None)),
)


def shown(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(ROWS)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_long_values_are_folded_and_names_are_not() -> None:
    lines = shown(60)
    assert lines[0].split() == ["id", "name", "kafka_partition", "kafka_offset"]
    assert len(lines) > 3
    assert max(map(len, lines)) <= 60


def test_a_narrow_terminal_shows_a_row_as_a_list() -> None:
    lines = shown(40)
    assert lines[:4] == [
        "id                1",
        "name              ada",
        "kafka_partition   0",
        "kafka_offset      12",
    ]
    assert "kafka_offset      null" in lines


def test_a_file_gets_a_line_for_each_row() -> None:
    out = io.StringIO()
    TextOutput(stdout=out, stderr=out).result(Result(data={}, text=lambda: Group(ROWS, FittedTable(wide()))))
    assert len(out.getvalue().splitlines()) == 5


def wide() -> Table:
    table = Table(box=None)
    for number in range(30):
        table.add_column(f"column {number}", no_wrap=True)
    table.add_row(*map(str, range(30)))
    return table


def test_a_table_that_must_not_be_cut_is_a_list_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(
        FittedTable(wide(), is_data=True)
    )
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines == [["column", str(number), str(number)] for number in range(30)]
