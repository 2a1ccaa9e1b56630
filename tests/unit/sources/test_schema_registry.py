"""What a schema registry answers, and what its errors become."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from headrace.errors import (
    HeadraceError,
    SchemaRegistryRefusedError,
    SchemaRegistryUnreachableError,
    SchemaSubjectInvalidError,
    SubjectNotFoundError,
)
from headrace.runtime.schema_registry import RegisteredSchema, SchemaRegistry


class Answers(HTTPServer):
    """Answers requests from a dict of paths; another path has the status of `missing`."""

    paths: dict[str, Any]
    missing = 404
    logins: list[str | None]


class _Handler(BaseHTTPRequestHandler):
    server: Answers

    def do_GET(self) -> None:
        self.server.logins.append(self.headers["Authorization"])
        known = self.path in self.server.paths
        body = json.dumps(self.server.paths.get(self.path)).encode()
        self.send_response(200 if known else self.server.missing)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[Answers]:
    found = Answers(("127.0.0.1", 0), _Handler)
    found.paths, found.logins = {"/subjects": ["b", "a"]}, []
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def at(server: Answers, login: str = "") -> SchemaRegistry:
    return SchemaRegistry.at(f"http://{login}127.0.0.1:{server.server_port}/")


def failure(server: Answers, subject: str = "o-value") -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        at(server).load_versions(subject)
    return caught.value


def test_all_versions_in_their_order_with_a_login(server: Answers) -> None:
    path = "/subjects/a%2Fb-value/versions"
    server.paths |= {
        path: [10, 2],
        f"{path}/2": {"id": 7, "schema": "one"},
        f"{path}/10": {"id": 3, "schema": "two", "schemaType": "AVRO", "references": []},
    }
    found = at(server, "ada:p%40ss@").load_versions("a/b-value")
    assert found == (RegisteredSchema(7, "one"), RegisteredSchema(3, "two"))
    assert set(server.logins) == {f"Basic {base64.b64encode(b'ada:p@ss').decode()}"}
    assert "p@ss" not in repr(SchemaRegistry.at("http://ada:p%40ss@h"))
    assert SchemaRegistry.at("http://h/api/", "ada:x") == SchemaRegistry("http://h/api", "ada:x")


def test_a_subject_that_is_unknown_is_named_with_those_that_exist(server: Answers) -> None:
    error = failure(server)
    assert isinstance(error, SubjectNotFoundError)
    assert (error.params["subject"], error.facts[1]) == ("o-value", "its subjects: a, b")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_registry_that_cannot_answer_now_is_transient(server: Answers, status: int) -> None:
    server.missing = status
    assert isinstance(failure(server), SchemaRegistryUnreachableError)
    assert failure(server).transient


@pytest.mark.parametrize("answer", [{"status": "ok"}, ["one"], None])
def test_a_server_that_is_not_a_registry_is_called_so(server: Answers, answer: Any) -> None:
    server.paths["/subjects/o-value/versions"] = answer
    error = failure(server)
    assert isinstance(error, SchemaRegistryRefusedError)
    assert error.summary == f"http://127.0.0.1:{server.server_port} does not answer like a schema registry"
    assert error.remedies == ("correct schema.registry.url under kafka: in headrace.yml",)


def test_a_schema_is_registered_under_its_subject(server: Answers) -> None:
    server.paths["/subjects/a%2Fb/versions"] = {"id": 7}
    assert at(server).register("a/b", "{}") == 7
    server.paths["/subjects/a%2Fb/versions"] = {"error": "moved"}
    with pytest.raises(SchemaRegistryRefusedError, match="like a schema registry"):
        at(server).register("a/b", "{}")
    server.missing = 409
    with pytest.raises(SchemaSubjectInvalidError):
        at(server).register("other", "{}")


def test_a_registry_that_is_down_is_transient() -> None:
    with pytest.raises(SchemaRegistryUnreachableError):
        SchemaRegistry.at("http://127.0.0.1:9").load_versions("o-value")


@pytest.mark.parametrize("status", [401, 403])
def test_a_login_that_is_refused_is_terminal(server: Answers, status: int) -> None:
    server.missing = status
    error = failure(server)
    assert isinstance(error, SchemaRegistryRefusedError)
    assert not error.transient and error.params["status"] == status


@pytest.mark.parametrize(
    "version", [{"schemaType": "PROTOBUF"}, {"references": [{"name": "A", "subject": "a", "version": 1}]}]
)
def test_schemas_that_are_not_plain_avro_are_refused(server: Answers, version: dict[str, Any]) -> None:
    server.paths |= {
        "/subjects/o-value/versions": [1],
        "/subjects/o-value/versions/1": {"id": 1, "version": 1, "schema": "", **version},
    }
    assert isinstance(failure(server), SchemaSubjectInvalidError)
