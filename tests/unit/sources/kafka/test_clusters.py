"""Other Kafka clusters than the profile's are found by their brokers, each with its own login."""

from __future__ import annotations

import pytest

from headrace.errors import SourceLocation
from headrace.model.kafka_settings import KafkaConnection
from headrace.sources.kafka.clusters import (
    KafkaClusters,
    find_connection,
    normalized,
    other_cluster,
    same_servers,
)
from headrace.sources.kafka.facts import KafkaFacts
from headrace.sources.kafka.source import KafkaSource

PROFILE = KafkaConnection({"bootstrap.servers": "a:1,b:2", "sasl.password": "secret"})
OTHER = KafkaConnection({"bootstrap.servers": "c:3,d:4", "sasl.password": "another"})


@pytest.mark.parametrize("servers", ["", "embedded", "b:2, A:1"])
def test_a_reader_of_the_profile_s_cluster_has_no_other_connection(servers: str) -> None:
    options = {"kafka.bootstrap.servers": servers} if servers else {}
    assert other_cluster({**options, "kafka.sasl.password": "x"}, PROFILE) is None


def test_a_reader_of_another_cluster_has_its_own_options_alone() -> None:
    options = {"Kafka.Bootstrap.Servers": "c:3", "kafka.sasl.username": "me", "subscribe": "t"}
    found = other_cluster(options, PROFILE)
    assert found == KafkaConnection({"bootstrap.servers": "c:3", "sasl.username": "me"})


def test_a_cluster_is_found_by_one_of_its_brokers() -> None:
    known = [KafkaConnection({"bootstrap.servers": "e:5"}), OTHER]
    assert find_connection("D:4,f:6", known) is OTHER
    assert find_connection("f:6", known) is None
    assert not same_servers("a:1", "a:1,b:2") and same_servers("b:2, A:1", "a:1,b:2")
    assert normalized(" B:2,a:1,") == "a:1,b:2"


def test_each_cluster_has_one_client_and_its_own_login() -> None:
    clusters = KafkaClusters(lambda: PROFILE)
    assert clusters.reach(None).connection is PROFILE
    assert clusters.at(None) is clusters.reach(None)
    assert not clusters.knows("c:3")
    assert clusters.at("c:3").connection == KafkaConnection({"bootstrap.servers": "c:3"})
    assert clusters.reach(OTHER).connection is OTHER
    assert clusters.knows("c:3") and clusters.at("c:3") is clusters.reach(OTHER)


@pytest.mark.parametrize(("topic_id", "shared"), [("id-1", "the topic `sales`"), ("id-2", None)])
def test_a_topic_that_is_read_at_two_addresses_of_one_cluster_is_read_twice(
    topic_id: str, shared: str | None
) -> None:
    """Its id tells it from a topic of the same name in another cluster."""
    here = SourceLocation("shop.py", 1)
    profile, other = (
        KafkaSource(index=index, folder=index, location=here, topics=("sales",), servers=servers)
        for index, servers in enumerate([None, "localhost:9092"])
    )
    facts = {
        0: KafkaFacts(source=profile.identity({"topics": {"sales": "id-1"}})),
        1: KafkaFacts(source=other.identity({"topics": {"sales": topic_id}})),
    }
    assert profile.common_input(other, facts) == shared
    assert profile.common_input(other, {}) is None
