"""What a user asks for, after a refusal, when starting a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """The remedies that a run was started with, by flow.

    Args:
        resume_from_table: Flows that open a new checkpoint at their table's own positions.
        new_checkpoint: Flows that start at the beginning of their sources and keep the rows.
        rename_flow: New names of flows, with the old ones.
    """

    resume_from_table: frozenset[str] = frozenset()
    new_checkpoint: frozenset[str] = frozenset()
    rename_flow: Mapping[str, str] = field(default_factory=dict)

    @property
    def flows(self) -> frozenset[str]:
        return self.resume_from_table | self.new_checkpoint | frozenset(self.rename_flow)
