"""What a query asks of a reader, and what is added to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import OptionUnsupportedError, SourceLocation
from headrace.model.project import ProjectSettings
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sources.systems import Systems

ADAPTIVE = "headrace.limit"
"""An option that Spark ignores: it marks sources whose limit adapts to the duration of batches."""

LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger")
"""Options that limit a batch."""

_OWN = "headrace."
_STREAMS_ONLY = frozenset(
    {
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxbytespertrigger", "maxtriggerdelay"),
        *("maxfilespertrigger", "maxfileage", "latestfirst", "cleansource", "sourcearchivedir"),
    }
)


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What a query sets on a reader."""

    streaming: bool
    format: str  # spark's name of the format, in lower case
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    path: str | None = None
    schema: Any = None  # the explicit schema: DDL or a ``StructType``

    def with_options(self, options: Mapping[str, str]) -> ReadRequest:
        """The request with further options."""
        return replace(self, options={**self.options, **options})

    def has(self, *names: str) -> bool:
        """Whether one of these options is set, in any case, as in Spark."""
        keys = {key.lower() for key in self.options}
        return any(name.lower() in keys for name in names)

    def value(self, name: str) -> str | None:
        """An option's value; Spark ignores the case of its name."""
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)

    @property
    def batch_options(self) -> Mapping[str, str]:
        """The options without those of streams and those of Headrace."""
        return {
            key: value
            for key, value in self.options.items()
            if key.lower() not in _STREAMS_ONLY and not key.startswith(_OWN)
        }


@dataclass(frozen=True, kw_only=True)
class ReaderDefaults:
    """What readers get where the user sets nothing."""

    settings: ProjectSettings
    record_limit: int | None = None  # the most records of a first batch; ``None`` for the limit of the kind


@dataclass(frozen=True)
class Sampling:
    """How sources are read for a preview."""

    systems: Systems
    settings: ProjectSettings
    records: int  # how many of the newest records of each source are read, if it counts records


@dataclass(frozen=True, kw_only=True)
class SourceRead:
    """A read of a source that is not a dataset, before it happens: a topic, a folder, a table elsewhere."""

    request: ReadRequest  # what the reader is asked for, with the options that the protocol adds
    paths: tuple[str, ...]  # the folders or files; empty for a server
    location: SourceLocation
    session: SparkSession = field(repr=False)


def unsupported(
    problem: str, option: str, value: str, remedy: str, location: SourceLocation
) -> OptionUnsupportedError:
    """An option that would lose records silently."""
    return OptionUnsupportedError(
        problem, location=location, remedies=[remedy], params={"option": option, "value": value}
    )


def fails_on_loss(request: ReadRequest) -> bool:
    """Whether a reader is to fail when records are lost."""
    return (request.value("failOnDataLoss") or "true").lower() == "true"


def refuse_silent_loss(request: ReadRequest, location: SourceLocation) -> None:
    """Refuse an option with which Spark skips lost records silently.

    Raises:
        OptionUnsupportedError: It is set.
    """
    if fails_on_loss(request):
        return
    problem = "failOnDataLoss=false skips lost records silently"
    raise unsupported(problem, "failOnDataLoss", "false", "remove the option", location)
