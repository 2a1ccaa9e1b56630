"""Sends messages of alerts: to Slack, to a web hook, by mail, or to a command."""

from __future__ import annotations

import json
import os
import smtplib
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from typing import Any, Literal

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from headrace.model.alerts import AlertTarget, CommandTarget, EmailTarget, SlackTarget, WebhookTarget
from headrace.model.network import signature
from headrace.model.project import ProjectSettings

_TIMEOUT_S = 10.0
_COMMAND_S = 60.0
_RETRIES = Retry(
    total=2,
    backoff_factor=0.5,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)
_SIGNS = {"firing": "🔴", "ended": "🟢", "test": "🔵"}


class UndeliveredError(Exception):
    """A message that a target has not taken; its text says why, without secrets."""


@dataclass(frozen=True, kw_only=True)
class Message:
    state: Literal["firing", "ended", "test"]
    pipeline: str
    alert: str  # the condition, such as ``lag``
    subject: str
    text: str
    remedy: str
    since: datetime

    @classmethod
    def test(cls, settings: ProjectSettings, now: datetime) -> Message:
        return cls(
            state="test",
            pipeline=settings.name,
            alert="test",
            subject="the test",
            text="this is a test of `headrace alerts test`",
            remedy="headrace alerts",
            since=now,
        )

    @property
    def headline(self) -> str:
        return f"{self.pipeline}: {'over: ' if self.state == 'ended' else ''}{self.text}"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "since": self.since.isoformat(timespec="seconds")}


def send(message: Message, target: AlertTarget, settings: ProjectSettings) -> None:
    """Send a message to a target.

    Raises:
        UndeliveredError: The target has not taken it.
    """
    try:
        match target:
            case SlackTarget():
                sign, shown = _SIGNS[message.state], _slack_text(message)
                _post(target.url, json.dumps({"text": f"{sign} {shown}"}), {})
            case WebhookTarget():
                body = json.dumps(message.to_json(), ensure_ascii=False)
                headers = {} if target.secret is None else signature(target.secret, body.encode())
                _post(target.url, body, headers)
            case EmailTarget():
                _mail(message, target)
            case CommandTarget():
                _run(message, target, settings)
    except (OSError, requests.RequestException, smtplib.SMTPException, subprocess.SubprocessError) as error:
        # The texts of these errors have the address, which can be a secret.
        raise UndeliveredError(settings.redactor(f"{type(error).__name__}: {_reason(error)}")) from error


def _slack_text(message: Message) -> str:
    """Slack's own marks in names and errors stay text: https://api.slack.com/reference/surfaces/formatting"""
    shown = message.headline.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown if message.state == "ended" else f"{shown}\n`{message.remedy}`"


def _post(url: str, body: str, headers: Mapping[str, str]) -> None:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
        answer = session.post(
            url,
            data=body.encode(),
            headers={"Content-Type": "application/json", **headers},
            timeout=_TIMEOUT_S,
            allow_redirects=False,
        )
    if not 200 <= answer.status_code < 300:
        raise UndeliveredError(f"the answer was {answer.status_code}")


def _mail(message: Message, target: EmailTarget) -> None:
    mail = EmailMessage()
    # A header is one line.
    mail["Subject"] = " ".join(f"[headrace] {message.headline}".split())
    mail["From"], mail["To"] = target.sender, ", ".join(target.to)
    lines = [
        message.headline,
        "",
        f"since  {message.since:%Y-%m-%d %H:%M:%S} UTC",
        f"help   {message.remedy}",
    ]
    mail.set_content("\n".join(lines))
    kind = smtplib.SMTP_SSL if target.encryption == "tls" else smtplib.SMTP
    with kind(target.host, target.port, timeout=_TIMEOUT_S) as server:
        if target.encryption == "starttls":
            server.starttls(context=ssl.create_default_context())
        if target.user is not None:
            server.login(target.user, target.password or "")
        server.send_message(mail)


def _run(message: Message, target: CommandTarget, settings: ProjectSettings) -> None:
    done = subprocess.run(
        target.command,
        input=json.dumps(message.to_json(), ensure_ascii=False),
        text=True,
        encoding="utf-8",
        errors="replace",
        capture_output=True,
        timeout=_COMMAND_S,
        cwd=settings.root,
        env={**os.environ, "HEADRACE_ALERT": message.headline},
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise UndeliveredError(settings.redactor(f"it has ended with {done.returncode}: {last}".rstrip(": ")))


def _reason(error: Exception) -> str:
    if isinstance(error, requests.RequestException):
        return "no answer" if isinstance(error, requests.ConnectionError | requests.Timeout) else "no request"
    return str(error)
