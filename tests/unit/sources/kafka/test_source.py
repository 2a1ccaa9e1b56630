"""What a plan says of topics that were not checked, and the server that a run watches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from headrace.errors import BrokerUnreachableError, SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.kafka_settings import NO_ADDRESS, KafkaConnection
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.source import KafkaSource
from headrace.sources.requests import Past, Systems
from headrace.storage.layout import Storage

HERE = SourceLocation("shop.py", 3)
PROFILE = KafkaConnection(
    {"bootstrap.servers": "kafka.example:9092"}, {"bootstrap.servers": SourceLocation("headrace.yml", 3, 23)}
)
SETTINGS = ProjectSettings(
    name="shop",
    file=Path("headrace.yml"),
    profile="dev",
    storage=Storage.at(Path("lake")),
    libraries=(),
    kafka=PROFILE,
)
ORDERS = KafkaSource(index=0, folder=0, location=HERE, topics=("orders",))


@pytest.mark.parametrize(
    ("servers", "profile", "warning"),
    [
        (
            "kafka.example:9092",
            "kafka.example:9092",
            "cannot reach kafka.example:9092 (headrace.yml:3); topics were not checked",
        ),
        ("other:9092", "kafka.example:9092", "cannot reach other:9092; its topics were not checked"),
        (
            NO_ADDRESS,
            NO_ADDRESS,
            "the embedded broker is not running; topics were not checked. Start it:   headrace broker start",
        ),
    ],
)
def test_a_plan_warns_of_topics_that_were_not_checked(servers: str, profile: str, warning: str) -> None:
    settings = replace(SETTINGS, kafka=PROFILE.with_bootstrap_servers(profile))
    error = BrokerUnreachableError("no Kafka broker answers", params={"bootstrap_servers": servers})
    assert ORDERS.not_checked(error, settings) == warning


def test_a_run_watches_the_cluster_of_each_source(tmp_path: Path) -> None:
    own, other = ORDERS.server(SETTINGS, 1.0), replace(ORDERS, servers="other:9092").server(SETTINGS, 1.0)
    assert [(one.name, one.remedy) for one in (own, other)] == [
        ("kafka.example:9092", "headrace doctor"),
        ("other:9092", "headrace doctor"),
    ]
    embedded = replace(PROFILE, broker=tmp_path)
    assert ORDERS.server(replace(SETTINGS, kafka=embedded), 1.0).remedy == "headrace broker start"


class Unreachable:
    """The clusters of a run, none of which answers."""

    def client(self, kind: object) -> Unreachable:
        return self

    def reach(self, connection: object) -> KafkaCluster:
        raise BrokerUnreachableError("no Kafka broker answers", params={"servers": "kafka.example:9092"})


def test_a_broker_that_does_not_answer_is_named_with_the_line_of_the_source() -> None:
    flow = AppendFlow(
        name="orders", target=TableName("default", "orders"), query=PythonQuery(lambda: None, HERE)
    )
    with pytest.raises(BrokerUnreachableError) as caught:
        ORDERS.look(cast(Systems, Unreachable()), Past(flow=flow))
    assert caught.value.location == HERE


def test_only_topics_of_the_embedded_broker_are_created_with_its_command() -> None:
    embedded = KafkaConnection({"bootstrap.servers": "embedded"}).with_bootstrap_servers("127.0.0.1:53211")
    for connection, is_embedded in ((embedded, True), (PROFILE, False)):
        cluster = KafkaCluster(connection)
        cluster.topics = lambda: ("sales",)  # type: ignore[method-assign]
        (remedy,) = cluster._not_found(["orders"]).remedies
        assert ("headrace broker topics create orders" in remedy) == is_embedded
        (near,) = cluster._not_found(["sale"]).remedies
        assert near == "did you mean `sales`?"
