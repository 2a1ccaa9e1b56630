"""Where a spec's values come from: the environment, ``.env``, files; and which of them are secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from headrace.errors import (
    DotenvInvalidError,
    HeadraceError,
    SpecFileUnreadableError,
    SpecInvalidError,
    SpecVariableUnsetError,
)
from headrace.model.secrets import Redactor

Write = Callable[..., Path]

SECURED = """
name: shop
kafka:
  bootstrap.servers: ${BROKERS}
  security.protocol: SASL_SSL
  sasl.mechanism: PLAIN
  sasl.username: ${USER_NAME}
  sasl.password: ${file:secrets/password}
configuration: {note: "by ${USER_NAME}"}
"""


def test_a_value_comes_from_a_file_beside_the_spec(write: Write) -> None:
    root = write({"secret": "top\nsecret\r\n\n"}, "name: a\nconfiguration: {x: 'a ${file:secret} b'}\n")
    settings = load_project(root)
    assert settings.configuration == {"x": "a top\nsecret b"}
    assert settings.redactor("a top\nsecret b") == "a *** b"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "does not exist"),
        ("folder", "is a folder"),
        ("", "is missing"),
        ("binary", "not UTF-8"),
        ("large", "larger than"),
    ],
)
def test_a_file_that_is_no_value_has_a_place(write: Write, path: str, said: str) -> None:
    spec = f"name: a\nconfiguration:\n  x: ${{file:{path}}}\n"
    root = write({"folder/x": "", "large": "x" * (1 << 21)}, spec)
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecFileUnreadableError) as caught:
        load_project(root)
    assert said in caught.value.summary
    assert caught.value.location is not None
    assert (caught.value.location.line, caught.value.location.column) == (3, 6)


@pytest.mark.parametrize("text", ["${OOPS", "a ${file:x", "$${A} ${B"])
def test_a_reference_that_is_not_closed_is_no_text(write: Write, text: str) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}, f"name: a\nconfiguration:\n  x: '{text}'\n"))
    assert "closing brace" in caught.value.summary
    assert caught.value.location is not None and caught.value.location.line == 3


def test_the_dotenv_file_gives_what_the_environment_lacks(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "of the process")
    dotenv = "# comment\nexport MINE=of the file\nTHEIRS='a $b ${c} # d'\nEMPTY=\n"
    root = write(
        {".env": dotenv}, "name: a\nconfiguration: {x: '${MINE}', y: '${THEIRS}', z: '<${EMPTY}>'}\n"
    )
    before = dict(os.environ)
    assert load_project(root).configuration == {"x": "of the process", "y": "a $b ${c} # d", "z": "<>"}
    assert dict(os.environ) == before


def test_the_dotenv_file_may_name_the_profile(write: Write) -> None:
    root = write({".env": "HEADRACE_PROFILE=ci\n"}, "name: a\nprofiles: {ci: {database: x}, prod: {}}\n")
    assert load_project(root).database == "x"
    assert load_project(root, profile="prod").profile == "prod"


@pytest.mark.parametrize(
    ("text", "line"), [("A=1\n\n\n= 2\n", 4), ("A=1\nB\n", 2), ("A='1\n", 1), ("\nA=1\nB='x' y\n", 3)]
)
def test_a_wrong_line_of_the_dotenv_file_is_named(write: Write, text: str, line: int) -> None:
    with pytest.raises(DotenvInvalidError) as caught:
        load_project(write({".env": text}))
    assert caught.value.location is not None
    assert (Path(caught.value.location.path).name, caught.value.location.line) == (".env", line)


def test_a_virtual_environment_of_that_name_is_none_of_ours(write: Write) -> None:
    assert load_project(write({".env/pyvenv.cfg": ""})).name == "shop"


def test_every_variable_that_is_missing_is_named_with_all_its_places(write: Write) -> None:
    root = write({"secrets/password": "hunter22\n"}, SECURED)
    with pytest.raises(SpecVariableUnsetError) as caught:
        load_project(root)
    assert caught.value.params["variables"] == {
        "BROKERS": ["kafka.bootstrap.servers"],
        "USER_NAME": ["kafka.sasl.username", "configuration.note"],
    }
    assert any("headrace.yml:9" in fact for fact in caught.value.facts)


def test_secrets_are_known_by_key_by_variable_and_by_origin(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A_PASSWORD", "B", "C"):
        monkeypatch.setenv(name, f"value-of-{name}")
    spec = """
name: a
configuration:
  url: jdbc://x?p=${A_PASSWORD}
  api.token: "${B}"
  plain: "${C}"
  key.location: /not/secret
  spark.hadoop.fs.s3a.secret.key: written-down
  token.enabled: true
