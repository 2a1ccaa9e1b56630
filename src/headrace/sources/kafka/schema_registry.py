"""Asks a schema registry with Confluent's API for the Avro schemas of a topic."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from headrace.errors import (
    SchemaRegistryRefusedError,
    SchemaRegistryUnreachableError,
    SchemaSubjectInvalidError,
    SubjectNotFoundError,
)

URL = "schema.registry.url"
USER_INFO = "schema.registry.basic.auth.user.info"

_TIMEOUT_S = 10.0
_TEMPORARY = (408, 429)
_FORBIDDEN = (401, 403)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class RegisteredSchema:
    """One version of a subject."""

    id: int  # the id of the schema in the registry, which the wire format carries
    text: str


@dataclass(frozen=True)
class SchemaRegistry:
    """A schema registry."""

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
        found = [self._get(f"{path}/{int(number)}", subject) for number in sorted(numbers)]
        return tuple(self._schema(one, subject) for one in found)

    def load_subjects(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self._get("/subjects", ""))))

    def _schema(self, found: Mapping[str, Any], subject: str) -> RegisteredSchema:
        kind = found.get("schemaType") or "AVRO"
        problem = None
        if kind != "AVRO":
            problem = f"has a schema of the type {kind}; only Avro is supported"
        elif found.get("references"):
            problem = "has a schema that refers to other schemas; this is not supported"
        if problem is not None:
            raise SchemaSubjectInvalidError(
                f"the subject `{subject}` of the schema registry {problem}",
                facts=(f"version {found.get('version')}, id {found.get('id')}",),
                remedies=('read the topic with format="raw", and decode it in the query',),
                params={"subject": subject, "version": found.get("version"), "type": kind},
            )
        return RegisteredSchema(int(found["id"]), str(found["schema"]))

    def _get(self, path: str, subject: str) -> Any:
        request = Request(self.url + path, headers={"Accept": _ACCEPT})
        if self.user is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.user.encode()).decode()}")
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                raise self._refused(error.code, error.reason, subject) from error
        except (URLError, OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(str(getattr(error, "reason", error))) from error

    def _refused(self, code: int, reason: str, subject: str) -> Exception:
        answer = f"HTTP {code} {reason}".strip()
        if code >= 500 or code in _TEMPORARY:
            return self._unreachable(answer)
        if code == 404 and subject:
            return SubjectNotFoundError(
                f"the schema registry has no subject `{subject}`",
                facts=(f"registry: {self.url}", f"its subjects: {self._known()}"),
                remedies=(
                    "name the subject: hr.read_kafka(.., subject=..)",
                    "or register a schema: producers do so when they write the first record",
                ),
                params={"url": self.url, "subject": subject},
            )
        hint = "set schema.registry.basic.auth.user.info under kafka: in headrace.yml"
        return SchemaRegistryRefusedError(
            f"the schema registry refused the request: {answer}",
            facts=(f"registry: {self.url}",),
            remedies=(hint,) if code in _FORBIDDEN else ("check the address of the registry",),
            params={"url": self.url, "status": code},
        )

    def _known(self) -> str:
        names = self.load_subjects()
        return ", ".join(names[:10]) + (", .." if len(names) > 10 else "") or "none"

    def _unreachable(self, reason: str) -> SchemaRegistryUnreachableError:
        return SchemaRegistryUnreachableError(
            f"the schema registry at {self.url} does not answer",
            facts=(reason,),
            remedies=("check the address, and whether the registry runs",),
            params={"url": self.url},
        )
