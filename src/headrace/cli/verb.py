"""What all commands share: their options, one page of help with examples, and how they return."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from headrace.cli.output import Output, Result, named_options
from headrace.errors import (
    CommandLineError,
    HeadraceError,
    SpecAmbiguousError,
    SpecNotFoundError,
    StorageUnsupportedError,
)
from headrace.model.project import LogFormat, LogLevel, ProjectSettings
from headrace.model.secrets import is_secret_key
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


_ENGINE = "HEADRACE_ENGINE"

if TYPE_CHECKING:
    from headrace.project.pipeline import Pipeline


@dataclass(frozen=True)
class Invocation:
    """One call of the command line: its output and its pipeline."""

    output: Output
    project: Path | None = None
    profile: str | None = None
    storage: str | None = None
    set: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def overrides(self) -> Mapping[str, str]:
        """What the command line changes in the spec."""
        if self.storage is None:
            return self.set
        from headrace.storage.layout import is_uri

        # A path on the command line begins where the user is, and one in the spec in the spec's folder.
        storage = self.storage if is_uri(self.storage) else str(Path(self.storage).expanduser().absolute())
        return {**self.set, "storage": storage}

    def settings(self, *, anywhere: bool = False) -> ProjectSettings:
        """The pipeline's settings; none of its files run, and no JVM starts. `anywhere`: outside of a
        pipeline's folder, the settings of the command line alone."""
        from headrace.declare.spec import find_spec, load_project

        try:
            with suppress(SpecNotFoundError):
                self.output.folders.insert(0, find_spec(self.project).parent)
            return load_project(
                self.project,
                profile=self.profile,
                overrides=self.overrides,
                redactor=self.output.redactor,
                anywhere=anywhere,
            )
        except SpecAmbiguousError as error:
            typed = [one.replace("headrace run", self.output.typed) for one in error.remedies]
            raise error.with_(remedies=typed) from None

    def stored(self, *, anywhere: bool = False) -> ProjectSettings:
        """The pipeline's settings, for commands that read its storage."""
        from headrace.storage.layout import check_complete

        check_complete((settings := self.settings(anywhere=anywhere)).storage.root)
        return settings

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """The pipeline of ``--project`` or of the current folder, with its folder as working directory.
        Pipeline files may open files by relative paths, wherever the command is typed."""
        from headrace.project.pipeline import Pipeline
        from headrace.runtime.places import working_in

        settings = self.settings()
        with working_in(settings.root), Pipeline(settings) as pipeline:
            yield pipeline


class LocalFolder(click.Path):
    """A folder of this machine, given as a path or as a ``file:`` URI."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from headrace.storage.layout import is_uri, locate

        if isinstance(value, str) and is_uri(value):
            found = locate(value)
            if not found.is_local:
                raise StorageUnsupportedError(
                    f"`{value}` is not a folder of this machine, which this argument needs",
                    facts=("only the storage can be in a bucket", "nothing was read or written"),
                    remedies=(f"name a local folder, and the storage with   --storage {shlex.quote(value)}",),
                    params={"storage": value, "scheme": found.files.scheme},
                )
            value = found.local_path
        return super().convert(value, param, ctx)


class Verb(click.Command):
    """A command whose help ends in examples, as they are typed."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write_dl([(example, "") for example in self.examples])


class VerbGroup(Verb, click.Group):
    """A command of commands, with examples too."""


def verb(
    *,
    examples: tuple[str, ...],
    name: str | None = None,
    project: bool = True,
    group: click.Group | None = None,
) -> Callable[[Callable[..., Result | None]], Verb]:
    """Make a command of a function ``(invocation, **parameters) -> Result | None``."""

    def decorate(function: Callable[..., Result | None]) -> Verb:
        def invoke(**parameters: Any) -> Result | None:
            ctx = click.get_current_context()
            output: Output = ctx.find_root().obj
            chosen = (
                {key: parameters.pop(key) for key in ("project", "profile", "storage", "set")}
                if project
                else {}
            )
            output.options = named_options({key: value for key, value in chosen.items() if key != "set"})
            return function(Invocation(output, **chosen), **parameters)

        options = [*(_OF_PROJECT if project else ()), *_OF_OUTPUT]
        declared = list(reversed(getattr(function, "__click_params__", [])))
        for one in options:
            one(invoke)
        made = Verb(
            name or function.__name__.replace("_", "-"),
            callback=invoke,
            help=function.__doc__,
            short_help=(function.__doc__ or "").strip().split("\n")[0].rstrip("."),
            params=[*declared, *invoke.__click_params__],  # type: ignore[attr-defined]
            examples=examples,
        )
        if group is not None:
            group.add_command(made)
        return made

    return decorate


def _without_engine(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value:
        return
    before = os.environ.get(_ENGINE)
    os.environ[_ENGINE] = "off"

    def restore() -> None:
        if before is None:
            del os.environ[_ENGINE]
        else:
            os.environ[_ENGINE] = before

    ctx.call_on_close(restore)


def read_overrides(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE``, each; the last one of a key wins."""
    output: Output | None = ctx.find_root().obj
    overrides = {}
    for value in values:
        key, separator, text = value.partition("=")
        if output is not None and is_secret_key(key):
            # Before anything can go wrong: the trace of a defect holds the command line.
            output.redactor.add(text)
        if not (key.strip() and separator):
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", ctx, param)
        overrides[key.strip()] = text
    return overrides


_OF_PROJECT = (
    option(
        "--project,--spec PATH",
        "The folder or spec of the pipeline; default: found in this folder or the folders above it.",
        LocalFolder(resolve_path=True),
        name="project",
    ),
    option(
        "--profile NAME",
        "The profile of the spec; default: HEADRACE_PROFILE, else dev.",
        shell_complete=complete_profile,
    ),
    option("--storage PATH", "Use this storage instead of the storage of the spec."),
    option(
        "--no-engine",
        "Start a separate JVM for this command if it needs Spark. Same as HEADRACE_ENGINE=off.",
        _without_engine,
        expose_value=False,
    ),
    option(
        "--set KEY=VALUE",
        "Override a value of the spec and its profile, such as runtime.memory=2g.",
        read_overrides,
        multiple=True,
    ),
)
# `main` has read both before parsing began: a wrong command line must be answered in JSON, too.
_OF_OUTPUT = (
    option("--json", "Print the result as JSON.", expose_value=False),
    option("--debug", "Print the stack trace of an error.", expose_value=False),
)
