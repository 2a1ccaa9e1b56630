"""A Kafka that asks for logins and certificates, for every command alike, and says why it refuses."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pyspark.sql import SparkSession
from ruamel.yaml import YAML

from conftest import CONNECTION_STRING, PASSWORD
from headrace.cli.main import run
from headrace.project.pipeline import Pipeline
from proof.ledger import ProducerLedger, create_topic, settings
from secured_broker import OAUTH_SCOPE, SecuredBroker
from topic_reader import values

SECONDS = 5.0
"""How soon a user has to know; a request's own timeout is longer."""

ORDERS = """
import headrace as hr

@hr.table
def orders():
    return hr.read_kafka("{topic}"{more})
"""

SENT = """
hr.create_sink("sent", "kafka", {{"topic": "{topic}_sent"}})

@hr.append_flow(target="sent")
def send():
    return hr.read_kafka("{topic}").selectExpr("key", "value")
"""


@dataclass(frozen=True)
class Called:
    """What one command gave."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return self.data["error"]


@dataclass(frozen=True)
class Secured:
    """A pipeline of a secured broker's."""

    root: Path
    broker: SecuredBroker
    topic: str
    capsys: pytest.CaptureFixture[str]

    def write(self, kafka: dict[str, Any], more: str = "") -> None:
        self.root.mkdir(exist_ok=True)
        spec = {"name": "shop", "database": self.topic, "libraries": [{"file": "orders.py"}], "kafka": kafka}
        with (self.root / "headrace.yml").open("w") as file:
            YAML().dump(spec, file)
        (self.root / "orders.py").write_text(ORDERS.format(topic=self.topic, more=more))

    def __call__(self, *arguments: str, **settings: str) -> Called:
        """Run a command; keywords are Kafka's settings with ``_`` for each dot, and ``__`` for ``_``."""
        changed = [f"--set=kafka.{_dotted(key)}={value}" for key, value in settings.items()]
        self.capsys.readouterr()
        began = time.monotonic()
        code = run([*arguments, *changed, "--project", str(self.root)])
        seconds = time.monotonic() - began
        captured = self.capsys.readouterr()
        return Called(code, captured.out, captured.err, seconds)


def _dotted(key: str) -> str:
    return "_".join(part.replace("_", ".") for part in key.split("__"))


