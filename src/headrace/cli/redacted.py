"""Streams and log lines without secrets."""

from __future__ import annotations

import logging
from typing import IO, Any, cast

from headrace.model.secrets import Redactor


def redacted(stream: IO[str], redactor: Redactor) -> IO[str]:
    """The stream, with secrets replaced in texts that are written to it."""
    return cast(IO[str], _RedactedStream(stream, redactor))


class _RedactedStream:
    def __init__(self, stream: IO[str], redactor: Redactor) -> None:
        self._stream = stream
        self._redactor = redactor

    def write(self, text: str) -> int:
        self._stream.write(self._redactor(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        # Whether it is a terminal, its encoding, and whatever else a writer asks.
        return getattr(self._stream, name)


class RedactingFormatter(logging.Formatter):
    """Formats log lines, with their traces, without the secrets."""

    def __init__(self, form: str, redactor: Redactor) -> None:
        super().__init__(form)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor(super().format(record))
