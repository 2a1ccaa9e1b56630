"""One set of Kafka settings serves Java's client and librdkafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from headrace.declare.spec_model import KAFKA_SETTINGS
from headrace.errors import SourceLocation, SpecInvalidError
from headrace.model.kafka_settings import KafkaConnection

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


@pytest.fixture(scope="module")
def keys() -> tuple[str, str, str]:
    """A key in PEM: as it is, encrypted with ``hunter22``, and as old OpenSSL wrote it."""
    key = ec.generate_private_key(ec.SECP256R1())
    secret = BestAvailableEncryption(b"hunter22")
    forms = (
        (PrivateFormat.PKCS8, NoEncryption()),
        (PrivateFormat.PKCS8, secret),
        (PrivateFormat.TraditionalOpenSSL, NoEncryption()),
    )
    plain, encrypted, old = (key.private_bytes(Encoding.PEM, *form).decode() for form in forms)
    return plain, encrypted, old


def test_a_certificate_in_files_serves_both(keys: tuple[str, str, str], tmp_path: Path) -> None:
    plain, *others = keys
    (tmp_path / "certificate.pem").write_text("CERTIFICATE")
    for key in (plain, *others):
        (tmp_path / "key.pem").write_text(key)
        settings = {
            "ssl.certificate.location": str(tmp_path / "certificate.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
            "ssl.key.password": "hunter22",
        }
        assert KafkaConnection(settings).for_librdkafka() == settings
        assert KafkaConnection(settings).for_spark() == {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": "CERTIFICATE",
            "kafka.ssl.keystore.key": plain,
        }


def test_a_certificate_as_text_serves_both(keys: tuple[str, str, str]) -> None:
    ours = {"ssl.ca.pem": "CA", "ssl.certificate.pem": "CERTIFICATE", "ssl.key.pem": keys[0]}
    assert KafkaConnection(ours).for_librdkafka() == ours
    javas = KafkaConnection(ours).for_spark()
    assert javas == {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "CA",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "CERTIFICATE",
        "kafka.ssl.keystore.key": keys[0],
    }
    theirs = KafkaConnection({key.removeprefix("kafka."): value for key, value in javas.items()})
    assert theirs.for_librdkafka() == ours
    assert theirs.for_spark() == javas


def test_javas_stores_go_as_far_as_they_can_be_read() -> None:
    pem = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/client.pem"}
    assert KafkaConnection(pem).for_librdkafka() == {
        "ssl.certificate.location": "/client.pem",
        "ssl.key.location": "/client.pem",
    }
    p12 = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/client.p12",
        "ssl.keystore.password": "hunter22",
    }
    found = KafkaConnection(p12).for_librdkafka()
    assert found == {"ssl.keystore.location": "/client.p12", "ssl.keystore.password": "hunter22"}
    both = {"ssl.truststore.location": "/trust.jks", "ssl.ca.location": "/ca.pem"}
    assert KafkaConnection(both).for_librdkafka() == {"ssl.ca.location": "/ca.pem"}
    assert KafkaConnection(both).for_spark() == {"kafka.ssl.truststore.location": "/trust.jks"}


@pytest.mark.parametrize("key", ["ssl.truststore.location", "ssl.keystore.location"])
def test_a_store_that_only_java_reads_has_a_remedy(key: str) -> None:
    place = SourceLocation("headrace.yml", 5)
    with pytest.raises(SpecInvalidError) as caught:
        KafkaConnection({key: "/store.jks"}, {key: place}).for_librdkafka()
    assert (caught.value.params["key"], caught.value.location) == (f"kafka.{key}", place)
    assert "keytool" in "".join(caught.value.remedies)


@pytest.mark.parametrize(("number", "password"), [(1, None), (1, "wrong"), (3, None)])
def test_a_key_that_cannot_be_used_is_named(
    keys: tuple[str, str, str], number: int, password: str | None
) -> None:
    text = [*keys, "no key"][number]
    settings = {"ssl.certificate.pem": "C", "ssl.key.pem": text}
    settings |= {"ssl.key.password": password} if password else {}
    with pytest.raises(SpecInvalidError) as caught:
        KafkaConnection(settings).for_spark()
    assert caught.value.params["key"] == ("kafka.ssl.key.password" if password else "kafka.ssl.key.pem")
    assert str(caught.value.__cause__).startswith("ssl.key."), "a traceback has it in words"


def test_what_the_clients_write_differently() -> None:
    name = "ssl.endpoint.identification.algorithm"
    for written in ("none", ""):
        assert KafkaConnection({name: written}).for_spark() == {f"kafka.{name}": ""}
        assert KafkaConnection({name: written}).for_librdkafka() == {name: "none"}


@pytest.mark.parametrize(
    "name", ["ssl.made.up", "sasl.login.class", "socket.made.up", "client.dns.made.up", "ssl.cipher.suites"]
)
def test_a_setting_of_one_client_does_not_make_the_other_fail(name: str) -> None:
    assert KafkaConnection({name: "x"}).for_librdkafka() == {}
    assert KafkaConnection({name: "x"}).for_spark() == {f"kafka.{name}": "x"}


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
        "ssl.truststore.location": None,
        "ssl.crl.location": None,
        "ssl.ca.pem": None,
        "ssl.certificate.pem": None,
        "ssl.key.pem": None,
        "ssl.truststore.certificates": None,
        "ssl.keystore.certificate.chain": None,
        "enable.ssl.certificate.verification": "true",
        "client.dns.lookup": "use_all_dns_ips",
        "security.protocol": "plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.mechanisms": "PLAIN",
        "sasl.oauthbearer.method": "oidc",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256",
    }.get(name, "1000")
    if value is None:
        pytest.skip("librdkafka looks into it")
    AdminClient(KafkaConnection({"bootstrap.servers": "127.0.0.1:9", name: value}).for_librdkafka())


def test_a_password_is_in_no_text_of_the_connection() -> None:
    assert 'a"b' not in repr(KafkaConnection(SECURED))
