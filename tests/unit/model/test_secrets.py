"""Secrets are struck out in every form that they take on the way."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest

from headrace.errors import HeadraceError
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.secrets import Redactor, is_secret_key

SECRET = 'a "b\\c/d+é%'
KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEG\nCCqGSM49AwEHBG0w\n-----END PRIVATE KEY-----\n"
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": SECRET}


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        KafkaConnection(LOGIN).for_spark()["kafka.sasl.jaas.config"],
        json.dumps(KafkaConnection(LOGIN).for_spark()),
    ],
)
def test_every_form_is_struck_out(form: str) -> None:
    shown = Redactor([SECRET])(form)
    assert "***" in shown
    assert "b" not in shown.replace("sasl.jaas", "").partition("password")[2]


@pytest.mark.parametrize("login", ['x required password="hunter22";', "x required password=hunter22;"])
def test_a_password_within_a_login_is_a_secret_too(login: str) -> None:
    assert Redactor([login])("it was hunter22") == "it was ***"


def test_a_key_is_struck_out_line_by_line() -> None:
    assert Redactor([KEY])("<MIGHAgEAMBMGByqGSM49AgEG>") == "<***>"
    assert Redactor([KEY])("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


def test_what_says_nothing_is_left_alone() -> None:
    redactor = Redactor(["abc", "", "true", "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIU\n"])
    assert redactor("abc true MIIBszCCAVmgAwIBAgIU") == "abc true MIIBszCCAVmgAwIBAgIU"


def test_the_longer_secret_goes_first() -> None:
    assert Redactor(["hunter", "hunter22"])("hunter22 hunter") == "*** ***"


def test_json_values_lose_their_secrets_and_keep_their_keys() -> None:
    redactor = Redactor(["error"])
    assert redactor.data({"error": ["an error", 5, None, ("error",)]}) == {
        "error": ["an ***", 5, None, ["***"]]
    }


def test_an_error_loses_its_secrets() -> None:
    error = HeadraceError("x hunter22", facts=["hunter22"], remedies=["hunter22"], params={"a": "hunter22"})
    error = Redactor(["hunter22"]).error(error)
    assert "hunter22" not in f"{error} {error!r} {error.to_dict()}"


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.key.pem",
        "kafka.sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net",
        "MY_API_KEY",
        "GITHUB_TOKEN",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_key(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username",
        "ssl.key.location",
        "sasl.oauthbearer.token.endpoint.url",
        "group.id",
        "ssl.keystore.type",
    ],
)
def test_names_of_others(name: str) -> None:
    assert not is_secret_key(name)


def test_javas_pattern_is_made_of_plain_letters() -> None:
    assert Redactor(["a.b-ü"]).java_pattern(1000).split("|")[-1] == r"a\u002eb\u002d\u00fc"
    assert len(Redactor([f"secret{n}" for n in range(1000)]).java_pattern(100)) <= 100
    assert Redactor().java_pattern(100) == ""


@pytest.mark.parametrize(
    "text", ["token=orders", "SELECT * FROM t WHERE token = 'orders'", "/a?secret=orders"]
)
def test_a_text_that_names_a_token_hides_no_common_word(text: str) -> None:
    redactor = Redactor()
    redactor.add_logins(text)
    assert redactor("the table orders") == "the table orders"
    redactor.add_logins("Endpoint=sb://n/;SharedAccessKeyName=orders;SharedAccessKey=pl4nted=;EntityPath=x")
    redactor.add_logins("host=db user=orders password='h1dden' dbname=shop")
    assert redactor("orders pl4nted= h1dden") == "orders *** ***"
