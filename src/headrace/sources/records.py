"""Decoded records, and the error for a record that cannot be decoded."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import (
    NOT_COMMITTED,
    HeadraceError,
    RecordNotUtf8Error,
    RecordUnparseableError,
    SourceLocation,
)
from headrace.sources.decoders import NOT_UTF8, Decoder
from headrace.sources.json_problems import find_problem

if TYPE_CHECKING:
    from pyspark.sql import Column

_MARK = "HEADRACE_BAD_RECORD "
_EXCERPT = 120
"""The maximum number of a record's characters in an error."""
CARRIED = 6_000
"""The maximum number of a record's bytes, and of its schema's characters, in Spark's message."""


def decode_or_stop(
    decoder: Decoder,
    value: Column,
    *,
    at: Sequence[Column] = (),
    on_null: Literal["refuse", "keep"] = "refuse",
) -> Column:
    """The record as a struct; a record that cannot be decoded stops the flow.

    Args:
        decoder: The decoder of the format.
        value: The record, as bytes or as text.
        at: Columns that identify the record in the error.
        on_null: Whether a record without a value stops the flow or gives a null struct.
    """
    from pyspark.sql import functions as F

    expected = decoder.expected
    facts = F.struct(
        decoder.problem(value).alias("problem"),
        *([F.struct(*at).alias("at")] if at else []),
        F.lit(expected if expected and len(expected) <= CARRIED else None).alias("schema"),
        F.base64(F.substring(value.cast("binary"), 1, CARRIED)).alias("record"),
    )
    stop = F.raise_error(F.concat(F.lit(_MARK), F.to_json(facts)))
    record = F.coalesce(decoder.decode(value), stop)
    return F.when(value.isNotNull(), record) if on_null == "keep" else record


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be decoded, as Spark's message describes it.

    Args:
        at: What identifies the record: topic, partition and offset, or the path of its file.
        value: The first bytes of the record; None if it has no value.
        is_cut: Whether `value` is only the beginning of the record.
        schema: The declared schema, in Spark's JSON form.
    """

    code: str
    at: Mapping[str, Any]
    value: bytes | None
    is_cut: bool
    schema: Mapping[str, Any] | None

    @classmethod
    def find(cls, message: str) -> BadRecord | None:
        """The record in the message of a failed query; None if the query failed for another reason."""
        _, mark, text = message.partition(_MARK)
        if not mark:
            return None
        try:
            facts = json.JSONDecoder().raw_decode(text)[0]
            record, schema = facts.get("record"), facts.get("schema")
            value = None if record is None else base64.b64decode(record)
            return cls(
                code=facts["problem"],
                at=facts.get("at") or {},
                value=value,
                is_cut=value is not None and len(value) >= CARRIED,
                schema=None if schema is None else json.loads(schema),
            )
        except (ValueError, KeyError):
            return None

    @property
    def text(self) -> str:
        """The record, with invalid bytes written as ``\\xff``."""
        return "(no value)" if self.value is None else self.value.decode("utf-8", errors="backslashreplace")

    def to_error(
        self,
        flow: str,
        location: SourceLocation,
        where: str | None = None,
        remedies: Sequence[str] = (),
        params: Mapping[str, Any] | None = None,
    ) -> HeadraceError:
        """The error that stops a flow.

        Args:
            flow: The flow.
            location: The location of its query.
            where: The place of the record; by default `at`.
            remedies: The commands that print the record; by default `headrace consume`.
            params: Further parameters.
        """
        where = where or ", ".join(f"{name} {value}" for name, value in self.at.items())
        kind = RecordNotUtf8Error if self.code == NOT_UTF8 else RecordUnparseableError
        return kind(
            f"flow {flow}: {self.describe()}" + (f" ({where})" if where else ""),
            location=location,
            facts=(f"the record begins: {self.text[:_EXCERPT]}", NOT_COMMITTED),
            remedies=(*(remedies or self._consume()), *self._remedies()),
            params={"flow": flow, **self.at, **(params or {})},
        )

    def describe(self) -> str:
        """Why the record could not be decoded, in one sentence."""
        if self.value is None:
            return "the record has no value"
        if self.code == NOT_UTF8:
            return _describe_invalid(self.value)
        found = find_problem(self.text, self.schema, is_cut=self.is_cut)
        return found or "the record does not match the declared schema"

    def _remedies(self) -> Iterator[str]:
        if self.code == NOT_UTF8:
            yield 'or replace invalid bytes by U+FFFD: invalid_utf8="replace"'
        elif self.value is None:
            yield 'drop records without a value, or make them NULL: on_null="drop" or on_null="keep"'
        elif "path" not in self.at:
            yield 'correct the schema, or read the topic with format="raw"'

    def _consume(self) -> Iterator[str]:
        """The command that prints a record of a topic."""
        if {"topic", "partition", "offset"} <= self.at.keys():
            position = f"--partition {self.at['partition']} --from {self.at['offset']} --limit 1"
            yield f"print the record:   headrace consume {shlex.quote(str(self.at['topic']))} {position}"


def _describe_invalid(value: bytes) -> str:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the record is not valid UTF-8: byte 0x{value[error.start]:02x} at position {error.start + 1}"
    return "the record is not valid UTF-8"
