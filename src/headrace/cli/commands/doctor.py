"""`headrace doctor` and `engine`: this machine, and the JVM in the background."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, verb
from headrace.errors import SpecNotFoundError
from headrace.model.project import ProjectSettings

if TYPE_CHECKING:
    from headrace.runtime.doctor import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@verb(examples=("headrace doctor", "headrace doctor --profile prod --json"))
def doctor(invocation: Invocation) -> Result:
    """Check whether this machine can run a pipeline.

    Checks Java, jars, Spark, memory, disk and the embedded broker; in the folder of a pipeline
    also its storage and its Kafka cluster. Starts nothing. Exit code 1 if a run could not start.
    """
    from headrace.runtime.doctor import run_checks

    with invocation.output.progress("Checking this machine"):
        checks = run_checks(_settings(invocation))
    failed = any(check.state == "fail" for check in checks)
    return Result(
        data={"ok": not failed, "checks": [asdict(check) for check in checks]},
        text="\n".join(_lines(checks)),
        exit_code=1 if failed else 0,
    )


def _settings(invocation: Invocation) -> ProjectSettings | None:
    try:
        return invocation.settings()
    except SpecNotFoundError:
        if invocation.project is not None:
            raise
        return None


def _lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        sign, colour = _SIGNS[check.state]
        lines.append(f"{click.style(sign, fg=colour)} {check.name:<{width}}  {check.text}")
        if check.remedy:
            lines.append(f"{' ' * (width + 4)}{click.style('help:', fg='cyan')} {check.remedy}")
    return lines


@click.group("engine", cls=VerbGroup, examples=("headrace engine status", "headrace engine stop"))
def engine() -> None:
    """Manage the engine, a JVM that stays in the background.

    The first command that needs Spark starts the engine, and later commands use it. The engine ends after
    15 minutes without a command.
    """


@verb(group=engine, examples=("headrace engine status", "headrace engine status --json"), project=False)
def status(invocation: Invocation) -> Result:
    """Show the engines, their age and memory, and the commands that use them."""
    from headrace.runtime.engine.client import find_engines

    engines = find_engines()
    text = "\n\n".join(map(_text, engines)) or "No engine is running."
    names = {"version": "headrace", "folder": "path"}
    found = [{names.get(name, name): value for name, value in one.items()} for one in engines]
    return Result(data={"engines": found}, text=text)


@verb(group=engine, examples=("headrace engine stop", "headrace engine stop --json"), project=False)
def stop(invocation: Invocation) -> Result:
    """Stop all engines; commands that use one of them fail."""
    with invocation.output.progress("Stopping the engine"):
        from headrace.runtime.engine.client import stop_engines

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
