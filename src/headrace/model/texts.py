"""Sizes, counts, durations, moments and lines as texts for a person, and values as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from html import escape
from typing import Any, Final

from headrace.errors import HeadraceError


def size_text(size: int) -> str:
    """A size in the largest unit below it: 812 bytes, 3.2 MB, 1.4 GB."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 10**power:
            return f"{size / 10**power:,.1f} {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"


def counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def files_text(number: int, size: int) -> str:
    """A number of files and their size: 3 files (3.2 MB)."""
    return f"{counted(number, 'file')} ({size_text(size)})"


DAY_S: Final = 86400.0

_TEXT = re.compile(r"\s*(?:interval\s+)?((?:'?\d+(?:\.\d+)?'?\s*[a-z]+\s*)+)", re.IGNORECASE)
_PART = re.compile(r"'?(\d+(?:\.\d+)?)'?\s*([a-z]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*")
_UNITS = {"ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0}
_UNITS |= {"m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_UNITS |= {"d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S}


def parse_duration(value: Any) -> float:
    """The seconds of ``7 days``, ``12 hours``, ``30d`` or ``interval 1 week``."""
    seconds = seconds_or_none(value)
    if seconds is None:
        raise ValueError("must be a time with a unit, such as 7 days or 12 hours")
    return seconds


def seconds_or_none(value: Any) -> float | None:
    """The seconds of a duration with a unit, or ``None`` if the value is not such a duration."""
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    seconds = 0.0
    for number, name in _PART.findall(found[1]):
        unit = name.lower()
        factor = _UNITS.get(unit, _UNITS.get(unit.removesuffix("s")))
        if factor is None:
            return None
        seconds += float(number) * factor
    return seconds


def parse_seconds(value: Any) -> float:
    """The seconds of ``5``, ``500 ms``, ``10 seconds`` or ``1 minute``; a plain number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0 or value != value or value == float("inf"):
            raise ValueError("must not be negative; write 10 or `10 seconds`, for example")
        return float(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    seconds = seconds_or_none(value)
    if seconds is None:
        raise ValueError("must be a time, such as 500 ms, 10 seconds or 1 minute")
    return seconds


def duration_text(seconds: float) -> str:
    """A duration for a person: 0.31 s, 12 s, 3 min, 2 h, 30 days."""
    if seconds < 1:
        return f"{max(seconds, 0):.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"


def typed_duration(seconds: float) -> str:
    """A duration as an option of a command takes it: 7d, 12h, 90s."""
    for unit, size in (("d", DAY_S), ("h", 3600.0), ("m", 60.0)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def moment_text(timestamp_ms: int) -> str:
    """A moment of the epoch in UTC; one that no calendar has stays a number of milliseconds."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d} UTC"


def json_text(value: Any) -> str:
    """A value as JSON; decimals keep their digits, times are in ISO 8601."""
    match value:
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
        case Decimal():
            return format(value, "f")
        case datetime() | date():
            return json.dumps(value.isoformat())
        case Mapping():
            pairs = (f"{json_text(str(key))}: {json_text(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(json_text, value)) + "]"
        case _:
            raise TypeError(f"JSON cannot represent a {type(value).__name__}")


GLUE = "\u00a0"  # A space at which no line is broken
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_COMMAND = re.compile(r"`[^`]*`|(?:(?<=   )|^)(?:headrace|jq|export|pip|python|duckdb) .*$")
"""Commands, which a person copies: a part in backquotes, or the end of a line."""


def wrap(text: str, width: int | None, first: str = "", rest: str = "") -> list[str]:
    """Break a line into lines. `width`: characters of a line; a longer word or command keeps its length.
    `None` breaks nothing."""
    glued = _COMMAND.sub(lambda found: found[0].replace(" ", GLUE), text)
    lines, line = list[str](), first
    for gap, word in re.findall(r"( *)([^ ]+)", glued):
        is_empty = line in (first, rest)
        if width is not None and not is_empty and _length(line) + len(gap) + _length(word) > width:
            lines.append(line)
            line, gap = rest, ""
        line += gap + word
    return [one.replace(GLUE, " ") for one in (*lines, line)]


def _length(text: str) -> int:
    return len(_STYLE.sub("", text))


def find_option(options: Mapping[str, str], name: str) -> str | None:
    """The value of an option; Spark ignores the case of its name."""
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def option_text(value: object) -> str:
    """The value of an option as Spark takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    below = "".join(f"<div>{escape(line)}</div>" for line in [*more, *lines])
    return f"<div><b>{escape(title)}</b>{table}{below}</div>"


def error_texts(errors: Iterable[HeadraceError]) -> list[str]:
    found = []
    for error in errors:
        found += [error.headline, *(f"help: {remedy}" for remedy in error.remedies)]
    return found


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:,}" if is_number else "" if value is None else str(value)
    return f'<td style="{_RIGHT if is_number else _LEFT}">{escape(text)}</td>'
