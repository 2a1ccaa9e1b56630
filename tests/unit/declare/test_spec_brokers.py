"""`kafka.brokers` of the spec: the connections that addresses in files get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.errors import SpecInvalidError, SpecVariableUnsetError

Write = Callable[..., Path]

SPEC = """
name: shop
kafka:
  client.id: shop
  brokers:
    "*.servicebus.windows.net:9093": prod
    "b1:9092,b2:9092": embedded
profiles:
  prod:
    kafka:
      bootstrap.servers: ${BROKERS}
      security.protocol: SASL_SSL
      sasl.mechanism: PLAIN
      sasl.username: me
      sasl.password: ${BROKERS_PASSWORD}
"""


def test_an_address_has_the_connection_of_a_profile(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "p:9093")
    monkeypatch.setenv("BROKERS_PASSWORD", "hush")
    settings = load_project(write({}, SPEC))
    assert settings.kafka.settings == {"bootstrap.servers": "embedded", "client.id": "shop"}
    found = settings.brokers.find("shop.servicebus.windows.net:9093")
    assert found is not None and found.connection is not None
    assert found.connection.settings == {
        "client.id": "shop",
        "bootstrap.servers": "p:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hush",
    }
    own = settings.brokers.find("b2:9092")
    assert own is not None and own.connection is None
    assert "hush" not in settings.redactor("it is hush")
    # The chosen profile itself is the connection that the profile has.
    chosen = load_project(write({}, SPEC), profile="prod").brokers.find("x.servicebus.windows.net:9093")
    assert chosen is not None and chosen.connection is None


def test_an_entry_can_come_from_the_command_line(write: Write) -> None:
    root = write({}, "name: shop\n")
    settings = load_project(root, overrides={"kafka.brokers.*.example.com:9093": "embedded"})
    assert settings.brokers.find("k.example.com:9093") is not None
    assert settings.kafka.is_embedded


def test_the_variables_of_a_profile_that_is_named_are_needed(write: Write) -> None:
    with pytest.raises(SpecVariableUnsetError) as caught:
        load_project(write({}, SPEC))
    assert set(caught.value.params["variables"]) == {"BROKERS", "BROKERS_PASSWORD"}


@pytest.mark.parametrize(
    ("brokers", "key", "remedy"),
    [
        ('{"a:1": prd}', "kafka.brokers.a:1", "did you mean `prod`?"),
        ('{"a:1": x9}', "kafka.brokers.a:1", "x9: {kafka: {bootstrap.servers: HOST:PORT}}"),
        ('{"a:1": bare}', "kafka.brokers.a:1", "bare: {kafka: {bootstrap.servers: HOST:PORT}}"),
        ("{a: {b: prod}}", "kafka.brokers.a", "write the name with its dots on one line"),
        ("prod", "kafka.brokers", 'write kafka: {brokers: {"*.example.com:9093": prod}}'),
    ],
)
def test_an_entry_that_cannot_work_is_refused_with_its_line(
    write: Write, brokers: str, key: str, remedy: str
) -> None:
    profiles = "profiles:\n  prod: {kafka: {bootstrap.servers: p:1}}\n  bare: {}\n"
    spec = f"name: shop\nkafka:\n  brokers: {brokers}\n{profiles}"
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, spec))
    assert caught.value.params["key"] == key
    assert caught.value.location is not None and caught.value.location.line == 3
    assert remedy in caught.value.remedies[0]
