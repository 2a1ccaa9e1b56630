"""Durations on the command line."""

from __future__ import annotations

import click

from headrace.model.texts import parse_duration


def parse_time(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """The seconds of a duration with a unit, such as ``7d``."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time with a unit, such as 12h or 7d") from None
