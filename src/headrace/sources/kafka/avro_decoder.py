"""The decoder of Avro records, with or without the wire format of Confluent's schema registry."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from headrace import errors
from headrace.errors import did_you_mean
from headrace.runtime.lazy_pyspark import Column, DataType, F, T
from headrace.sources.decoders import UNPARSEABLE, Decoder

URL = "schema.registry.url"
USER_INFO = "schema.registry.basic.auth.user.info"

_TIMEOUT_S = 10.0
_TEMPORARY = (408, 429)
_SHOWN = 200
_FORBIDDEN = (401, 403)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


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
            raise errors.SchemaRegistryRefusedError(
                f"{self.url} does not answer like a schema registry",
                facts=(f"{path}: {json.dumps(numbers)[:_SHOWN]}",),
                remedies=(f"correct {URL} under kafka: in headrace.yml",),
                params={"url": self.url, "status": 200},
            )
        found = [self._get(f"{path}/{number}", subject) for number in sorted(numbers)]
        return tuple(self._schema(one, subject) for one in found)

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


UNKNOWN_ID: Final = "HEADRACE_UNKNOWN_SCHEMA_ID "
"""Begins the message with which a query fails at a record whose schema id it does not know."""

_END = "headrace"
_END_BYTES = bytes([2 * len(_END)]) + _END.encode()
"""The end mark as Avro writes a string."""
_MOST_LEVELS = 50
"""Levels of fields that are looked at: a schema can refer to itself, which Spark refuses."""
_PREFIX = 5
"""The bytes before a record in the wire format: zero, and the id of its schema in four bytes."""


@dataclass(frozen=True)
class AvroDecoder(Decoder):
    """Avro; a record becomes the fields of the reader's schema."""

    mismatch = (
        "the record is not one Avro record of its schema, with strings in valid UTF-8, or its decimals have "
        "another scale than those of the reader's schema"
    )

    reader: str  # the schema to which all records are resolved, as JSON text
    # The schemas of records in the wire format, by id; None if records have no wire format and were written
    # with the reader's schema
    writers: Mapping[int, str] | None = None

    def decode(self, value: Column) -> Column:
        kind = self._type()
        if self.writers is None:
            return F.when(value.isNotNull(), self._resolve(value, self.reader, kind))
        prefix = F.substring(value, 1, _PREFIX)
        is_wire = (F.substring(value, 1, 1) == F.lit(b"\x00")) & (F.length(value) >= _PREFIX)
        number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
        unknown = F.when(is_wire, F.raise_error(F.concat(F.lit(UNKNOWN_ID), number)))
        payload = F.substring(value, _PREFIX + 1, 2**31 - 1)
        # One flat CASE: nested ones would be as deep as the subject has versions.
        cases: Any = F
        for known, writer in self.writers.items():
            is_known = prefix == F.lit(b"\x00" + known.to_bytes(4, "big"))
            # Avro resolves decimals as bytes: 1.50 would be read as 0.150.
            same = have_same_scales(json.loads(writer), json.loads(self.reader))
            record = self._resolve(payload, writer, kind) if same else F.lit(None).cast(kind)
            cases = cases.when(is_known, record)
        decoded: Column = cases.otherwise(unknown)
        return decoded

    def problem(self, value: Column) -> Column:
        return F.lit(UNPARSEABLE)

    def _type(self) -> DataType:
        from pyspark.sql import SparkSession
        from pyspark.sql.avro.functions import from_avro

        record = from_avro(F.lit(b""), self.reader)
        return SparkSession.active().range(0).select(record).schema[0].dataType

    def _resolve(self, payload: Column, writer: str, kind: DataType) -> Column:
        """The record of a payload; NULL if it is not one whole record of the writer's schema."""
        from pyspark.sql.avro.functions import from_avro

        # Spark gives a row of NULLs for a malformed record, and ignores bytes after the record. A string of
        # ours behind the record is read only if the record is whole.
        options = {"avroSchema": _with_end(self.reader), "mode": "PERMISSIVE"}
        parsed = from_avro(F.concat(payload, F.lit(_END_BYTES)), _with_end(writer), options)

        def whole(parsed: Column) -> Column:
            return F.when(
                (parsed["end"] == _END) & _has_valid_strings(parsed["record"], kind), parsed["record"]
            )

        # The array makes Spark parse once and use the result several times.
        return F.transform(F.array(parsed), whole)[0]


def _has_valid_strings(value: Column, kind: DataType) -> Column:
    """Whether all strings of a value are valid UTF-8; Spark does not check the bytes of Avro's strings."""
    match kind:
        case T.StringType():
            valid = F.is_valid_utf8(value)
        case T.StructType():
            parts = [_has_valid_strings(value[one.name], one.dataType) for one in kind.fields]
            valid = reduce(and_, parts, F.lit(True))
        case T.ArrayType():
            valid = F.forall(value, lambda item: _has_valid_strings(item, kind.elementType))
        case T.MapType():
            keys = F.forall(F.map_keys(value), F.is_valid_utf8)
            valid = keys & F.forall(
                F.map_values(value), lambda item: _has_valid_strings(item, kind.valueType)
            )
        case _:
            return F.lit(True)
    return F.coalesce(valid, F.lit(True))


def have_same_scales(writer: Any, reader: Any) -> bool:
    """Whether the decimals that two Avro schemas have in the same fields have the same scale."""
    ours = dict(_scales(reader, (), {}))
    return all(ours.get(path, scale) == scale for path, scale in _scales(writer, (), {}))


def _scales(kind: Any, path: tuple[str, ...], named: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], int]]:
    """The scales of the decimals of an Avro schema, by the names of the fields around them."""
    if len(path) > _MOST_LEVELS:
        return
    if isinstance(kind, dict) and "name" in kind:
        named[kind["name"]] = kind
    match kind:
        case {"logicalType": "decimal"}:
            yield path, int(kind.get("scale", 0))
        case {"fields": fields}:
            for one in fields:
                yield from _scales(one["type"], (*path, one["name"]), named)
        case {"items": inner} | {"values": inner}:
            yield from _scales(inner, (*path, ""), named)
        case {"type": dict() | list() as inner}:
            yield from _scales(inner, path, named)
        case list():
            for one in kind:
                yield from _scales(one, path, named)
        case str() if kind in named:
            yield from _scales(named[kind], path, named)


def _with_end(schema: str) -> str:
    record: Any = json.loads(schema)
    fields = [{"name": "record", "type": record}, {"name": "end", "type": "string"}]
    return json.dumps({"type": "record", "name": "HeadraceEnvelope", "fields": fields})
