"""A plain reader of Kafka gets what it lacks, and what it says is looked at."""

from __future__ import annotations

import pytest

from headrace.errors import OptionInvalidError, SourceLocation
from headrace.model.connections import KafkaConnection
from headrace.sources.kafka.clusters import same_servers
from headrace.sources.kafka.options import check_values, connection_options

HERE = SourceLocation("orders.py", 3)
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


def test_another_cluster_is_left_as_it_is() -> None:
    assert connection_options({"kafka.bootstrap.servers": "c:3"}, PROFILE) == {}
    assert connection_options({}, KafkaConnection()) == {}
    assert not same_servers("a:1", "a:1,b:2")


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
