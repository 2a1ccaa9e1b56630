"""Reads the batches that a Kafka sink has recorded in its state topic, in the form of a Delta table's log."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.kafka.offsets import KafkaAccess, load_offsets, load_topics
from headrace.verify.reader import SinkUnreadError
from headrace.verify.sink_log import build_log
from headrace.verify.source_range import Spans
from headrace.verify.stored import StoredPath

if TYPE_CHECKING:
    from confluent_kafka import Message

_ANSWER_S = 10.0
_NAMES = re.compile(r"[^A-Za-z0-9._-]")


def load_topic_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its state topic still has; raises `SinkUnreadError`. `path`: where the
    storage would have its table."""
    kafka = access.get("kafka", KafkaAccess(own=KafkaConnection()))
    connection, topic = _connection(options, kafka.own), options.get("topic")
    key = hashlib.sha256(f"{name}/{topic or ''}".encode()).hexdigest()[:12]
    shown = _NAMES.sub("_", topic or name.short)[:200]
    state_topic = options.get("state_topic") or f"{shown}.headrace-{key}"
    found: dict[str, Any] = {}

    def take(message: Message) -> None:
        text = message.value()
        if text is not None:
            found[(message.key() or b"").decode()] = json.loads(text)

    try:
        topics = load_topics(connection, {state_topic, *([topic] if topic else [])}, _ANSWER_S, kafka.explain)
        held = topics[state_topic]
        if held is not None and held.high.get(0, 0) > held.low.get(0, 0):
            span = Spans.of([(held.low[0], held.high[0])])
            load_offsets(connection, {(state_topic, 0): span}, _ANSWER_S, kafka.explain, take=take)
    except HeadraceError as error:
        raise SinkUnreadError(f"Kafka: {error.headline}") from error
    state = found.pop("state", None)
    if state is None:
        raise SinkUnreadError(f"the topic {state_topic} has no state of it")
    now = topics.get(topic) if topic else None
    own = f"/{now and now.id}" if topic else ""
    documents = {int(one.removeprefix("batch/")): document for one, document in found.items()}
    return build_log(name, state, f"{state['table_id']}{own}", documents, path)


def _connection(options: Mapping[str, str], own: KafkaConnection) -> KafkaConnection:
    """The connection of a sink: its own, if it names brokers that are not the profile's."""
    lowered = ((key.lower(), value) for key, value in options.items())
    given = {key.removeprefix("kafka."): value for key, value in lowered if key.startswith("kafka.")}
    servers = given.get("bootstrap.servers")
    if servers is None or servers == own.bootstrap_servers:
        return KafkaConnection({**own.settings, **given})
    return KafkaConnection(given)
