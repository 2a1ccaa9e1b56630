"""A reader or sink whose brokers the spec maps takes the connection of the spec whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import OptionInvalidError, SourceLocation
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import BrokerMap, ProjectSettings
from headrace.sources.kafka.clusters import check_protocol, map_connection
from headrace.sources.kafka.read import client_options
from headrace.sources.kafka.reader import connection_options
from headrace.storage.layout import Storage

HERE = SourceLocation("orders.py", 7)
PROD = KafkaConnection(
    {
        "bootstrap.servers": "p:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hush",
    }
)
SETTINGS = ProjectSettings(
    name="shop",
    file=Path("headrace.yml"),
    profile="dev",
    storage=Storage.at(Path("lake")),
    libraries=(),
    kafka=KafkaConnection({"bootstrap.servers": "127.0.0.1:9092"}),
    brokers=BrokerMap({"*.own:9": "embedded", "*.net:9093": "prod"}, {"embedded": None, "prod": PROD}),
)
FILE = {
    "subscribe": "orders",
    "kafka.request.timeout.ms": "60000",
    "KAFKA.security.protocol": "SASL_SSL",
    "security.protocol": "SASL_SSL",
    "kafka.sasl.jaas.config": "kafkashaded.Module required password='x';",
    "sasl.login.callback.handler.class": "com.example.Handler",
    "kafka.ssl.truststore.location": "/dbfs/x.jks",
    "ssl.endpoint.identification.algorithm": "https",
}


@pytest.mark.parametrize("servers", ["embedded", "k.own:9"])
def test_the_profile_s_connection_replaces_that_of_the_file(servers: str) -> None:
    found = map_connection({**FILE, "kafka.bootstrap.servers": servers}, SETTINGS, HERE)
    assert found is not None
    assert found.options == {"subscribe": "orders", "kafka.request.timeout.ms": "60000"}


def test_a_named_connection_replaces_that_of_the_file() -> None:
    found = map_connection({**FILE, "kafka.bootstrap.servers": "hub.net:9093"}, SETTINGS, HERE)
    assert found is not None
    assert found.options == {"subscribe": "orders", "kafka.request.timeout.ms": "60000", **PROD.for_spark()}
    assert found.note == "`hub.net:9093` has the connection of prod (kafka.brokers: *.net:9093)"


def test_other_readers_keep_their_connection() -> None:
    assert map_connection(FILE, SETTINGS, HERE) is None
    assert map_connection({**FILE, "kafka.bootstrap.servers": "k.com:9093"}, SETTINGS, HERE) is None


def test_a_list_with_two_connections_is_refused() -> None:
    with pytest.raises(OptionInvalidError) as caught:
        map_connection({"kafka.bootstrap.servers": "a.own:9,b.net:9093"}, SETTINGS, HERE)
    assert caught.value.location == HERE
    assert "`*.own:9` to embedded" in caught.value.facts[0]


@pytest.mark.parametrize("servers", ["", "127.0.0.1:9092"])
def test_a_protocol_that_the_profile_s_broker_does_not_have_is_refused_at_once(servers: str) -> None:
    options = {"kafka.security.protocol": "SASL_SSL"} | (
        {"kafka.bootstrap.servers": servers} if servers else {}
    )
    with pytest.raises(OptionInvalidError) as caught:
        check_protocol(options, SETTINGS, HERE)
    assert caught.value.location == HERE
    assert caught.value.params == {"option": "kafka.security.protocol", "value": "SASL_SSL"}
    if servers:
        assert '{brokers: {"127.0.0.1:9092": embedded}}' in caught.value.remedies[0]


def test_other_protocols_are_left_to_the_brokers() -> None:
    check_protocol({"kafka.security.protocol": "plaintext"}, SETTINGS, HERE)
    check_protocol({"subscribe": "a"}, SETTINGS, HERE)
    check_protocol({**FILE, "kafka.bootstrap.servers": "k.com:9093"}, SETTINGS, HERE)
    check_protocol(FILE, replace(SETTINGS, kafka=PROD), HERE)


def test_a_longer_request_gets_a_longer_call() -> None:
    """Samples for Event Hubs set 60 seconds: Kafka's client would refuse the default of the whole call."""
    assert client_options({"Kafka.request.timeout.ms": "60000"})["kafka.default.api.timeout.ms"] == "60000"
    assert client_options({"kafka.request.timeout.ms": "100"})["kafka.default.api.timeout.ms"] == "20000"
    added = connection_options({"kafka.request.timeout.ms": "60000"}, SETTINGS.kafka)
    own = KafkaConnection({"bootstrap.servers": "a:1", "request.timeout.ms": "30000"})
    assert connection_options({}, own)["kafka.default.api.timeout.ms"] == "30000"
    assert added["kafka.default.api.timeout.ms"] == "60000" and "kafka.request.timeout.ms" not in added
