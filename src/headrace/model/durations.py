"""Durations: from text to seconds, and from seconds to text."""

from __future__ import annotations

import re
from typing import Any, Final

DAY_S: Final = 86400.0

_TEXT = re.compile(r"\s*(?:interval\s+)?((?:'?\d+(?:\.\d+)?'?\s*[a-z]+\s*)+)", re.IGNORECASE)
_PART = re.compile(r"'?(\d+(?:\.\d+)?)'?\s*([a-z]+)", re.IGNORECASE)
_NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*")
_UNITS = {"ms": 0.001, "millisecond": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0}
_UNITS |= {"m": 60.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
_UNITS |= {"d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S}


def parse_duration(value: Any) -> float:
    """The seconds of ``7 days``, ``12 hours``, ``30d`` or ``interval 1 week``.

    Raises:
        ValueError: The value is not a duration with a unit.
    """
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
    """The seconds of ``5``, ``500 ms``, ``10 seconds`` or ``1 minute``; a number without a unit is seconds.

    Raises:
        ValueError: The value is not a time.
    """
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
