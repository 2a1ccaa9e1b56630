"""What a notebook shows of a value that the library returns: HTML tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from headrace.errors import HeadraceError

_MOST_ROWS = 50
_LEFT, _RIGHT = "text-align:left", "text-align:right"


def html_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], lines: Iterable[str] = ()
) -> str:
    """A title, a table, and lines of text below it. Numbers stand to the right; ``None`` is an empty cell."""
    shown = rows[:_MOST_ROWS]
    head = "".join(f'<th style="{_LEFT}">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    more = [f"and {len(rows) - len(shown):,} more rows"] if len(rows) > len(shown) else []
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    return f"<div><b>{escape(title)}</b>{table}{_paragraphs([*more, *lines])}</div>"


def error_texts(errors: Iterable[HeadraceError]) -> list[str]:
    """Each error with its remedies, as lines of text."""
    found = []
    for error in errors:
        found += [error.headline, *(f"help: {remedy}" for remedy in error.remedies)]
    return found


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:,}" if is_number else "" if value is None else str(value)
    return f'<td style="{_RIGHT if is_number else _LEFT}">{escape(text)}</td>'
