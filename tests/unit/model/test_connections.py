"""One set of Kafka settings serves Java's client and librdkafka."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from headrace.declare.spec_model import KAFKA_SETTINGS
from headrace.model.connections import KafkaConnection

SECURED = {
    "bootstrap.servers": "h:9093",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": 'a"b\\c',
    "fetch.min.bytes": "10",
}


def test_a_user_and_a_password_become_a_login_for_java() -> None:
    options = KafkaConnection(SECURED).for_spark()
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="a\\"b\\\\c";'
    )
    assert options["kafka.fetch.min.bytes"] == "10"
    assert "kafka.sasl.password" not in options


def test_a_login_for_java_becomes_a_user_and_a_password() -> None:
    settings = {
        key.removeprefix("kafka."): value for key, value in KafkaConnection(SECURED).for_spark().items()
    }
    found = KafkaConnection(settings).for_librdkafka()
    assert (found["sasl.username"], found["sasl.password"]) == ("me", 'a"b\\c')
    assert "sasl.jaas.config" not in found
    assert "fetch.min.bytes" not in found


def test_certificate_authorities_in_pem_serve_both() -> None:
    ours = KafkaConnection({"ssl.ca.location": "/ca.pem"}).for_spark()
    assert ours == {"kafka.ssl.truststore.location": "/ca.pem", "kafka.ssl.truststore.type": "PEM"}
    theirs = {key.removeprefix("kafka."): value for key, value in ours.items()}
    assert KafkaConnection(theirs).for_librdkafka() == {"ssl.ca.location": "/ca.pem"}


def test_a_login_that_is_given_is_left_alone() -> None:
    options = KafkaConnection({**SECURED, "sasl.jaas.config": "mine"}).for_spark()
    assert options["kafka.sasl.jaas.config"] == "mine"


@pytest.mark.parametrize("name", sorted(KAFKA_SETTINGS - {"bootstrap.servers"}))
def test_librdkafka_knows_every_setting_that_it_is_given(name: str) -> None:
    value = {
        "ssl.ca.location": None,
        "ssl.certificate.location": None,
        "ssl.key.location": None,
        "ssl.keystore.location": None,
        "client.dns.lookup": "use_all_dns_ips",
        "security.protocol": "plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.mechanisms": "PLAIN",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256",
    }.get(name, "1000")
    if value is None:
        pytest.skip("librdkafka opens the file")
    AdminClient(KafkaConnection({"bootstrap.servers": "127.0.0.1:9", name: value}).for_librdkafka())


def test_a_password_is_in_no_text_of_the_connection() -> None:
    assert 'a"b' not in repr(KafkaConnection(SECURED))
