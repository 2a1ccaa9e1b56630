"""Addresses in a pipeline's files get the connections of `kafka.brokers`."""

from __future__ import annotations

import pytest

from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import AmbiguousBrokersError, BrokerMap

PROD = KafkaConnection({"bootstrap.servers": "p:1"})
BROKERS = BrokerMap(
    {
        "*.servicebus.windows.net:9093": "prod",
        "special.servicebus.windows.net:9093": "embedded",
        "a:9092,b:9092": "prod",
        "*.internal": "embedded",
    },
    {"prod": PROD, "embedded": None},
)


@pytest.mark.parametrize(
    ("servers", "name", "rule"),
    [
        ("shop.servicebus.windows.net:9093", "prod", "*.servicebus.windows.net:9093"),
        ("Special.ServiceBus.windows.net:9093", "embedded", "special.servicebus.windows.net:9093"),
        ("b:9092", "prod", "a:9092,b:9092"),
        ("a:9092, b:9092", "prod", "a:9092,b:9092"),
        ("unknown:1,a:9092", "prod", "a:9092,b:9092"),
        ("kafka.internal:7", "embedded", "*.internal"),
    ],
)
def test_an_address_has_the_connection_of_the_longest_pattern(servers: str, name: str, rule: str) -> None:
    found = BROKERS.find(servers)
    assert found is not None
    assert (found.name, found.rule, found.connection) == (name, rule, PROD if name == "prod" else None)


@pytest.mark.parametrize("servers", ["", "shop.servicebus.windows.net:9092", "c:9092", "a:90921"])
def test_other_addresses_have_no_entry(servers: str) -> None:
    assert BROKERS.find(servers) is None
    assert BrokerMap().find(servers) is None


def test_two_addresses_of_one_list_have_one_connection() -> None:
    with pytest.raises(AmbiguousBrokersError, match=r"`a:9092,b:9092` to prod, and `\*\.internal`"):
        BROKERS.find("a:9092,x.internal:1")
