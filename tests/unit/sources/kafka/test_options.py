"""A plain reader of Kafka gets what it lacks, and what it says is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import OptionInvalidError, SourceLocation
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.project import ProjectSettings
from headrace.sources.kafka.read import CLIENT
from headrace.sources.kafka.reader import KafkaReader, check_values, connection_options
from headrace.sources.requests import ReaderDefaults, ReadRequest
from headrace.storage.layout import Storage

HERE = SourceLocation("orders.py", 3)
SETTINGS = ProjectSettings(
    name="shop", file=Path("headrace.yml"), profile="dev", storage=Storage.at(Path("lake")), libraries=()
)
PROFILE = KafkaConnection(
    {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "secret",
    }
)


@pytest.mark.parametrize(
    "servers", [{}, {"kafka.bootstrap.servers": "embedded"}, {"KAFKA.BOOTSTRAP.SERVERS": "b:2, A:1"}]
)
def test_the_profile_s_connection_completes_a_reader(servers: dict[str, str]) -> None:
    given = connection_options({**servers, "kafka.Security.Protocol": "PLAINTEXT"}, PROFILE)
    assert given["kafka.bootstrap.servers"] == "a:1,b:2"
    assert 'username="me"' in given["kafka.sasl.jaas.config"]
    assert given["kafka.fetch.max.wait.ms"] == "5"
    assert "kafka.security.protocol" not in given


def test_a_reader_of_another_cluster_gets_nothing_of_the_profile_s_connection() -> None:
    assert connection_options({"kafka.bootstrap.servers": "c:3"}, PROFILE) == CLIENT


def test_a_reader_s_own_login_to_another_cluster_is_given_to_java() -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "other"}
    login |= {"bootstrap.servers": "c:3", "sasl.password": "word"}
    given = connection_options({f"kafka.{name}": value for name, value in login.items()}, PROFILE)
    assert 'username="other"' in given["kafka.sasl.jaas.config"]


def test_without_any_cluster_nothing_is_added() -> None:
    assert connection_options({}, KafkaConnection()) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"maxOffsetsPerTrigger": "0"},
        {"minPartitions": "many"},
        {"includeHeaders": "yes"},
        {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
        {"startingOffsets": "middle"},
        {"subscribePattern": "x"},
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_line(options: dict[str, str]) -> None:
    with pytest.raises(OptionInvalidError) as caught:
        check_values({"subscribe": "a", **options}, True, HERE)
    assert caught.value.location == HERE


def test_the_login_class_of_databricks_client_is_kafkas() -> None:
    login = "{}org.apache.kafka.common.security.plain.PlainLoginModule required;"
    options = {"kafka.sasl.jaas.config": login.format("kafkashaded."), "subscribe": "a"}
    request = ReadRequest(streaming=True, format="kafka", options=options)
    given = KafkaReader().options(request, HERE, ReaderDefaults(settings=SETTINGS, record_limit=1))
    assert given["kafka.sasl.jaas.config"] == login.format("")
    assert "subscribe" not in given
