"""The remedies that a user chooses for a run after a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

_OFFSET = re.compile(r"(?P<topic>[\w.-]+):(?P<partition>\d+)=(?P<offset>\d+)")


@dataclass(frozen=True, kw_only=True)
class ChosenStart:
    # All partitions start at their first record, or after their last one.
    edge: Literal["earliest", "latest"] | None = None
    # The first offset to read, by topic and partition; other partitions continue.
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    allow_duplicates: bool = False  # whether offsets that were committed may be read again
    accept_loss: bool = False  # whether offsets that were never read may be passed over

    @classmethod
    def parse(cls, text: str, *, allow_duplicates: bool = False, accept_loss: bool = False) -> ChosenStart:
        """Parse ``earliest``, ``latest`` or ``TOPIC:PARTITION=OFFSET,..``."""
        allowed = cls(allow_duplicates=allow_duplicates, accept_loss=accept_loss)
        match text.strip().lower():
            case "earliest":
                return replace(allowed, edge="earliest")
            case "latest":
                return replace(allowed, edge="latest")
        offsets: dict[str, dict[int, int]] = {}
        for part in text.split(","):
            found = _OFFSET.fullmatch(part.strip())
            if found is None:
                raise ValueError(f"`{part.strip()}` is not TOPIC:PARTITION=OFFSET, earliest or latest")
            partitions = offsets.setdefault(found["topic"], {})
            if int(found["partition"]) in partitions:
                raise ValueError(f"{found['topic']}:{found['partition']} has two offsets")
            partitions[int(found["partition"])] = int(found["offset"])
        return replace(allowed, offsets=offsets)

    def options(self) -> str:
        flags = {" --allow-duplicates": self.allow_duplicates, " --accept-loss": self.accept_loss}
        return f"--from {self.text()}{''.join(flag for flag, is_set in flags.items() if is_set)}"

    def text(self) -> str:
        parts = [
            f"{topic}:{partition}={offset}"
            for topic, partitions in self.offsets.items()
            for partition, offset in partitions.items()
        ]
        return self.edge or ",".join(parts)


@dataclass(frozen=True, kw_only=True)
class Remedies:
    # Flows that get a new checkpoint, which continues after everything that the earlier ones have read.
    reset: frozenset[str] = frozenset()
    rename_flow: Mapping[str, str] = field(default_factory=dict)  # new names of flows, with the old ones
    start: ChosenStart | None = None  # where these checkpoints start instead; ``None`` continues

    @property
    def flows(self) -> frozenset[str]:
        return self.reset | frozenset(self.rename_flow)