@pytest.fixture
def secured(secured_broker: SecuredBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Secured:
    """A pipeline with a topic of 100 records and a login that is right."""
    bootstrap = secured_broker.start()
    topic = f"orders_{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, topic, 2)
    ProducerLedger(bootstrap).produce(topic, 100, 2)
    made = Secured(tmp_path / "shop", secured_broker, topic, capsys)
    made.write(login(secured_broker))
    (made.root / ".env").write_text(f"KAFKA_PASSWORD='{PASSWORD.replace(chr(92), chr(92) * 2)}'\n")
    return made


def login(broker: SecuredBroker) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.address("SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "shop",
        "sasl.password": "${KAFKA_PASSWORD}",
        "ssl.ca.location": str(broker.authority),
    }


def test_every_command_works_with_a_user_and_a_password(spark: SparkSession, secured: Secured) -> None:
    planned = secured("plan", "--json")
    assert planned.code == 0, planned
    assert secured.topic in planned.out
    assert secured("run", "--json").code == 0
    assert secured("verify", "--require", "records").code == 0
    [dataset] = secured("status", "--json").data["datasets"]
    assert (dataset["rows"], dataset["flows"][0]["lag"]) == (100, 0)
    checks = {check["name"]: check["state"] for check in secured("doctor", "--json").data["checks"]}
    assert checks["kafka"] == "ok"
    assert published(secured) == 100
    (secured.root / "more.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    produced = secured("produce", secured.topic, "--file", str(secured.root / "more.jsonl"), "--json")
    assert (produced.code, produced.data["records"]) == (0, 2)
    consumed = secured("consume", secured.topic, "--json", "--limit", "500")
    assert (consumed.code, len(consumed.out.splitlines())) == (0, 102)
    assert len(secured("preview", "orders", "--json", "--limit", "200").data["rows"]) == 102


TWO_CLUSTERS = """
import headrace as hr

@hr.table
def orders():
    return hr.read_kafka("{topic}", options={options})

@hr.table
def own():
    return hr.read_kafka("{topic}")
"""


def test_a_reader_of_another_cluster_has_its_own_login_in_every_command(
    spark: SparkSession, secured: Secured, bootstrap: str
) -> None:
    """Two topics of one name: the profile's cluster is the plain broker, the other one needs a login."""
    create_topic(bootstrap, secured.topic, 1)
    ProducerLedger(bootstrap).produce(secured.topic, 30, 1)
    secured.write({"bootstrap.servers": bootstrap})
    options = {f"kafka.{name}": value for name, value in login(secured.broker).items()}
    options["kafka.sasl.password"] = PASSWORD
    (secured.root / "orders.py").write_text(TWO_CLUSTERS.format(topic=secured.topic, options=options))
    servers = secured.broker.address("SASL_SSL")
    planned = secured("plan")
    assert planned.code == 0, planned
    assert f"{secured.topic} at {servers}" in planned.out
    ran = secured("run", "--json")
    assert ran.code == 0, ran
    datasets = {one["dataset"]: one for one in secured("status", "--json").data["datasets"]}
    assert {name.split(".")[-1]: one["rows"] for name, one in datasets.items()} == {"orders": 100, "own": 30}
    assert (published(secured), published(secured, bootstrap, "own")) == (100, 30)
    verified = secured("verify")
    assert verified.code == 0
    assert f"verify has no login for the Kafka cluster {servers}" in verified.out
    assert "records were not judged" in verified.out.splitlines()[-1]
    for output in (planned, ran, verified):
        assert PASSWORD not in output.out + output.err
    with Pipeline.load(secured.root) as pipeline:
        pipeline.plan()
        proof = pipeline.verify(require="records")
    assert (proof.proven, proof.exit_code) == (True, 0), proof.to_json()
    assert len(secured("preview", "orders", "--json", "--limit", "200").data["rows"]) == 100
    secured.write({"bootstrap.servers": bootstrap})
    moved = secured("run", "--json")
    (error,) = filter(
        None, (one["error"] for one in json.loads(moved.out.splitlines()[-1])["result"]["flows"])
    )
    assert error["code"] == "SOURCES_CHANGED", moved
    assert any("reset orders" in remedy for remedy in error["remedies"])
    assert secured("reset", "orders", "--yes", "--json").code == 0
    assert secured("run").code == 0
    datasets = {one["dataset"]: one for one in secured("status", "--json").data["datasets"]}
    assert {name.split(".")[-1]: one["rows"] for name, one in datasets.items()} == {"orders": 130, "own": 30}
    assert secured("verify").code == 0


def published(secured: Secured, bootstrap: str = "", flow: str = "orders") -> int:
    """The offsets that a flow has published, asked through the plain listener."""
    admin = AdminClient(settings(bootstrap or secured.broker.start()))
    name = f"headrace-shop-{flow}"
    group = ConsumerGroupTopicPartitions(name)
    found = admin.list_consumer_group_offsets([group])[name].result(10)
    return sum(place.offset for place in found.topic_partitions if place.topic == secured.topic)


def test_every_client_takes_a_certificate(spark: SparkSession, secured: Secured) -> None:
    """The key is encrypted, which Java's client reads in no form that librdkafka knows."""
    broker = secured.broker
    key = load_pem_private_key(broker.key.read_bytes(), None)
    secret = BestAvailableEncryption(PASSWORD.encode())
    (secured.root / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    (secured.root / "ca.pem").write_bytes(broker.authority.read_bytes())
    secured.write(
        {
            "bootstrap.servers": secured.broker.address("SSL"),
            "security.protocol": "SSL",
            "ssl.ca.pem": "${file:ca.pem}",
            "ssl.certificate.location": str(broker.client),
            "ssl.key.location": "key.pem",
            "ssl.key.password": "${KAFKA_PASSWORD}",
        }
    )
    ran = secured("run", "--json")
    assert ran.code == 0, ran
    assert secured("verify", "--require", "records").code == 0


def other_authority(secured: Secured) -> str:
    path = secured.root / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    return str(path)


WRONG: dict[str, tuple[Callable[[Secured], dict[str, str]], str, str]] = {
    "password": (lambda s: {"sasl_password": "wrong one"}, "KAFKA_LOGIN_REFUSED", "sasl.password"),
    "user": (lambda s: {"sasl_username": "nobody"}, "KAFKA_LOGIN_REFUSED", "sasl.password"),
    "mechanism": (lambda s: {"sasl_mechanism": "OAUTHBEARER"}, "KAFKA_LOGIN_REFUSED", "sasl.mechanism"),
    "plain text to TLS": (
        lambda s: {"security_protocol": "SASL_PLAINTEXT"},
        "KAFKA_TLS_FAILED",
        "security.protocol",
    ),
    "TLS to plain text": (
        lambda s: {"bootstrap_servers": s.broker.start()},
        "KAFKA_TLS_FAILED",
        "security.protocol",
    ),
    "authority": (lambda s: {"ssl_ca_location": other_authority(s)}, "KAFKA_TLS_FAILED", "ssl.ca.location"),
    "host": (
        lambda s: {"bootstrap_servers": s.broker.address("SASL_SSL").replace("localhost", "127.0.0.1")},
        "KAFKA_TLS_FAILED",
        "bootstrap.servers",
    ),
    "no certificate": (
        lambda s: {
            "bootstrap_servers": s.broker.address("SSL"),
            "security_protocol": "SSL",
            "sasl_username": "",
        },
        "KAFKA_TLS_FAILED",
        "ssl.certificate.location",
    ),
    "no login": (
        lambda s: {"security_protocol": "SSL", "sasl_username": ""},
        "KAFKA_LOGIN_REFUSED",
        "security.protocol",
    ),
}


def test_what_is_wrong_is_named_in_seconds(spark: SparkSession, secured: Secured) -> None:
    assert secured("run", "--json").code == 0
    for name, (change, code, key) in WRONG.items():
        changed = change(secured)
        status = secured("status", "--json", **changed)
        assert status.seconds < SECONDS, name
        error = status.data["broker"]["error"]
        assert (status.code, error["code"], error["params"]["key"]) == (1, code, f"kafka.{key}"), (
            name,
            error,
        )
        assert error["remedies"], name
        assert error["location"], name
        assert not error["transient"], name
    for name in ("password", "authority"):
        change, code, _ = WRONG[name]
        for command in (("consume",), ("produce", "--sample")):
            called = secured(command[0], secured.topic, *command[1:], "--json", **change(secured))
            assert (called.code, called.error["code"]) == (1, code), (name, command)
            assert called.seconds < SECONDS, (name, command)
        verified = secured("verify", "--json", **change(secured))
        assert (verified.code, verified.error["code"]) == (1, code), name
        assert verified.seconds < SECONDS, name
        doctor = secured("doctor", "--json", **change(secured))
        [check] = [check for check in doctor.data["checks"] if check["name"] == "kafka"]
        assert doctor.code == 1
        assert code in check["text"], name


def test_a_wrong_password_ends_plan_and_run_without_a_second_attempt(
    spark: SparkSession, secured: Secured
) -> None:
    planned = secured("plan", "--json", sasl_password="wrong one")
    assert (planned.code, planned.error["code"]) == (1, "KAFKA_LOGIN_REFUSED")
    ran = secured("run", "--json", sasl_password="wrong one")
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 1
    assert [event["error"]["code"] for event in events if event.get("event") == "FlowFailed"] == [
        "KAFKA_LOGIN_REFUSED"
    ]
    assert not [event for event in events if event.get("event") == "FlowRetrying"]


def test_a_login_that_turns_wrong_under_way_ends_the_flow(spark: SparkSession, secured: Secured) -> None:
    """The cluster lets Headrace in, and Spark's own client not any more."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    wrong = f"""{module} required username="shop" password="pl4nted elsewhere";"""
    secured.write(login(secured.broker), more=f", options={{'kafka.sasl.jaas.config': {wrong!r}}}")
    ran = secured("run", "--json")
    events = [json.loads(line) for line in ran.out.splitlines()]
    [failed] = [event["error"] for event in events if event.get("event") == "FlowFailed"]
    assert (failed["code"], failed["transient"]) == ("KAFKA_LOGIN_REFUSED", False)
    assert not [event for event in events if event.get("event") == "FlowRetrying"]
    assert "pl4nted" not in ran.out + ran.err


def test_a_sink_sends_with_the_login_and_names_a_topic_that_may_not_be_written(
    spark: SparkSession, secured: Secured
) -> None:
    bootstrap, sent = secured.broker.start(), f"{secured.topic}_sent"
    create_topic(bootstrap, sent, 2)
    with (secured.root / "orders.py").open("a") as file:
        file.write(SENT.format(topic=secured.topic))
    assert secured("run", "--json").code == 0
    assert len(values(bootstrap, sent)) == 100
    assert secured("verify").code == 0
    admin = AdminClient(settings(bootstrap))
    allowed = {"User:guest": AclOperation.WRITE, "User:shop": AclOperation.DESCRIBE}
    rules = [
        AclBinding(
            *(ResourceType.TOPIC, sent, ResourcePatternType.LITERAL),
            *(user, "*", operation, AclPermissionType.ALLOW),
        )
        for user, operation in allowed.items()
    ]
    for future in admin.create_acls(rules).values():
        future.result(10)
    planned = secured("plan", "--json")
    assert planned.code == 1 and "SINK_INVALID" in planned.out and f"{sent} may not be written" in planned.out


def test_a_topic_that_may_not_be_read_is_named(spark: SparkSession, secured: Secured) -> None:
    admin = AdminClient(settings(secured.broker.start()))
    rule = AclBinding(
        ResourceType.TOPIC,
        secured.topic,
        ResourcePatternType.LITERAL,
        "User:guest",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([rule]).values():
        future.result(10)
    planned = secured("plan", "--json")
    assert (planned.code, planned.error["code"]) == (1, "KAFKA_FORBIDDEN")
    assert planned.error["params"]["name"] == secured.topic


def connections(broker: SecuredBroker, token_url: str) -> dict[str, dict[str, Any]]:
    """Each login by the name of a service, at the broker's listener of the same kind."""
    password = {"bootstrap.servers": broker.address("SASL_SSL")}
    return {
        "confluent_cloud": {
            **password,
            # The broker reads this password from a file, which has no letters beyond Latin-1.
            "connection": {"type": "confluent_cloud", "key": "guest", "secret": "another password"},
        },
        "msk with SCRAM": {
            **password,
            "connection": {
                "type": "msk",
                "auth": "scram",
                "username": "shop",
                "password": "${KAFKA_PASSWORD}",
            },
        },
        "msk with TLS": {
            "bootstrap.servers": broker.address("SSL"),
            "connection": {
                "type": "msk",
                "auth": "tls",
                "certificate": str(broker.client),
                "private_key": str(broker.key),
            },
        },
        "event_hubs with a connection string": {
            **password,
            "connection": {"type": "event_hubs", "connection_string": CONNECTION_STRING},
        },
        "event_hubs with Entra": {
            "bootstrap.servers": broker.address("OAUTH"),
            "connection": {
                "type": "event_hubs",
                "namespace": OAUTH_SCOPE.removeprefix("https://").partition("/")[0],
                "tenant": "test",
                "client_id": "app",
                "client_secret": "${KAFKA_PASSWORD}",
                "token_url": token_url,
            },
        },
    }


def test_every_command_works_with_the_login_of_a_service(spark: SparkSession, secured: Secured) -> None:
    with secured.broker.issuer.serving({"app": PASSWORD}) as (token_url, asked):
        for number, (name, kafka) in enumerate(connections(secured.broker, token_url).items(), 1):
            secured.write({**kafka, "ssl.ca.location": str(secured.broker.authority)})
            doctor = secured("doctor", "--json")
            checks = {check["name"]: check for check in doctor.data["checks"]}
            assert checks["kafka"]["state"] == "ok", (name, checks["kafka"])
            assert "kafka.security.protocol: S" in checks["kafka for spark"]["text"], name
            (secured.root / "more.jsonl").write_text('{"id": 1}\n')
            produced = secured("produce", secured.topic, "--file", str(secured.root / "more.jsonl"), "--json")
            assert (produced.code, produced.data["records"]) == (0, 1), (name, produced)
            ran = secured("run", "--json")
            assert ran.code == 0, (name, ran)
            verified = secured("verify", "--require", "records", "--json")
            assert verified.code == 0, (name, verified)
            [dataset] = secured("status", "--json").data["datasets"]
            assert (dataset["rows"], dataset["flows"][0]["lag"]) == (100 + number, 0), name
            for output in (doctor, ran, verified):
                assert PASSWORD not in output.out + output.err, name
                assert CONNECTION_STRING not in output.out + output.err, name
        agents = {str(one["agent"]).partition("/")[0] for one in asked}
        assert agents == {"Java", "None"}, "both clients have asked for tokens"
        wrong = secured("status", "--json", connection_client__secret="wrong")
        error = wrong.data["broker"]["error"]
        assert (error["code"], error["params"]["key"]) == (
            "KAFKA_LOGIN_REFUSED",
            "kafka.connection.client_secret",
        )


def test_a_cluster_that_does_not_know_the_user_of_iam_says_so(
    spark: SparkSession, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker takes tokens of its own issuer only, and librdkafka sends one that AWS's package signed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pl4nted elsewhere")
    secured.write(
        {
            "bootstrap.servers": secured.broker.address("OAUTH"),
            "connection": {"type": "msk", "region": "eu-west-1"},
            "ssl.ca.location": str(secured.broker.authority),
        }
    )
    for command in ("plan", "consume"):
        called = secured(command, *[secured.topic][: command == "consume"], "--json")
        assert called.code == 1, called
        assert called.seconds < 2 * SECONDS, command  # one second of it is the import of AWS's package
        error = called.error
        assert (error["code"], error["params"]["key"]) == ("KAFKA_LOGIN_REFUSED", "kafka.connection.auth")
        assert "kafka-cluster:Connect" in error["remedies"][0]
