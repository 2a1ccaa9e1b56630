"""The options of commands that leave a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import click

from headrace.model.project import LogFormat, LogLevel


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--log-level`` and ``--log-format``."""
    for option, known, text in (
        (
            "--log-format",
            get_args(LogFormat),
            "The format of the log; default: HEADRACE_LOG_FORMAT, else text.",
        ),
        (
            "--log-level",
            get_args(LogLevel),
            "The lowest level that is logged; default: HEADRACE_LOG_LEVEL, else info.",
        ),
    ):
        function = click.option(option, type=click.Choice(known), help=text)(function)
    return function
