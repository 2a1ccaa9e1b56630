"""How an update is logged, in the words that a user chooses from."""

from __future__ import annotations

from typing import Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
