"""`headrace engine`: the JVM in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, verb

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.group("engine", cls=VerbGroup, examples=("headrace engine status", "headrace engine stop"))
def command() -> None:
    """Manage the engine, a JVM that stays in the background.

    The first command that needs Spark starts the engine, and later commands use it. The engine ends after
    15 minutes without a command.
    """


@verb(name="status", examples=("headrace engine status", "headrace engine status --json"), project=False)
def status(invocation: Invocation) -> Result:
    """Show the engines, their age and memory, and the commands that use them."""
    from headrace.runtime.engine.client import find_engines

    engines = find_engines()
    text = "\n\n".join(map(_text, engines)) or "No engine is running."
    return Result(data={"engines": engines}, text=text)


@verb(name="stop", examples=("headrace engine stop", "headrace engine stop --json"), project=False)
def stop(invocation: Invocation) -> Result:
    """Stop all engines; commands that use one of them fail."""
    from headrace.runtime.engine.client import stop_engines

    with invocation.output.progress("Stopping the engine"):
        stopped = stop_engines()
    text = "No engine was running." if not stopped else f"Stopped: {stopped}"
    return Result(data={"stopped": stopped}, text=text)


def _text(engine: Mapping[str, Any]) -> str:
    idle = "" if engine["sessions"] else f", idle for {_duration(engine['idle_s'])}"
    lines = [
        f"process {engine['pid']}, running for {_duration(engine['age_s'])}{idle}, {engine['memory_mb']} MB, "
        f"commands: {engine['commands']}",
        f"folder {engine['folder']}    log {engine['log']}",
        *(
            f"  process {one['pid']}  {one['command']}  {_duration(one['since_s'])}  {one['state']}"
            for one in engine["sessions"]
        ),
    ]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


command.add_command(status)
command.add_command(stop)
