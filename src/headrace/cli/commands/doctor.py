"""`headrace doctor`: what this machine lacks, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import SpecNotFoundError

if TYPE_CHECKING:
    from headrace.model.project import ProjectSettings
    from headrace.runtime.doctor import Check

_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@verb(examples=("headrace doctor", "headrace doctor --profile prod --json"))
def command(invocation: Invocation) -> Result:
    """Check whether this machine can run a pipeline.

    Checks Java, jars, Spark, memory, disk, ports and the embedded broker; in the folder of a pipeline
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
    """The pipeline that we are in, if we are in one."""
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
