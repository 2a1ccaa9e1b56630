"""Finds secrets in settings, and redacts them in all output and in all files that Headrace writes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote

from headrace.errors import HeadraceError, PlanFailedError

_Error = TypeVar("_Error", bound=HeadraceError)

REDACTED = "***"
SHORTEST = 4  # redacting shorter values would also hide unrelated text

SECRET_KEYS = (
    r"password|passwd|passphrase|secret|token|credential|jaas|access[._-]?key|api[._-]?key|account[._-]?key|connection[._-]?string"
    r"|private[._-]?key|ssl[.]key[.]pem|ssl[.]keystore[.]key|user[.]info"
)
"""Parts of the names of settings whose values are secret; Spark and Java write such patterns alike."""

_SECRET = re.compile(SECRET_KEYS, re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(location|file|path|url|uri|endpoint|type|class|provider|mechanism|enabled|username|regex|ms|seconds)$",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"true|false|null|none|\*+|changeit", re.IGNORECASE)
_LOGIN_VALUE = re.compile(
    r"""\b(?:\w*(?:password|secret|token)\w*|SharedAccessKey)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))""",
    re.IGNORECASE,
)
_IN_TEXT = re.compile(r"""\b(?:SharedAccessKey|AccountKey|password)\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"://[^/@:\s]*:([^/\s]+)@|\bpassword=([^&\s]+)")
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"
_LONG_LINE = 16  # lines of a private key that are at least this long are redacted on their own


def is_secret_key(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


class Redactor:
    """Redacts secrets, also where they are escaped, quoted or encoded. The spec and the readers add them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for value in values:
            self.add(value)

    def __repr__(self) -> str:
        return "<Redactor>"

    @property
    def forms(self) -> frozenset[str]:
        return frozenset(self._forms)

    def add(self, value: str) -> None:
        """Redact this value from now on. Values that are too short, common words and certificates, which are
        public, are not redacted."""
        if _CERTIFICATE in value and "PRIVATE KEY" not in value:
            return
        new = {form for form in _forms(value) if len(form) >= SHORTEST and not _PLAIN.fullmatch(form)}
        with self._lock:
            if new <= self._forms:
                return
            self._forms |= new
            self._pattern = None

    def add_logins(self, text: str) -> None:
        """Redact the keys and passwords of connection strings, wherever they are written. Conditions and
        addresses can have ``token=..`` or ``secret=..`` before a common word."""
        for found in _IN_TEXT.findall(text):
            self.add(found)

    def java_pattern(self, limit: int) -> str:
        """The secrets as a Java pattern in ASCII; at the limit, the longer ones are left out."""
        parts: list[str] = []
        for form in sorted(self._forms, key=len):
            parts.append("".join(map(_java_escape, form)))
            if sum(map(len, parts)) + len(parts) > limit:
                parts.pop()
                break
        return "|".join(reversed(parts))

    def add_settings(self, settings: Mapping[str, str]) -> None:
        """Redact the values of settings whose names show that they are secret, and passwords in addresses."""
        for key, value in settings.items():
            if is_secret_key(key):
                self.add(value)
            else:
                for found in map("".join, _IN_ADDRESS.findall(value)):
                    for part in (found, *found.split("@")):
                        self.add(unquote(part))

    def __call__(self, text: str) -> str:
        with self._lock:
            if self._pattern is None and self._forms:
                # The longest first: a secret may be part of another.
                ordered = sorted(self._forms, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, ordered)))
            pattern = self._pattern
        return text if pattern is None else pattern.sub(REDACTED, text)

    def data(self, value: Any) -> Any:
        """JSON values without secrets; keys are not changed."""
        match value:
            case str():
                return self(value)
            case Mapping():
                return {key: self.data(item) for key, item in value.items()}
            case list() | tuple():
                return [self.data(item) for item in value]
            case _:
                return value

    def error(self, error: _Error) -> _Error:
        copied = error.with_(
            summary=self(error.summary),
            facts=list(map(self, error.facts)),
            remedies=list(map(self, error.remedies)),
            params=self.data(error.params),
        )
        if isinstance(copied, PlanFailedError):
            return copied.with_errors(map(self.error, copied.errors))
        return copied


def _java_escape(letter: str) -> str:
    if letter.isascii() and letter.isalnum():
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _forms(value: str) -> set[str]:
    """The value as it is written in a Java login, in JSON, in Python and in a URL, and its parts."""
    written = {quoted or bare for quoted, bare in _LOGIN_VALUE.findall(value)}
    inner = {re.sub(r"\\(.)", r"\1", found) for found in written}
    lines = {line.strip() for line in value.splitlines()} if "\n" in value else set()
    pieces = {line for line in lines if len(line) >= _LONG_LINE and not line.startswith("-----")}
    whole = {value, value.strip(), *written, *inner, *pieces}
    found = set(whole)
    for one in whole:
        login = one.replace("\\", "\\\\").replace('"', '\\"')
        found |= {
            login,
            json.dumps(one)[1:-1],
            json.dumps(one, ensure_ascii=False)[1:-1],
            json.dumps(login)[1:-1],
            repr(one)[1:-1],
            quote(one, safe=""),
            quote(one),
            quote_plus(one),
        }
    return found
