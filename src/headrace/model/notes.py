"""Notes: warnings and hints that do not stop a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.errors import SourceLocation


@dataclass(frozen=True, kw_only=True)
class Note:
    """A warning or a hint about the pipeline; it does not stop a run."""

    level: Literal["warning", "note"]
    text: str
    location: SourceLocation
    remedy: str | None = None
