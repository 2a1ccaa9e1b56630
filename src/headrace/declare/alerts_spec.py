"""The section ``alerts`` of the spec."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.declare.spec_types import Part, Text, matching
from headrace.errors import nearest
from headrace.model.alerts import (
    AlertRule,
    AlertSettings,
    AlertTarget,
    CommandTarget,
    Condition,
    EmailTarget,
    SlackTarget,
    WebhookTarget,
)
from headrace.model.maintenance import parse_bytes
from headrace.model.names import TableName
from headrace.model.texts import parse_duration

_URL = re.compile(r"https?://\S+")
_SERVER = re.compile(r"[^\s:]+(:\d{1,5})?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_PORT = {"starttls": 587, "tls": 465, "none": 25}

Address = Annotated[Text, matching(_URL, "must be a URL, such as https://host/path")]
Duration = Annotated[float, BeforeValidator(parse_duration)]


class EmailSpec(Part):
    to: Annotated[list[Text], Field(min_length=1)]
    """the addresses that get the mail"""

    sender: Text
    """the address that sends it"""

    server: Annotated[Text, matching(_SERVER, "must be HOST or HOST:PORT")]
    """the server, such as ``smtp.example.org:587``"""

    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """how the connection is encrypted: ``starttls``, ``tls`` or ``none``"""

    user: Text | None = None
    """the user of the server"""

    password: Text | None = None
    """the password of the user, such as ``${MAIL_PASSWORD}``"""

    @property
    def target(self) -> EmailTarget:
        host, _, port = self.server.partition(":")
        return EmailTarget(
            to=tuple(self.to),
            sender=self.sender,
            host=host,
            port=int(port) if port else _PORT[self.encryption],
            encryption=self.encryption,
            user=self.user,
            password=self.password,
        )


class AlertTargetSpec(Part):
    slack: Address | None = None
    """the URL of an incoming web hook of Slack, or of a system that takes the same messages"""

    webhook: Address | None = None
    """a URL that gets each message as JSON"""

    secret: Text | None = None
    """the key with which messages to ``webhook`` are signed"""

    email: EmailSpec | None = None
    """a mail to these addresses"""

    command: Annotated[list[Text], Field(min_length=1)] | None = None
    """a command that gets each message as JSON on its standard input, such as ``[./page.sh]``"""

    @model_validator(mode="after")
    def _one(self) -> AlertTargetSpec:
        given = [one for one in (self.slack, self.webhook, self.email, self.command) if one is not None]
        if len(given) != 1:
            raise ValueError("must have one of `slack`, `webhook`, `email`, `command`")
        if self.secret is not None and self.webhook is None:
            raise ValueError("has a `secret`, which only `webhook` uses")
        return self

    @property
    def target(self) -> AlertTarget:
        if self.slack is not None:
            return SlackTarget(self.slack)
        if self.webhook is not None:
            return WebhookTarget(self.webhook, self.secret)
        if self.email is not None:
            return self.email.target
        return CommandTarget(tuple(self.command or ()))


def _count(value: Any) -> float:
    if isinstance(value, str):
        value = value.replace(",", "").replace("_", "")
    number = float(value)
    if not 0 <= number < float("inf"):  # also false for `nan`
        raise ValueError
    return number


def _share(value: Any) -> float:
    """A share such as ``99%`` or ``0.99``."""
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    number = float(found[1]) / 100 if found else float(value)
    if not 0 < number <= 1:
        raise ValueError
    return number


def _space(value: Any) -> float:
    try:
        return _share(value)
    except ValueError:
        return float(parse_bytes(value))


_LIMITS: Final[Mapping[Condition, tuple[str, Callable[[Any], float], str]]] = {
    "lag": ("above", _count, "100000"),
    "freshness": ("above", parse_duration, "15 minutes"),
    "expectation": ("below", _share, "99%"),
    "disk": ("below", _space, "5%, or 20g"),
}
"""The key, the parser and an example of each limit. The other conditions have none."""


# As a number, `true` would be 1. As a text, it is refused.
Limit = Annotated[Text | float | None, BeforeValidator(lambda value: str(value) if value is True else value)]


class AlertRuleSpec(Part):
    on: Condition
    """the condition: ``flow_failed`` (a flow, a view or the update has failed), ``lag`` (``above`` a number
    of records), ``freshness`` (no change of a table for longer than ``above``), ``expectation`` (``below`` a
    share of passed rows), ``proof`` (``verify`` has found a fault), ``loss`` (a source has lost records that
    were not read), ``disk`` (``below`` a share or a size of free space)"""

    above: Limit = None
    """the limit of ``lag`` and ``freshness``: ``100000``, ``15 minutes``"""

    below: Limit = None
    """the limit of ``expectation`` and ``disk``: ``99%``, ``20g``"""

    lasting: Duration = 0.0
    """how long it must hold before somebody is told: ``5 minutes``; by default, they are told at once"""

    over: Duration = 3600.0
    """the time whose rows ``expectation`` looks at; by default ``1 hour``"""

    datasets: list[Text] = Field(default_factory=list)
    """the datasets that are watched; by default, all"""

    to: list[Text] = Field(default_factory=list)
    """the names of the targets that are told; by default, all"""

    @model_validator(mode="after")
    def _limited(self) -> AlertRuleSpec:
        given = {key: getattr(self, key) for key in ("above", "below") if getattr(self, key) is not None}
        if self.on not in _LIMITS:
            if given:
                raise ValueError(f"has `{next(iter(given))}`, and {self.on} has no limit")
            return self
        key, parse, example = _LIMITS[self.on]
        if [*given] != [key]:
            raise ValueError(f"needs `{key}`, and no other limit, such as {key}: {example.split(',')[0]}")
        try:
            parse(given[key])
        except ValueError:
            raise ValueError(f"has the limit `{given[key]}`; write such as {key}: {example}") from None
        return self

    @property
    def limit(self) -> dict[str, float]:
        if self.on not in _LIMITS:
            return {}
        key, parse, _ = _LIMITS[self.on]
        return {key: parse(getattr(self, key))}


class AlertsSpec(Part):
    targets: dict[str, AlertTargetSpec] = Field(default_factory=dict)
    """who is told, each by a name: ``ops: {slack: "${SLACK_URL}"}``"""

    rules: list[AlertRuleSpec] = Field(default_factory=list)
    """the conditions, such as ``{on: lag, above: 100000, datasets: [orders]}``"""

    @model_validator(mode="after")
    def _known(self) -> AlertsSpec:
        for name in (name for rule in self.rules for name in rule.to):
            if name not in self.targets:
                close = nearest(name, [*self.targets])
                meant = f"; did you mean `{close}`?" if close else ""
                raise ValueError(f"has a rule for the target `{name}`, which `targets` does not have{meant}")
        if self.rules and not self.targets:
            raise ValueError("has rules, but no `targets` that get their messages")
        return self

    def settings(self, table_name: Callable[[str], TableName]) -> AlertSettings:
        return AlertSettings(
            targets={name: one.target for name, one in self.targets.items()},
            rules=tuple(
                AlertRule(
                    on=one.on,
                    lasting_s=one.lasting,
                    over_s=one.over,
                    datasets=tuple(map(table_name, one.datasets)),
                    to=tuple(one.to),
                    **one.limit,
                )
                for one in self.rules
            ),
        )
