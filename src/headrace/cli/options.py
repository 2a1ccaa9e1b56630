"""What options take: times, ages and log settings, and what a shell completes; Spark is not started."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import click

from headrace.errors import CommandLineError, HeadraceError
from headrace.model.project import LogFormat, LogLevel, ProjectSettings
from headrace.model.texts import parse_duration

_AGO = re.compile(r"-?(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


POSITIVE, WHOLE = click.IntRange(1), click.IntRange(0)


def option(
    given: str, help: str, reads: Any = None, *, name: str = "", default: Any = None, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option as a user types it: ``--retain TIME``, or ``--once`` for a flag. `reads`: a type of click, or
    the callback that reads the value. `name`: the parameter of the function, if it differs."""
    names, _, metavar = given.partition(" ")
    if isinstance(reads, click.ParamType):
        settings["type"] = reads
    elif reads is not None:
        settings["callback"] = reads
    if metavar:
        settings["metavar"] = metavar
    elif "type" not in settings:
        settings["is_flag"] = True
    if default is not None:
        settings |= {"default": default, "show_default": isinstance(default, str) or type(default) is int}
    return click.option(*names.split(","), *filter(None, [name]), help=help, **settings)


def refuse(*cases: tuple[bool, str] | tuple[bool, str, str] | tuple[bool, str, str, str]) -> None:
    """Refuse the first combination of options that is wrong, with its text and its remedies."""
    for is_wrong, text, *remedies in cases:
        if is_wrong:
            context = click.get_current_context(silent=True)
            command = "headrace" if context is None else context.command_path
            raise CommandLineError(
                text,
                remedies=remedies or [f"see the options:   {command} --help"],
                params={"command": command},
            )


def parse_moment(text: str) -> datetime | None:
    """A time in ISO format (in UTC without a zone), or an age such as ``2h``; else ``None``."""
    if ago := _AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def require_moment(text: str, expected: str = "a time (2026-11-20T08:14) or an age (2h)") -> datetime:
    moment = parse_moment(text)
    if moment is None:
        raise click.BadParameter(f"{text!r} is not {expected}")
    return moment


def read_moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    return None if text is None else require_moment(text)


def read_share(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A percentage below 50, as a share."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,2}(?:\.\d+)?)%", text.strip())
    if found is None or not 0 < float(found[1]) < 50:
        raise click.BadParameter(f"{text!r} is not a percentage below 50, such as 1%")
    return float(found[1]) / 100


def parse_time(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """The seconds of a duration with a unit, such as ``7d``."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time with a unit, such as 12h or 7d") from None


def log_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--log-level`` and ``--log-format``; the function gets them as ``log``, a `LogSettings`."""

    @functools.wraps(function)
    def with_log(
        *given: Any, log_level: LogLevel | None, log_format: LogFormat | None, **parameters: Any
    ) -> Any:
        from headrace.observe.log import LogSettings

        return function(*given, log=LogSettings.of(log_format, log_level), **parameters)

    form = "The format of the log; default: HEADRACE_LOG_FORMAT, else text."
    level = "The lowest level that is logged; default: HEADRACE_LOG_LEVEL, else info."
    with_format = option("--log-format", form, click.Choice(get_args(LogFormat)))(with_log)
    return option("--log-level", level, click.Choice(get_args(LogLevel)))(with_format)


def complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The datasets that the pipeline's files declare, or whose tables its storage holds."""
    from headrace.declare.outside_names import find_names
    from headrace.declare.pipeline_files import find_files

    settings = _settings(ctx)
    if settings is None:
        return []
    names = {table.within(settings.database) for table in settings.storage.find_tables()}
    with suppress(HeadraceError):
        for file in find_files(settings):
            with suppress(OSError):
                names |= find_names([file], settings.root, {}).datasets
    names -= set(ctx.params.get(param.name or "") or ())
    return sorted(name for name in names if name.startswith(incomplete))


def complete_profile(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from headrace.declare.spec import find_spec, profile_names

    try:
        names = profile_names(find_spec(ctx.params.get("project")))
    except HeadraceError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _settings(ctx: click.Context) -> ProjectSettings | None:
    from headrace.declare.spec import load_project

    # A profile may need environment variables that are not set while a name is typed.
    for profile in (ctx.params.get("profile"), None):
        try:
            return load_project(ctx.params.get("project"), profile=profile)
        except HeadraceError:
            continue
    return None
