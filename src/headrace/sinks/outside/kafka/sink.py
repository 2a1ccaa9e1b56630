"""A Kafka topic as a sink that keeps the state of its flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.outside.kafka.channel import Channel, KafkaTransaction
from headrace.sinks.outside.kafka.destination import Destination
from headrace.sinks.outside.kafka.writer import KafkaWriter
from headrace.sinks.outside.stateful import SinkState, StatefulSink
from headrace.sinks.target import BatchStamp, SinkSpec


class KafkaSink(StatefulSink):
    """A topic, or several, with the state in a topic of their own."""

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        self.destination = Destination(spec)
        self.channel = Channel.of(self.destination)
        self.topic = self.channel.topic

    @property
    def location(self) -> str:
        return self.destination.location

    def check(self) -> None:
        self.destination.check()
        self.topic.check()
        for topic in filter(None, (self.destination.topic, self.topic.name)):
            self.topic.check_rights(topic)

    def create(self) -> None:
        # Another process may have written since a run before in this one.
        self.channel.close()
        self.topic.create()
        with self.channel.transaction(creates=True) as transaction:
            if self.channel.state is None:
                transaction.keep(transaction.state)

    @contextmanager
    def transaction(self) -> Iterator[KafkaTransaction]:
        with self.channel.transaction() as transaction:
            yield transaction

    def state(self) -> SinkState | None:
        if self.topic.topic_id(self.topic.name) is None:
            return None
        state, topic = self.channel.read(self.topic.load).state, self.destination.topic
        if state is None or topic is None:
            return state
        # A topic that was deleted and created again has lost its rows.
        return replace(state, table_id=f"{state.table_id}/{self.topic.known_id(topic)}")

    def known_state(self) -> SinkState:
        return self.channel.state or super().known_state()

    @property
    def span(self) -> range:
        first = self.channel.read(self.topic.first_version)
        state = self.channel.read(self.topic.load).state
        return range(0) if first is None or state is None else range(first, state.version + 1)

    def documents(self, first: int, last: int) -> list[Mapping[str, Any]]:
        found = self.channel.read(lambda: self.topic.load(first, last)).documents
        return [found[version] for version in sorted(found)]

    def writer(self, session: SparkSession, stamp: BatchStamp, held: int) -> KafkaWriter:
        return KafkaWriter(
            sink=self, channel=self.channel, destination=self.destination, stamp=stamp, held=held
        )
