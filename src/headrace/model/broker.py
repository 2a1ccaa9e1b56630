"""Which embedded broker a pipeline uses, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Reason = Literal["pipeline", "spec", "variable", "earlier", "outside"]


@dataclass(frozen=True)
class BrokerChoice:
    """The folder of an embedded broker.

    `reason`: it is in the pipeline's folder, named by the spec or by the environment variable; it is the
    shared one because the pipeline has read its topics before, or because there is no pipeline.
    """

    folder: Path
    reason: Reason
    pipeline: str | None = None

    def describe(self) -> str:
        match self.reason:
            case "pipeline" | "spec":
                return f"the broker of pipeline {self.pipeline}"
            case "variable":
                return "the broker of HEADRACE_BROKER_DIR"
            case "earlier":
                return f"the shared broker (pipeline {self.pipeline} has read its topics before)"
            case "outside":
                return "the shared broker (no pipeline is in this folder)"
