"""How rows are shown on terminals of several widths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli.rows import RowsTable

ROWS = RowsTable(
    ("id", "name", "kafka_partition", "kafka_offset"),
    ("long", "string", "integer", "long"),
    ((1, "ada", 0, 12), (2, "a long name " * 5, 1, None)),
)


def shown(width: int, *, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system=None).print(ROWS)
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


@pytest.mark.parametrize("width", [40, 80])
def test_a_file_gets_a_line_for_each_row(width: int) -> None:
    assert len(shown(width, terminal=False)) == 3
