"""Any other stream that Spark can open: ``rate``, a Python data source, a connector of the user's.

Its positions are Spark's own JSON, and only Spark understands them. So there is no lag, no range is read
again, and a new checkpoint cannot start at a position of an old one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import SourceLocation, SourceUnsupportedError
from headrace.model.ranges import OpaquePosition
from headrace.model.secrets import is_secret_key
from headrace.sources.kind import SourceKind
from headrace.sources.requests import (
    KnownOptions,
    Past,
    Reader,
    ReaderDefaults,
    ReadRequest,
    StreamRead,
    Systems,
    Unrecoverable,
)
from headrace.sources.source import Source
from headrace.state.checkpoint import SourceIdentity
from headrace.state.facts import FlowFacts, History, NextPosition, SourceFacts
from headrace.state.starting_positions import require_whole, resume_impossible
from headrace.storage.location import Location

_OF_DATABRICKS = frozenset({"kinesis", "pubsub"})
"""Formats that only Databricks has."""
_LOSES_RECORDS = frozenset({"socket"})
"""Formats that cannot read a record again after a failure, as Spark's documentation says."""
_OF_RATE = KnownOptions(
    stream=("rowsPerSecond", "rampUpTime", "numPartitions"),
    batch=(),
    prefixes=("spark.",),
    marks=frozenset({"headrace.location"}),
)


@dataclass(frozen=True, kw_only=True)
class OtherSource(Source):
    """A streaming read of a format that Headrace does not know."""

    kind = "other"

    format: str

    def describe(self) -> str:
        return f"stream {self.format}"

    def label(self, root: Path) -> str:
        return f"stream {self.format}"

    def look(self, systems: Systems, past: Past) -> OtherFacts:
        # Two streams of one format differ in their options. Their values can be secrets.
        shown = sorted((k.lower(), v) for k, v in self.options.items() if not is_secret_key(k))
        digest = hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
        return OtherFacts(source=self.identity({"format": self.format, "options": digest}))


@dataclass(frozen=True, kw_only=True)
class OtherFacts(SourceFacts):
    keys = ("format",)

    @property
    def can_resume(self) -> bool:
        return False

    def next_position(self, flow: FlowFacts, history: History) -> NextPosition | None:
        name = f"the stream {self.source.identity['format']}"
        if self.last_reads(history):
            raise resume_impossible(flow, f"{name} cannot start from the offsets of another checkpoint")
        require_whole(flow, history, name)
        return None


class OtherReader(Reader):
    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        if request.format in _OF_DATABRICKS:
            raise SourceUnsupportedError(
                f"this version does not support the source `{request.format}`",
                location=location,
                remedies=[
                    "read it with hr.read_kinesis(..)"
                    if request.format == "kinesis"
                    else "send the records to a Kafka topic, and read the topic"
                ],
                params={"format": request.format},
            )
        if request.format == "rate" and request.streaming:
            _OF_RATE.refuse_unknown(request, location)
        return super().options(request, location, defaults)


class OtherKind(SourceKind):
    source = OtherSource
    keys = OtherFacts.keys
    reader = OtherReader()

    def opens(self, format: str) -> bool:
        return True

    def build(self, read: StreamRead) -> OtherSource:
        if read.format in _LOSES_RECORDS:
            raise SourceUnsupportedError(
                f"a stream reads from `{read.format}`, which loses records when a run fails",
                location=read.location,
                facts=["Spark's documentation: this source cannot read a record again"],
                remedies=["send the records to a Kafka topic, and read the topic"],
                params={"format": read.format},
            )
        return OtherSource(**read.common, format=read.format)

    def position(self, value: Any) -> OpaquePosition:
        return OpaquePosition(value)

    def removed(self, source: SourceIdentity, history: History, ledger: Location) -> Iterator[Unrecoverable]:
        name = self.describe(source)
        yield Unrecoverable(f"a full refresh reads what the {name} still has; this cannot be checked")

    def describe(self, source: SourceIdentity) -> str:
        return f"stream {source.identity.get('format')}"


KIND = OtherKind()
