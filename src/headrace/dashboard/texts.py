"""Texts of pages: numbers, times and addresses, as templates call them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup, escape

from headrace.model.texts import duration_text, size_text

NONE = "–"  # noqa: RUF001
_BAD = ("failed", "unreadable", "refuted")
_LATE = ("retrying", "reconnecting", "skipped", "behind", "orphaned", "partial", "broken off")
_GOOD = ("up to date", "completed", "proven")
_TONES = {
    **dict.fromkeys(_BAD, "bad"),
    **dict.fromkeys(_LATE, "late"),
    **dict.fromkeys(_GOOD, "good"),
    "running": "busy",
}
_ORDER = (
    *_BAD,
    "retrying",
    "reconnecting",
    "skipped",
    "running",
    *_LATE,
    "unknown",
    "stopped",
    "new",
    *_GOOD,
)
"""The states for what has several of them: trouble first, then work, then rest."""


def tone(state: str | None) -> str:
    """The colour of a state: ``good``, ``busy``, ``late``, ``bad`` or ``idle``."""
    return _TONES.get(state or "", "idle")


def worst(states: Any) -> str | None:
    return min(states, key=lambda one: _ORDER.index(one) if one in _ORDER else len(_ORDER), default=None)


def address(page: str, pipeline: str | None = None, **query: Any) -> str:
    """The address of a page; names are parts of the query, where they may have any character."""
    path = f"/{page}" if pipeline is None else f"/p/{quote(pipeline, safe='')}/{page}"
    known = {key.rstrip("_"): value for key, value in query.items() if value is not None}
    return path + (f"?{urlencode(known)}" if known else "")


def number(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.2%}" if value else "0 %"


def seconds(value: float | None) -> str:
    return NONE if value is None else duration_text(value)


def millis(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f} ms" if value < 1000 else duration_text(value / 1000)


def size(value: int | None) -> str:
    return NONE if value is None else size_text(value)


def when(at: datetime | None, form: str = "time") -> Markup:
    """A moment, which the browser writes in the zone of the viewer. `form`: ``time``, or ``ago``."""
    if at is None:
        return Markup(NONE)
    utc = at.astimezone(UTC)
    shown = f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}" data-form="{}">{}</time>').format(
        utc.isoformat(timespec="milliseconds"), f"{utc:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC", form, shown
    )


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def command(text: str) -> Markup:
    """A command with a button that copies it."""
    return Markup(
        '<span class="command"><code>{0}</code><button type="button" data-copy="{0}" aria-label="Copy the '
        'command">Copy</button></span>'
    ).format(escape(text))


def remedy(text: str) -> Markup:
    """A remedy of an error; its command can be copied."""
    words, separator, typed = text.rpartition(":   ")
    if separator:
        return Markup("{}: {}").format(words, command(typed))
    return command(text) if text.startswith("headrace ") else Markup("{}").format(text)


def moment_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


FILTERS: Mapping[str, Any] = {
    one.__name__: one
    for one in (moment_of, tone, number, share, seconds, millis, size, when, pretty, command, remedy)
}
