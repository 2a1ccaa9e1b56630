"""`headrace alerts`: the alerts that have not ended, a check of the rules, and test messages."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, verb
from headrace.errors import AlertUndeliveredError, ArgumentInvalidError, CommandLineError, did_you_mean
from headrace.model.project import ProjectSettings
from headrace.model.texts import counted, duration_text
from headrace.project.operations import new_update

_WRITE = 'alerts: {targets: {ops: {slack: "${SLACK_URL}"}}, rules: [{on: flow_failed}]}'


@click.group("alerts", cls=VerbGroup, examples=("headrace alerts show", "headrace alerts test ops"))
def alerts() -> None:
    """Show, check or test the alerts of `alerts:` in headrace.yml.

    A run checks its alerts every 15 seconds, and at its end. `headrace alerts check` does so without a run.
    Starts no Spark.
    """


@verb(group=alerts, examples=("headrace alerts show", "headrace alerts show --json"))
def show(invocation: Invocation) -> Result:
    """Show the rules, and the alerts that have not ended."""
    from headrace.alerts.check import load_alerts

    settings = _settings(invocation)
    found = load_alerts(settings.storage, settings.name)
    now = datetime.now(UTC)
    lines = []
    for one in found:
        state = "alert" if one.fired is not None else "waits"
        lines.append(f"{state}  {one.text}  for {duration_text((now - one.since).total_seconds())}")
        lines += [f"       {target} was not told: {why}" for target, why in one.problems.items()]
    rules, targets = settings.alerts.rules, settings.alerts.targets
    head = f"{counted(len(rules), 'rule')}, {counted(len(targets), 'target')}: {', '.join(targets)}"
    return Result(
        data={
            "targets": [*targets],
            "rules": [{"on": one.on, "datasets": [*map(str, one.datasets)]} for one in rules],
            "alerts": [one.to_json() for one in found],
        },
        text="\n".join([head, *(lines or ["no alert"])]),
    )


@verb(group=alerts, examples=("headrace alerts check", "headrace alerts check --json"))
def check(invocation: Invocation) -> Result:
    """Check the rules once, and tell the targets what has begun or ended.

    For a scheduler, beside runs or without them: it also notices that nothing runs any more. The exit code
    is 0 if the rules could be checked, also if one of them fires.
    """
    from headrace.project.alerting import check_alerts

    settings = _settings(invocation)
    with invocation.output.progress("Checking"):
        found = check_alerts(settings, new_update())
    lines = [f"alert  {one.text}   help: `{one.remedy}`" for one in found if one.is_bad]
    unknown = sum(one.is_bad is None for one in found)
    good = sum(one.is_bad is False for one in found)
    counts = f"{good} in order, {len(lines)} not" + (f", {unknown} not known" if unknown else "")
    return Result(
        data={
            "checks": [
                {"alert": one.rule.on, "subject": one.subject, "bad": one.is_bad, "text": one.text}
                for one in found
            ]
        },
        text="\n".join([*lines, counts]),
    )


@verb(group=alerts, examples=("headrace alerts test", "headrace alerts test ops"))
@click.argument("target", required=False, metavar="[TARGET]")
def test(invocation: Invocation, target: str | None) -> Result:
    """Send a test message to all targets, or to one of them.

    The exit code is 1 if a target does not take it.
    """
    from headrace.alerts.messages import Message, UndeliveredError, send

    settings = _settings(invocation)
    targets = settings.alerts.targets
    if target is not None and target not in targets:
        raise ArgumentInvalidError(
            f"`alerts` has no target `{target}`",
            facts=(f"its targets: {', '.join(targets)}",),
            remedies=did_you_mean(target, [*targets], "test all of them:   headrace alerts test"),
            params={"argument": "target", "value": target},
        )
    done, failed = [], []
    message = Message.test(settings, datetime.now(UTC))
    for name in [*targets] if target is None else [target]:
        try:
            send(message, targets[name], settings)
            done.append(name)
        except UndeliveredError as error:
            failed.append(
                AlertUndeliveredError(
                    f"the target `{name}` of `alerts` has not taken the message: {error}",
                    location=settings.places.get("alerts"),
                    remedies=(f"correct it, and try again:   headrace alerts test {name}",),
                    params={"target": name},
                )
            )
    return Result(
        data={"sent": done, "failed": [one.to_dict() for one in failed]},
        text="\n".join(f"{name}  sent" for name in done),
        errors=failed,
        exit_code=1 if failed else 0,
    )


def _settings(invocation: Invocation) -> ProjectSettings:
    settings = invocation.stored()
    if not settings.alerts.targets:
        raise CommandLineError(
            "headrace.yml has no alerts",
            remedies=(f"declare them, such as:   {_WRITE}",),
            params={"command": "alerts"},
        )
    return settings
