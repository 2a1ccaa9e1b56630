"""The options of commands that leave a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import click

from headrace.model.logs import LogFormat, LogLevel


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--log-level`` and ``--log-format``."""
    for option, known, text in (
        ("--log-format", get_args(LogFormat), "How the log is written; HEADRACE_LOG_FORMAT, then text."),
        ("--log-level", get_args(LogLevel), "The least that the log keeps; HEADRACE_LOG_LEVEL, then info."),
    ):
        function = click.option(option, type=click.Choice(known), help=text)(function)
    return function
