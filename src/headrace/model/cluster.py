"""What a run on a cluster needs, from ``cluster`` in the spec."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import SourceLocation


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """How many executors a continuous run may have, and when it asks for more or gives some back."""

    least: int
    most: int
    backlog_s: float  # the time in which the flows should process what their sources hold
    idle_s: float  # how long there must have been too many executors before some are given back


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    packages: tuple[str, ...] = ()  # Python packages of this environment that executors get
    executors: ExecutorLimits | None = None
    location: SourceLocation | None = field(default=None, compare=False)
