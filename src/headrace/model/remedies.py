"""What a user asks for, after a refusal, when starting a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.chosen_start import ChosenStart


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """The remedies that a run was started with, by flow.

    Args:
        reset: Flows that get a new checkpoint, which continues after everything that the earlier ones have
            read.
    """

    reset: frozenset[str] = frozenset()
    rename_flow: Mapping[str, str] = field(default_factory=dict)  # new names of flows, with the old ones
    start: ChosenStart | None = None  # where these checkpoints start instead; ``None`` continues

    @property
    def flows(self) -> frozenset[str]:
        return self.reset | frozenset(self.rename_flow)
