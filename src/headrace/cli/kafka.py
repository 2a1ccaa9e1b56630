"""The Kafka cluster of a command: that of the pipeline or of `--set`, else the embedded broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.output import Output
from headrace.cli.verb import Invocation
from headrace.errors import TopicNotFoundError, did_you_mean
from headrace.model.kafka_settings import KafkaConnection
from headrace.runtime.broker_record import find_in_shared

if TYPE_CHECKING:
    from headrace.runtime.broker import Broker
    from headrace.sources.kafka.cluster import KafkaCluster


@dataclass(frozen=True)
class ReachedKafka:
    connection: KafkaConnection
    is_embedded: bool  # whether it is the embedded broker, where commands create missing topics

    @property
    def servers(self) -> str:
        return self.connection.bootstrap_servers


def reach_kafka(invocation: Invocation) -> ReachedKafka:
    return reach(invocation.settings(anywhere=True).kafka, invocation.output)


def reach(connection: KafkaConnection, output: Output) -> ReachedKafka:
    """A Kafka cluster; the embedded broker is started if it is needed."""
    if not connection.is_embedded:
        return ReachedKafka(connection, is_embedded=False)
    from headrace.runtime.broker import Broker

    servers = start_broker(Broker(connection.broker), output)
    return ReachedKafka(connection.with_bootstrap_servers(servers), is_embedded=True)


def start_broker(broker: Broker, output: Output) -> str:
    """The address of an embedded broker. It is started if it is stopped, which a note says."""
    from headrace.runtime.fetch import ensure_jars

    ensure_jars("broker")
    was_running = broker.status().state != "stopped"
    with output.progress("Starting the broker"):
        servers = broker.start()
    if not was_running:
        output.note(f"Started the embedded broker on {servers}")
    return servers


def not_found(error: TopicNotFoundError, kafka: ReachedKafka, cluster: KafkaCluster) -> TopicNotFoundError:
    """The error with similar names, or the command that creates the topic on the embedded broker."""
    topic, known = str(error.params["topic"]), cluster.topics()
    create: tuple[str, ...] = ("create the topic with the tools of the cluster",)
    if kafka.is_embedded:
        create = (f"headrace broker topics create {topic}", f"headrace produce {topic} --sample")
    remedies = did_you_mean(topic, known) or create
    listed = ", ".join(known[:10]) + (", .." if len(known) > 10 else "")
    facts, others = find_in_shared([topic], kafka.connection.broker)
    return TopicNotFoundError(
        error.summary,
        facts=[f"topics of the broker: {listed}" if known else "the broker has no topics", *facts],
        remedies=[*others, *remedies],
        params={"topic": topic, "known": list(known)},
    )
