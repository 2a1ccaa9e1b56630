"""Sources whose positions only Spark understands: each batch starts where the one before it ended."""

from __future__ import annotations

from typing import Any

from headrace.verify.reader import SourceReader
from headrace.verify.source_range import Position, SourceRange


class OpaqueRange(SourceRange):
    """A range of any stream of Spark's."""

    @classmethod
    def read_position(cls, value: Any) -> Position:
        return value

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, str(self.identity.get("format")))

    @property
    def name(self) -> str:
        return f"the stream {self.identity.get('format')}"


class OpaqueReader(SourceReader):
    """Its records cannot be compared: their positions are unknown."""

    range = OpaqueRange
    unjudged = "only Spark understands the positions of a stream that it reads"
