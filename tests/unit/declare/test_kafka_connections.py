"""`kafka.connection` of the spec: the login of a service by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.declare.spec import load_project
from headrace.errors import KafkaLoginError, SpecInvalidError, SpecUnknownKeyError
from headrace.model.kafka_settings import KafkaConnection

Write = Callable[..., Path]

STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=all;SharedAccessKey=pl4nted="
MSK = "b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com:9098"


def load(write: Write, kafka: str, *changes: str) -> KafkaConnection:
    spec = f"name: shop\nkafka:\n  bootstrap.servers: embedded\nprofiles:\n  prod:\n    kafka: {kafka}\n"
    overrides = dict(change.split("=", 1) for change in changes)
    return load_project(write({}, spec), profile="prod", overrides=overrides).kafka


def test_confluent_cloud_is_a_login_with_a_password_for_both_clients(write: Write) -> None:
    found = load(
        write,
        "{bootstrap.servers: 'p.confluent.cloud:9092', connection: {type: confluent_cloud, key: K, "
        "secret: pl4nted, registry_url: 'https://r', registry_key: RK, registry_secret: pl4nted2}}",
    )
    java = found.for_spark()
    assert java["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="K" password="pl4nted";'
    )
    assert (java["kafka.security.protocol"], java["kafka.sasl.mechanism"]) == ("SASL_SSL", "PLAIN")
    assert not any("registry" in key for key in java)
    assert found.settings["schema.registry.basic.auth.user.info"] == "RK:pl4nted2"
    native = found.for_librdkafka()
    assert (native["sasl.username"], native["sasl.password"]) == ("K", "pl4nted")


def test_event_hubs_takes_its_address_from_the_connection_string(write: Write) -> None:
    found = load(write, f"{{connection: {{type: event_hubs, connection_string: '{STRING}'}}}}")
    native = found.for_librdkafka()
    assert native["bootstrap.servers"] == "shop.servicebus.windows.net:9093"
    assert (native["sasl.username"], native["sasl.password"]) == ("$ConnectionString", STRING)
    own = load(
        write,
        "{bootstrap.servers: 'private:9093', "
        f"connection: {{type: event_hubs, connection_string: '{STRING}'}}}}",
    )
    assert own.bootstrap_servers == "private:9093"


def test_entra_is_a_client_of_openid_for_both_clients(write: Write) -> None:
    found = load(
        write,
        "{connection: {type: event_hubs, namespace: shop.servicebus.windows.net, tenant: t1, client_id: app, "
        "client_secret: pl4nted}}",
    )
    java, native = found.for_spark(), found.for_librdkafka()
    scope = "https://shop.servicebus.windows.net/.default"
    assert java["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="app" clientSecret="pl4nted" scope="{scope}";'
    )
    assert java["kafka.sasl.login.callback.handler.class"].endswith("OAuthBearerLoginCallbackHandler")
    assert java["kafka.sasl.oauthbearer.token.endpoint.url"] == (
        "https://login.microsoftonline.com/t1/oauth2/v2.0/token"
    )
    assert "kafka.sasl.oauthbearer.client.secret" not in java
    assert native["sasl.oauthbearer.method"] == "oidc"
    assert native["sasl.oauthbearer.client.secret"] == "pl4nted"
    # What is written for Java's client alone serves librdkafka, too.
    theirs = KafkaConnection({key.removeprefix("kafka."): value for key, value in java.items()})
    assert theirs.for_librdkafka() == {k: v for k, v in native.items() if k != "sasl.username"}


def test_iam_of_amazon_msk_is_javas_login_and_tokens_for_librdkafka(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = load(write, f"{{bootstrap.servers: '{MSK}', connection: {{type: msk}}}}")
    assert found.needs_iam
    java = found.for_spark()
    assert java["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert java["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    native = found.for_librdkafka()
    assert native["sasl.mechanism"] == "OAUTHBEARER"
    with pytest.raises(KafkaLoginError, match="no credentials were found"):
        native["oauth_cb"]("")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pl4nted")
    assert "kafka-cluster%3AConnect" in token(native) and "eu-west-1" in token(native)
    away = load(
        write,
        "{bootstrap.servers: 'kafka.shop.test:9098', connection: {type: msk, region: us-east-2, "
        "role_arn: 'arn:aws:iam::1:role/x'}}",
    )
    assert (
        'awsRoleArn="arn:aws:iam::1:role/x" awsStsRegion="us-east-2"'
        in (away.for_spark()["kafka.sasl.jaas.config"])
    )


def token(native: dict[str, Any]) -> str:
    import base64
    import time

    text, expires = native["oauth_cb"]("")
    assert 0 < expires - time.time() <= 900
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def test_scram_and_certificates_of_amazon_msk(write: Write) -> None:
    scram = load(
        write,
        f"{{bootstrap.servers: '{MSK}', "
        "connection: {type: msk, auth: scram, username: me, password: pl4nted}}",
    )
    assert scram.for_librdkafka()["sasl.mechanism"] == "SCRAM-SHA-512"
    with pytest.raises(SpecInvalidError, match=r"client\.pem does not exist") as caught:
        load(
            write,
            f"{{bootstrap.servers: '{MSK}', connection: {{type: msk, auth: tls, certificate: client.pem, "
            "private_key: key.pem}}",
        )
    assert "kafka.connection.certificate" in caught.value.summary
    assert caught.value.location is not None and caught.value.location.line == 6


WRONG = {
    "{bootstrap.servers: 'h:1', connection: {type: confluent}}": "`confluent_cloud`",
    "{bootstrap.servers: 'h:1', connection: {key: K}}": "needs `type`",
    "{bootstrap.servers: 'h:1', connection: {type: confluent_cloud, key: K}}": "secret",
    "{bootstrap.servers: 'h:1', connection: {type: confluent_cloud, key: K, secrt: S}}": "`secret`",
    "{connection: {type: confluent_cloud, key: K, secret: S}}": "needs `bootstrap.servers`",
    "{bootstrap.servers: 'h:1', connection: {type: confluent_cloud, key: K, secret: S, registry_url: u}}": (
        "`registry_secret`"
    ),
    "{bootstrap.servers: 'h:1', sasl.username: u, connection: {type: confluent_cloud, key: K, secret: S}}": (
        "beside `connection`"
    ),
    "{bootstrap.servers: 'h:1', connection: {type: msk}}": "without `region`",
    "{bootstrap.servers: 'h:1', connection: {type: msk, auth: scram, username: u}}": "needs `password`",
    "{bootstrap.servers: 'h:1', connection: {type: msk, auth: scram, username: u, password: p, region: r}}": (
        "`auth: iam`"
    ),
    "{bootstrap.servers: 'h:1', connection: {type: msk, auth: aim}}": "'iam'",
    "{connection: {type: event_hubs, connection_string: SharedAccessKey=x}}": "Endpoint=sb://",
    "{connection: {type: event_hubs, client_id: x}}": "`namespace` and `tenant` and `client_secret`",
    "{connection: event_hubs}": "must be a mapping",
    f"{{sasl.jaas.config: x, connection: {{type: event_hubs, connection_string: '{STRING}'}}}}": "beside",
    "{bootstrap.servers: 'h:1', connection: {type: msk, region: r, profile: p, role_arn: r}}": "`role_arn`",
    f"{{bootstrap.servers: '{MSK}', connection: {{type: msk, region: us-east-1}}}}": "brokers in eu-west-1",
    "{connection: {type: event_hubs, connection_string: 'Endpoint=sb://a.b/;'}}": "SharedAccessKey=..",
    f"{{connection: '{STRING}'}}": "must be a mapping",
    f"{{bootstrap.servers: '{STRING}'}}": "is not HOST:PORT",
}


@pytest.mark.parametrize("kafka", WRONG)
def test_a_connection_that_cannot_work_is_refused_with_its_line(write: Write, kafka: str) -> None:
    with pytest.raises((SpecInvalidError, SpecUnknownKeyError)) as caught:
        load(write, kafka)
    error = caught.value
    assert WRONG[kafka] in " ".join([error.summary, *error.facts, *error.remedies])
    assert error.location is not None and error.location.line == 6, error


def test_the_key_of_a_connection_string_is_a_secret_also_in_the_wrong_place(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBS", STRING)
    for kafka in (f"{{connection: '{STRING}'}}", "{bootstrap.servers: '${HUBS}'}", "{brokers: '${HUBS}'}"):
        spec = write({}, f"name: shop\nkafka: {kafka}\n")
        for form in ((), ("--json",), ("--debug",)):
            assert run(["plan", "--project", str(spec), *form]) == 2
        seen = capsys.readouterr()
        assert "pl4nted" not in seen.out + seen.err, kafka
        assert "***" in seen.out + seen.err, kafka


def test_the_connection_of_a_profile_replaces_that_of_the_spec(write: Write) -> None:
    spec = (
        "name: shop\nkafka:\n  bootstrap.servers: other:9092\n"
        "  connection: {type: confluent_cloud, key: K, secret: S}\nprofiles:\n  azure:\n    kafka:\n"
        f"      connection: {{type: event_hubs, connection_string: '{STRING}'}}\n"
        "  keys:\n    kafka: {connection: {secret: T}}\n"
    )
    azure = load_project(write({}, spec), profile="azure").kafka
    assert azure.bootstrap_servers == "shop.servicebus.windows.net:9093"
    assert azure.settings["sasl.username"] == "$ConnectionString"
    keys = load_project(write({}, spec), profile="keys").kafka
    assert (keys.bootstrap_servers, keys.settings["sasl.password"]) == ("other:9092", "T")


def test_a_value_of_a_connection_can_come_from_the_command_line(write: Write) -> None:
    found = load(
        write,
        "{bootstrap.servers: 'h:1', connection: {type: confluent_cloud, key: K, secret: S}}",
        "kafka.connection.secret=other",
    )
    assert found.settings["sasl.password"] == "other"
