"""Sends messages of alerts: to Slack, to a web hook, by mail, or to a command."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import ssl
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from functools import partial
from typing import Any, Literal

import requests

from headrace.model.alerts import AlertTarget, CommandTarget, EmailTarget, SlackTarget, WebhookTarget
from headrace.model.network import signature
from headrace.model.project import ProjectSettings

_TIMEOUT_S = 10.0
_COMMAND_S = 60.0
_OUTPUT_BYTES = 2_000  # of a command, for its last line
_AGAIN_S = 1.0  # the pause before the second try; the next check is the third one
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
    except (
        OSError, ValueError, requests.RequestException, smtplib.SMTPException, subprocess.SubprocessError
    ) as error:  # fmt: skip
        # The texts of these errors have the address, which can be a secret.
        raise UndeliveredError(settings.redactor(f"{type(error).__name__}: {_reason(error)}")) from error


def _slack_text(message: Message) -> str:
    """Slack's own marks in names and errors stay text: https://api.slack.com/reference/surfaces/formatting"""
    shown = message.headline.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown if message.state == "ended" else f"{shown}\n`{message.remedy}`"


def _post(url: str, body: str, headers: Mapping[str, str]) -> None:
    status = _post_once(url, body, headers)
    if status is None or status == 429 or status >= 500:
        time.sleep(_AGAIN_S)
        status = _post_once(url, body, headers)
    if status is None:
        raise UndeliveredError("no answer")
    if not 200 <= status < 300:
        raise UndeliveredError(f"the answer was {status}")


def _post_once(url: str, body: str, headers: Mapping[str, str]) -> int | None:
    """The status of the answer; ``None`` if the target cannot be reached. The answer itself is not read."""
    try:
        with requests.post(
            url,
            data=body.encode(),
            headers={"Content-Type": "application/json", **headers},
            timeout=_TIMEOUT_S,
            allow_redirects=False,
            stream=True,
        ) as answer:
            return answer.status_code
    except requests.ConnectionError:
        return None


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
    # Without a context, the certificate of the server is not checked.
    context = ssl.create_default_context()
    kind = partial(smtplib.SMTP_SSL, context=context) if target.encryption == "tls" else smtplib.SMTP
    with kind(target.host, target.port, timeout=_TIMEOUT_S) as server:
        if target.encryption == "starttls":
            server.starttls(context=context)
        if target.user is not None:
            server.login(target.user, target.password or "")
        server.send_message(mail)


def _run(message: Message, target: CommandTarget, settings: ProjectSettings) -> None:
    # A file instead of a pipe: a program that it leaves in the background would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            target.command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=settings.root,
            env={**os.environ, "HEADRACE_ALERT": message.headline},
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(message.to_json(), ensure_ascii=False).encode(), _COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise UndeliveredError(f"it has not ended within {_COMMAND_S:g} s, and was killed") from None
        output.seek(max(output.tell() - _OUTPUT_BYTES, 0))
        last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode != 0:
        raise UndeliveredError(
            settings.redactor(f"it has ended with {process.returncode}: {last}".rstrip(": "))
        )


def _reason(error: Exception) -> str:
    if isinstance(error, requests.RequestException):
        return "no answer" if isinstance(error, requests.Timeout) else "no request"
    return str(error)
