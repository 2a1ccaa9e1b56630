"""Clusters and schema registries that refuse a login or do not answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from remedies.commands import topic_of
from remedies.walk import Walk, line_of, mistake, situation

SPEC = "headrace.yml"
EXTRA = "transformations/extra.py"


@situation("KAFKA_LOGIN_REFUSED", "secured")
def a_wrong_password(walk: Walk) -> None:
    walk.replace(SPEC, "${WALK_PASSWORD}", "wrong-one")
    shown = walk.fails("headrace plan", line_of(walk.folder, SPEC, "sasl.password"))
    assert "sasl.password" in " ".join(shown.remedies), shown.text
    walk.edit({SPEC: "{spec}"})
    walk.is_healthy()


@situation("KAFKA_LOGIN_REFUSED", "secured")
def a_mechanism_that_the_cluster_does_not_have(walk: Walk) -> None:
    walk.replace(SPEC, "SCRAM-SHA-512", "OAUTHBEARER")
    shown = walk.fails("headrace verify", line_of(walk.folder, SPEC, "sasl.mechanism"))
    assert "SCRAM-SHA-512" in shown.text or "sasl.mechanism" in shown.text, shown.text
    walk.edit({SPEC: "{spec}"})
    walk.goes_well("headrace verify")


@situation("KAFKA_TLS_FAILED", "secured")
def another_authority(walk: Walk) -> None:
    trustme.CA().cert_pem.write_to_path(str(walk.folder.root / "other.pem"))
    wrong = "\n".join(
        "  ssl.ca.location: ./other.pem" if "ssl.ca.location" in line else line
        for line in walk.folder.spec().splitlines()
    )
    walk.edit({SPEC: wrong})
    walk.fails("headrace plan", line_of(walk.folder, SPEC, "ssl.ca.location"))
    walk.edit({SPEC: "{spec}"})
    walk.is_healthy()


@situation("KAFKA_TLS_FAILED", "secured")
def a_login_without_encryption(walk: Walk) -> None:
    walk.replace(SPEC, ": SASL_SSL", ": SASL_PLAINTEXT")
    shown = walk.fails("headrace plan", line_of(walk.folder, SPEC, "security.protocol"))
    assert "SASL_SSL" in shown.text, shown.text
    walk.edit({SPEC: "{spec}"})
    walk.goes_well("headrace plan")


@situation("KAFKA_FORBIDDEN", "secured", spoils=True)
def a_user_without_the_right_to_read(walk: Walk) -> None:
    folder = topic_of(walk)
    admin = AdminClient({"bootstrap.servers": folder.bootstrap})

    def rule(user: str, kind: AclOperation) -> AclBinding:
        where = (ResourceType.TOPIC, folder.topic, ResourcePatternType.LITERAL)
        return AclBinding(*where, f"User:{user}", "*", kind, AclPermissionType.ALLOW)

    for future in admin.create_acls([rule("guest", AclOperation.READ)]).values():
        future.result(10)
    walk.does("the cluster allows the topic to the user guest only")
    folder.produce()
    shown = walk.fails("headrace plan", folder.topic)
    assert f"for user `shop`: DESCRIBE and READ on the topic `{folder.topic}`" in shown.text, shown.text
    rules = [rule("shop", AclOperation.READ), rule("shop", AclOperation.DESCRIBE)]
    for future in admin.create_acls(rules).values():
        future.result(10)
    walk.does("the administrator allows it to the user shop, too")
    walk.is_healthy()


# Schema registries.

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


class Registry(BaseHTTPRequestHandler):
    """Answers like a schema registry that asks for a login. It has two subjects, one of them in Avro."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") is None:
            self._answer(401, {"error_code": 40101, "message": "Unauthorized"})
        elif self.path in ("/subjects/good-value/versions", "/subjects/text-value/versions"):
            self._answer(200, [1])
        elif self.path.startswith("/subjects/good-value/"):
            self._answer(200, {"subject": "good-value", "version": 1, "id": 1, "schema": SCHEMA})
        elif self.path.startswith("/subjects/text-value/"):
            kind = {"schemaType": "PROTOBUF", "schema": "message A {}"}
            self._answer(200, {"subject": "text-value", "version": 1, "id": 2, **kind})
        elif self.path == "/subjects":
            self._answer(200, ["good-value", "text-value"])
        else:
            self._answer(404, {"error_code": 40401, "message": "Subject not found"})

    def _answer(self, code: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


@contextmanager
def registry() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def reads(subject: str) -> dict[str, str | None]:
    text = f'hr.read_kafka("{{topic}}", format="avro", subject="{subject}")'
    return {EXTRA: f"import headrace as hr\n\n\n@hr.table\ndef extra():\n    return {text}\n"}


def spec(url: str, login: str = "me:secret") -> dict[str, str | None]:
    user = f"  schema.registry.basic.auth.user.info: {login}\n" if login else ""
    return {SPEC: f"{{spec}}  schema.registry.url: {url}\n{user}"}


UNDONE: dict[str, str | None] = {SPEC: "{spec}", EXTRA: None}


@situation("SCHEMA_REGISTRY_UNREACHABLE", "topic")
def a_registry_that_does_not_run(walk: Walk) -> None:
    walk.edit({**spec("http://127.0.0.1:9"), **reads("good-value")})
    walk.fails("headrace plan", "127.0.0.1:9")
    with registry() as url:
        walk.edit(spec(url))
        walk.goes_well("headrace plan")
    walk.edit(UNDONE)


@situation("SCHEMA_REGISTRY_REFUSED", "topic")
def a_registry_without_a_login(walk: Walk) -> None:
    with registry() as url:
        walk.edit({**spec(url, ""), **reads("good-value")})
        shown = walk.fails("headrace plan", url)
        assert "schema.registry.basic.auth.user.info" in shown.text, shown.text
        walk.edit(spec(url))
        walk.goes_well("headrace plan")
    walk.edit(UNDONE)


@situation("SUBJECT_NOT_FOUND", "topic")
def a_misspelt_subject(walk: Walk) -> None:
    with registry() as url:
        walk.edit({**spec(url), **reads("god-value")})
        shown = walk.fails("headrace plan", line_of(walk.folder, EXTRA, "read_kafka"))
        assert shown.suggestions == ["good-value"], shown.text
        walk.edit(reads(shown.suggestions[0]))
        walk.goes_well("headrace plan")
    walk.edit(UNDONE)


@situation("SCHEMA_SUBJECT_INVALID", "topic")
def a_subject_that_is_not_avro(walk: Walk) -> None:
    with registry() as url:
        walk.edit({**spec(url), **reads("text-value")})
        shown = walk.fails("headrace plan", line_of(walk.folder, EXTRA, "read_kafka"))
        reader = shown.remedies[1].rpartition(":   ")[2]
        code = f'@hr.table\ndef extra():\n    return hr.read_kafka("{{topic}}", {reader})\n'
        walk.edit({EXTRA: f"import headrace as hr\n\n\n{code}"})
        walk.goes_well("headrace run extra")
    walk.edit(UNDONE)


mistake(
    "SCHEMA_INVALID",
    "a schema that is not Avro",
    {
        EXTRA: "import headrace as hr\n\n\n@hr.table\ndef extra():\n"
        '    return hr.read_kafka("{topic}", format="avro", schema=\'{"type": "recrd"}\')\n'
    },
    {
        EXTRA: "import headrace as hr\n\n\n@hr.table\ndef extra():\n"
        f'    return hr.read_kafka("{{topic}}", format="avro", schema=\'{SCHEMA}\')\n'
    },
    at=(EXTRA, "read_kafka"),
    names='"type": "record"',
    kind="topic",
)
