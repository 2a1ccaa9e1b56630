"""Alerts as the spec declares them: rules, and the targets of their messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.model.names import TableName

Condition = Literal["flow_failed", "lag", "freshness", "expectation", "proof", "loss", "disk"]


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    on: Condition
    above: float | None = None  # records for ``lag``, seconds for ``freshness``
    below: float | None = None  # a share for ``expectation``; a share, or bytes above 1, for ``disk``
    lasting_s: float = 0.0  # how long it must hold before somebody is told
    over_s: float = 3600.0  # the time whose rows an ``expectation`` is judged by
    datasets: tuple[TableName, ...] = ()  # all, if there are none
    to: tuple[str, ...] = ()  # all targets, if there are none


@dataclass(frozen=True)
class SlackTarget:
    url: str = field(repr=False)


@dataclass(frozen=True)
class WebhookTarget:
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class EmailTarget:
    to: tuple[str, ...]
    sender: str
    host: str
    port: int
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class CommandTarget:
    command: tuple[str, ...]


AlertTarget = SlackTarget | WebhookTarget | EmailTarget | CommandTarget


@dataclass(frozen=True, kw_only=True)
class AlertSettings:
    targets: Mapping[str, AlertTarget] = field(default_factory=dict)
    rules: tuple[AlertRule, ...] = ()