profiles: {prod: {kafka: {sasl.password: of-another-profile}}}
"""
    redactor = load_project(write({}, spec)).redactor
    for secret in ("value-of-A_PASSWORD", "value-of-B", "written-down", "of-another-profile"):
        assert redactor(f"<{secret}>") == "<***>"
    for other in ("value-of-C", "/not/secret", "true"):
        assert redactor(other) == other


@pytest.mark.parametrize(
    "spec",
    [
        "name: a\nstorage: s3a://k:hunter22@bucket/x\nconfiguration: {my.secret: hunter22}\n",
        "name: a\nkafka: {sasl.pasword: hunter22}\n",
        "name: a\nkafka:\n  sasl.password: hunter22\n  - x\n",
        "name: a\nkafka: {bootstrap.servers: '${file:token}'}\n",
        "name: a\nruntime: {memory: '${file:token}'}\n",
    ],
)
def test_an_error_about_the_spec_shows_no_secret(write: Write, spec: str) -> None:
    root = write({"token": "hunter22"}, spec)
    redactor = Redactor()
    with pytest.raises(HeadraceError) as caught:
        load_project(root, redactor=redactor)
    error = caught.value
    assert "hunter22" not in f"{error} {error.summary} {error.facts} {error.remedies} {error.params}"
    assert "hunter22" not in redactor(spec), "the line that the screen shows"


def test_settings_show_no_secret(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "h:1")
    monkeypatch.setenv("USER_NAME", "me")
    settings = load_project(write({"secrets/password": "hunter22"}, SECURED))
    assert settings.kafka.settings["sasl.password"] == "hunter22"
    assert "hunter22" not in repr(settings)


@pytest.mark.parametrize(
    ("overrides", "key", "suggestion"),
    [
        ({"storag": "x"}, "storag", "storage"),
        ({"runtime.memry": "2g"}, "runtime.memry", "memory"),
        ({"kafka.bootstrap.server": "x:1"}, "kafka.bootstrap.server", "bootstrap.servers"),
        ({"bootstrap.servers": "x:1"}, "bootstrap.servers", "kafka.bootstrap.servers"),
        ({"spark.x": "1"}, "spark.x", "configuration.spark.x"),
        ({"profiles.prod.storage": "x"}, "profiles.prod.storage", "storage"),
    ],
)
def test_an_override_that_means_nothing_is_refused(
    write: Write, overrides: dict[str, str], key: str, suggestion: str
) -> None:
    with pytest.raises(HeadraceError) as caught:
        load_project(write({}), overrides=overrides)
    assert (caught.value.code, caught.value.params["key"]) == ("SPEC_UNKNOWN_KEY", key)
    assert caught.value.params["suggestion"] == suggestion
    assert str(caught.value.location) == f"override of {key}"


def test_overrides_are_typed_as_the_specs_own_values(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_NAME", "of the environment")
    overrides = {
        "name": '"5"',
        "consumer_groups": "false",
        "views.interval": "3",
        "configuration.spark.a.b": "1e3",
        "configuration.x": "${SOME_NAME}",
        "configuration.y": "a: b # c",
        "kafka.client.id": "",
        "runtime.master": "local[2]",
    }
    spec = "name: shop\nkafka: {client.id: me}\n"
    settings = load_project(write({}, spec), overrides=overrides)
    assert (settings.name, settings.consumer_groups, settings.view_interval_s) == ("5", False, 3.0)
    assert settings.configuration == {"spark.a.b": "1e3", "x": "of the environment", "y": "a: b # c"}
    assert "client.id" not in settings.kafka.settings
    assert settings.master == "local[2]"


@pytest.mark.parametrize(
    "overrides", [{"name": "5"}, {"runtime": "x"}, {"storage.x": "1"}, {"consumer_groups": "maybe"}]
)
def test_an_override_of_the_wrong_kind_is_refused(write: Write, overrides: dict[str, str]) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({}), overrides=overrides)
    assert str(caught.value.location).startswith("override of ")


@pytest.mark.parametrize(
    ("kafka", "key"),
    [
        ({"security.protocol": "SSLL"}, "security.protocol"),
        ({"sasl.username": "me", "sasl.password": "x"}, "sasl.username"),
        (
            {"sasl.username": "me", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "sasl.username",
        ),
        ({"sasl.username": "me", "sasl.password": "x", "security.protocol": "SASL_SSL"}, "sasl.username"),
        ({"ssl.ca.location": "nowhere.pem"}, "ssl.ca.location"),
        ({"ssl.truststore.location": "store.jks"}, "ssl.truststore.location"),
        ({"ssl.keystore.location": "store.jks"}, "ssl.keystore.location"),
        ({"ssl.key.location": "store.jks"}, "ssl.key.location"),
        ({"ssl.key.location": "store.jks", "ssl.certificate.location": "store.jks"}, "ssl.key.location"),
    ],
)
def test_a_connection_that_can_never_work_has_a_place(write: Write, kafka: dict[str, str], key: str) -> None:
    lines = "".join(f"  {name}: {value}\n" for name, value in {"bootstrap.servers": "h:1", **kafka}.items())
    with pytest.raises(SpecInvalidError) as caught:
        load_project(write({"store.jks": "x"}, f"name: a\nkafka:\n{lines}"))
    assert caught.value.params["key"] == f"kafka.{key}"
    assert caught.value.location is not None
    assert caught.value.remedies


def test_paths_of_certificates_begin_at_the_spec(write: Write) -> None:
    root = write({"ca.pem": "x"}, "name: a\nkafka: {bootstrap.servers: 'h:1', ssl.ca.location: ca.pem}\n")
    assert load_project(root).kafka.settings["ssl.ca.location"] == str(root / "ca.pem")
