"""Points in time as they are typed: a moment, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_AGO = re.compile(r"-?(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_moment(text: str) -> datetime | None:
    """A time in ISO format (in UTC without a zone), or an age such as ``2h``; else ``None``."""
    if ago := _AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def read_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    """The value of an option that is a point in time."""
    if text is None:
        return None
    moment = parse_moment(text)
    if moment is None:
        raise click.BadParameter(f"{text!r} is not a time (2026-11-20T08:14) or an age (2h)", ctx, param)
    return moment
