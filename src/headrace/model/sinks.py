"""Sinks: where flows send rows that the pipeline does not store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SinkWriter = Literal["delta", "kafka", "parquet", "json", "csv", "orc", "function"]


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where the rows of a sink go."""

    writer: SinkWriter  # spark's writer of a format, or a function of the user
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    function: Callable[[Any, int], object] | None = None

    @property
    def guarantee(self) -> Literal["exactly once", "at least once"]:
        """Delta skips a batch that it holds already; other systems get it again after a crash."""
        return "exactly once" if self.writer == "delta" else "at least once"

    @property
    def text(self) -> str:
        """What the sink does, for people."""
        match self.writer:
            case "delta":
                where = f"appends to the Delta table {self.options['path']}"
            case "kafka":
                where = f"sends to the Kafka topic {self.options.get('topic', 'of each row')}"
            case "parquet" | "json" | "csv" | "orc":
                where = f"adds {self.writer} files to {self.options['path']}"
            case "function":
                where = f"calls {getattr(self.function, '__name__', 'its function')} with each batch"
        return f"{where}: {self.guarantee}"
