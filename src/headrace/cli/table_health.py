"""The health of tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.model.texts import duration_text, size_text

if TYPE_CHECKING:
    from rich.console import Group

    from headrace.maintain.health import TableHealth

_NONE = "-"
_COLUMNS = (
    "table",
    "files",
    "small",
    "size",
    "mean",
    "partitions",
    "skew",
    "commits",
    "checkpoint",
    "deleted",
    "compacted",
    "vacuumed",
    "needed from",
)


def health_table(found: Sequence[TableHealth]) -> Group | str:
    """A table with a row for each table, and the remarks below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not found:
        return "The storage has no tables yet. `headrace run` creates them."
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="dim")
    for index, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for one in found:
        style = "yellow" if one.remarks else "bold red" if one.problem else "bold"
        table.add_row(Text(one.target.title, style=style), *_cells(one, datetime.now(UTC)))
    remarks = [Text(line) for one in found for line in _remark_lines(one)]
    return Group(table, *([Text(""), *remarks] if remarks else []))


def _cells(one: TableHealth, now: datetime) -> Iterator[str]:
    found = one.condition
    if found is None:
        yield from [_NONE] * (len(_COLUMNS) - 1)
        return
    yield f"{found.files:,}"
    yield f"{one.small:,}"
    yield size_text(found.size_bytes)
    yield size_text(found.size_bytes // found.files) if found.files else _NONE
    yield f"{one.partitions:,}" if found.snapshot.partition_columns else _NONE
    yield _NONE if one.skew is None else f"{one.skew:.1f}"
    yield f"{len(found.snapshot.commits):,}"
    yield f"-{one.checkpoint_age:,}"
    yield f"{one.deleted_share:.0%}"
    for at in (one.compacted, one.vacuumed):
        yield _NONE if at is None else f"{duration_text((now - at).total_seconds())} ago"
    yield (
        _NONE if one.needed is None else f"v{max(one.needed.version, 0)} {one.needed.kind} {one.needed.name}"
    )


def _remark_lines(one: TableHealth) -> Iterator[str]:
    if one.problem is not None:
        yield f"{one.target.title}: {one.problem}"
    for remark in one.remarks:
        yield f"{one.target.title}: {remark.text}" + (f":   {remark.command}" if remark.command else "")
