"""What sources answer: small records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.state.file_lists import ReadFile


@dataclass(frozen=True, kw_only=True)
class Seed:
    """What a new checkpoint holds of a source that starts at a position.

    Args:
        marks: What the opening commit says of the source's range.
        contents: Files of the checkpoint, by path within it.
        read: Files that earlier checkpoints have read.
    """

    marks: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    read: tuple[ReadFile, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a source holds now, for a plan.

    Args:
        text: In words, such as ``4 partitions``.
        names: The topics that its pattern matches; ``None`` for a source without a pattern.
    """

    text: str = ""
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Lag:
    """What a source holds beyond a position.

    Args:
        count: Records, rows or files.
        size_bytes: Their bytes, where they are known.
    """

    count: int
    size_bytes: int | None = None

    def __add__(self, other: Lag) -> Lag:
        sizes = [size for size in (self.size_bytes, other.size_bytes) if size is not None]
        return Lag(self.count + other.count, sum(sizes) if sizes else None)


@dataclass(frozen=True)
class Unrecoverable:
    """What a flow has read and its sources no longer hold.

    Args:
        text: What it is, as the rest of a sentence about a table.
        count: Records at most, or files; ``None`` where they are not counted.
    """

    text: str
    count: int | None = None
