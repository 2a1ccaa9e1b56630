"""A client of Confluent's schema registry, and of those with the same API."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from headrace import errors
from headrace.errors import did_you_mean

URL = "schema.registry.url"
USER_INFO = "schema.registry.basic.auth.user.info"

_TIMEOUT_S = 10.0
_TEMPORARY = (408, 429)
_SHOWN = 200
_FORBIDDEN = (401, 403)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


_JSON = "application/vnd.schemaregistry.v1+json"
_NOT_ALLOWED = (409, 422)
"""The answers to a schema that the rules of its subject do not allow, or that is none."""


@dataclass(frozen=True)
class RegisteredSchema:
    id: int  # the id of the schema in the registry, which the wire format carries
    text: str


@dataclass(frozen=True)
class SchemaRegistry:
    url: str
    # The user and the password, as ``user:password``; None without a login
    user: str | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str, user_info: str | None = None) -> SchemaRegistry:
        """A registry by its address, which may contain a login: ``https://user:password@host``."""
        parts = urlsplit(url)
        login, at, host = parts.netloc.rpartition("@")
        plain = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        return cls(plain, unquote(login) if at else user_info)

    def load_versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """All Avro schemas of a subject, the oldest version first."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        numbers = self._get(path, subject)
        if not isinstance(numbers, list) or not all(isinstance(one, int) for one in numbers):
            raise self._is_other(path, numbers)
        found = [self._get(f"{path}/{number}", subject) for number in sorted(numbers)]
        return tuple(self._schema(one, subject) for one in found)

    def register(self, subject: str, schema: str) -> int:
        """The id of a schema, which becomes the newest version of its subject if it is new.

        Raises:
            SchemaSubjectInvalidError: The rules of the subject do not allow the schema.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._ask(path, subject, json.dumps({"schema": schema}).encode())
        if not isinstance(found, dict) or not isinstance(found.get("id"), int):
            raise self._is_other(path, found)
        return int(found["id"])

    def _is_other(self, path: str, found: Any) -> errors.SchemaRegistryRefusedError:
        return errors.SchemaRegistryRefusedError(
            f"{self.url} does not answer like a schema registry",
            facts=(f"{path}: {json.dumps(found)[:_SHOWN]}",),
            remedies=(f"correct {URL} under kafka: in headrace.yml",),
            params={"url": self.url, "status": 200},
        )

    def _schema(self, found: Mapping[str, Any], subject: str) -> RegisteredSchema:
        kind = found.get("schemaType") or "AVRO"
        problem = None
        if kind != "AVRO":
            problem = f"has a schema of the type {kind}; only Avro is supported"
        elif found.get("references"):
            problem = "has a schema that refers to other schemas; this is not supported"
        if problem is not None:
            raise errors.SchemaSubjectInvalidError(
                f"the subject `{subject}` of the schema registry {problem}",
                facts=(f"version {found.get('version')} of the subject, schema id {found.get('id')}",),
                remedies=(
                    "if the records are Avro, name the subject that they were written with in subject=",
                    "or read the records as bytes, and decode `value` in the query. Leave out subject=, and "
                    'give:   format="raw"',
                ),
                params={"subject": subject, "schema_version": found.get("version"), "type": kind},
            )
        return RegisteredSchema(int(found["id"]), str(found["schema"]))

    def _get(self, path: str, subject: str) -> Any:
        return self._ask(path, subject, None)

    def _ask(self, path: str, subject: str, body: bytes | None) -> Any:
        headers = {"Accept": _ACCEPT, **({} if body is None else {"Content-Type": _JSON})}
        request = Request(self.url + path, body, headers)
        if self.user is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.user.encode()).decode()}")
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                if body is not None and error.code in _NOT_ALLOWED:
                    raise self._not_allowed(error, subject) from error
                raise self._refused(error.code, error.reason, subject) from error
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(str(getattr(error, "reason", error))) from error

    def _refused(self, code: int, reason: str, subject: str) -> Exception:
        answer = f"HTTP {code} {reason}".strip()
        if code >= 500 or code in _TEMPORARY:
            return self._unreachable(answer)
        if code == 404 and subject:
            names = sorted(map(str, self._get("/subjects", "")))
            listed = ", ".join(names[:10]) + (", .." if len(names) > 10 else "")
            return errors.SubjectNotFoundError(
                f"the schema registry has no subject `{subject}`",
                facts=(f"registry: {self.url}", f"its subjects: {listed or 'none'}"),
                remedies=did_you_mean(subject, names)
                or (
                    "name the subject of the records with subject=.. in hr.read_kafka",
                    "or register a schema: producers do so when they write the first record",
                ),
                params={"url": self.url, "subject": subject},
            )
        login = "schema.registry.basic.auth.user.info: USER:PASSWORD"
        hint = f"add the login under kafka: in headrace.yml:   {login}"
        return errors.SchemaRegistryRefusedError(
            f"the schema registry refused the request: {answer}",
            facts=(f"registry: {self.url}",),
            remedies=(hint,) if code in _FORBIDDEN else (f"check {URL} under kafka: in headrace.yml",),
            params={"url": self.url, "status": code},
        )

    def _not_allowed(self, error: HTTPError, subject: str) -> errors.SchemaSubjectInvalidError:
        try:
            reason = str(json.load(error)["message"])
        except (ValueError, KeyError, TypeError, OSError):
            reason = error.reason
        return errors.SchemaSubjectInvalidError(
            f"the schema registry does not allow the new schema for the subject `{subject}`",
            facts=(f"registry: {self.url}", f"it says: {reason[:_SHOWN]}"),
            remedies=(
                "change the columns only as the rules of the subject allow",
                'or send the rows under another subject:   "subject": ..',
            ),
            params={"subject": subject, "schema_version": None, "type": "AVRO"},
        )

    def _unreachable(self, reason: str) -> errors.SchemaRegistryUnreachableError:
        return errors.SchemaRegistryUnreachableError(
            f"the schema registry at {self.url} does not answer",
            facts=(re.sub(r"^\[Errno -?\d+\] ", "", reason),),
            remedies=(
                f"correct {URL} under kafka: in headrace.yml, or start the registry",
                f"test it:   curl {self.url}/subjects",
            ),
            params={"url": self.url},
        )
