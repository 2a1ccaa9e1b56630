"""Kinesis streams as a source of a flow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import HeadraceError
from headrace.model.lineage import DatasetId
from headrace.model.project import OnDataLoss, ProjectSettings
from headrace.model.ranges import SourceRange
from headrace.model.texts import counted, moment_text
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, T
from headrace.sources.kinesis.clients import KinesisClients
from headrace.sources.kinesis.connection import StreamConnection
from headrace.sources.kinesis.facts import KinesisFacts
from headrace.sources.kinesis.meter import KinesisMeter
from headrace.sources.kinesis.position import COORDINATES, KinesisPosition, ShardPosition
from headrace.sources.kinesis.read import format_name
from headrace.sources.kinesis.shards import StreamLook, look_at
from headrace.sources.kinesis.spans import RANGE, SCHEMA, STARTS
from headrace.sources.requests import Found, Past, SourceRead, Systems
from headrace.sources.source import Source
from headrace.state.facts import SourceFacts
from headrace.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class KinesisSource(Source):
    kind = "kinesis"
    rereads = True
    reads_records = True
    coordinates = COORDINATES
    kept_options = (STARTS,)

    stream: str
    region: str | None = None
    endpoint: str | None = None  # the URL of a server in place of AWS
    on_data_loss: OnDataLoss | None = None  # the policy of this source alone; ``None`` takes the pipeline's

    @property
    def reached(self) -> StreamConnection:
        """The connection, with its login."""
        return StreamConnection.from_options(self.options)

    # -- what a plan says

    def describe(self) -> str:
        return f"kinesis {self.stream}"

    def label(self, root: Path) -> str:
        return f"kinesis {self.stream}"

    def datasets(
        self, settings: ProjectSettings, identity: Mapping[str, Any] | None = None
    ) -> tuple[DatasetId, ...]:
        where = self.endpoint or self.region or settings.kinesis.region or "aws"
        return (DatasetId(f"kinesis://{urlsplit(where).hostname or where}", self.stream),)

    def title(self, root: Path) -> str:
        return f"Kinesis {self.stream}"

    def details(self) -> str:
        recorded = " (lost records are recorded)" if self.on_data_loss == "record" else ""
        starts = self.option(STARTS) or "earliest"
        return f"{recorded}, {f'from {moment_text(int(starts))}' if starts.isdigit() else starts}"

    def common_input(self, other: Source, facts: Mapping[int, SourceFacts]) -> str | None:
        if not isinstance(other, KinesisSource) or self.stream != other.stream:
            return None
        same = (self.region, self.endpoint) == (other.region, other.endpoint)
        return f"the stream `{self.stream}`" if same else None

    # -- what Kinesis says

    def look(self, systems: Systems, past: Past) -> KinesisFacts:
        found = self.ask(systems)
        identity = {"stream": self.stream, "id": found.id, "region": self.region, "endpoint": self.endpoint}
        if self.reached.arn is not None:
            identity["arn"] = self.reached.arn
        systems.client(KinesisClients).know(found.id, self.reached)
        return KinesisFacts(
            source=self.identity({name: value for name, value in identity.items() if value is not None}),
            look=found,
            starts_ms=self._starts_ms(found),
            on_data_loss=self.on_data_loss,
        )

    def _starts_ms(self, found: StreamLook) -> int | None:
        starts = self.option(STARTS) or "earliest"
        if starts == "latest":
            return found.now_ms
        return int(starts) if starts.isdigit() else None

    def ask(self, systems: Systems, *, lists: bool = True) -> StreamLook:
        with self._located():
            client = systems.client(KinesisClients).reach(self.reached)
            return look_at(client, self.reached, lists=lists)

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Give the errors of Kinesis the line of the reader."""
        try:
            yield
        except HeadraceError as error:
            raise error.with_location(self.location) from error

    def find(self, systems: Systems, *, is_new: bool) -> Found:
        found = self.ask(systems)
        return Found(counted(len(found.shards), "shard"))

    def meter(self, systems: Systems) -> KinesisMeter | None:
        return KinesisMeter() if self.adaptive else None

    # -- its records as a batch

    def read_range(self, read: SourceRead, one: SourceRange | None, checkpoint: Location) -> DataFrame:
        spans: Sequence[Any] = ()
        if one is not None:
            assert isinstance(one.until, KinesisPosition)
            spans = [
                {"shard": shard, "start": _with_skip(first), "end": last.to_json()}
                for shard, first, last in one.until.since(one.start)
            ]
        options = {**self.reached.to_options(), RANGE: json.dumps(spans)}
        return read.session.read.format(format_name(read.session)).options(**options).load()

    def read_records(self, read: SourceRead, records: DataFrame) -> DataFrame:
        fields = T.StructType.fromDDL(SCHEMA).fields
        return records.select(*(F.col(one.name).cast(one.dataType).alias(one.name) for one in fields))

    def owns(self) -> Column:
        return F.col("stream") == self.stream


def _with_skip(position: ShardPosition) -> dict[str, Any]:
    return {**position.to_json(), "skip": position.skip}


def part_of(position: ShardPosition, first: int) -> ShardPosition:
    """A position from which the records from a number on are given."""
    return replace(position, skip=first - position.number)


def end_at(position: ShardPosition, until: int) -> ShardPosition:
    """The end of a range that is cut before a number."""
    return position if until >= position.number else replace(position, number=until, sequence=None)
