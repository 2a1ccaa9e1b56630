"""Decoded records, and the error for a record that cannot be decoded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import (
    NOT_COMMITTED,
    HeadraceError,
    RecordDriftedError,
    RecordNotUtf8Error,
    RecordTooLargeError,
    RecordUnparseableError,
    SourceLocation,
)
from headrace.runtime.lazy_pyspark import Column, F
from headrace.sources.decoders import DRIFTED, NOT_UTF8, TOO_LARGE, UNPARSEABLE, Decoder, decode_within
from headrace.sources.json_problems import find_problem, find_unknown

_MARK = "HEADRACE_BAD_RECORD "
_EXCERPT = 120
"""The maximum number of a record's characters in an error."""
CARRIED = 6_000
"""The maximum number of a record's bytes, and of its schema's characters, in Spark's message."""


_ERRORS: Mapping[str, type[HeadraceError]] = {
    UNPARSEABLE: RecordUnparseableError,
    NOT_UTF8: RecordNotUtf8Error,
    TOO_LARGE: RecordTooLargeError,
    DRIFTED: RecordDriftedError,
}


def decode_or_stop(
    decoder: Decoder,
    value: Column,
    *,
    at: Sequence[Column] = (),
    on_null: Literal["refuse", "keep"] = "refuse",
    max_bytes: int | None = None,
    stops: bool = False,
) -> Column:
    """The record as a struct; a record that cannot be decoded stops the flow.

    Args:
        value: The record, as bytes or as text.
        on_null: Whether a record without a value stops the flow or gives a null struct.
        stops: Whether the flow stops in any case; else the record may be quarantined.
    """
    stop = stop_at(decoder, value, at=at, max_bytes=max_bytes, stops=stops)
    record = F.coalesce(decode_within(decoder, value, max_bytes), stop)
    return F.when(value.isNotNull(), record) if on_null == "keep" else record


def stop_at(
    decoder: Decoder, value: Column, *, at: Sequence[Column], max_bytes: int | None = None, stops: bool = True
) -> Column:
    """An error that stops the flow at a record that cannot be decoded.

    Args:
        value: The record, as bytes or as text.
        max_bytes: The limit of a value's length, if there is one.
        stops: Whether the flow stops in any case; else the record may be quarantined.
    """
    expected, problem = decoder.expected, decoder.problem(value)
    size = []
    if max_bytes is not None:
        problem = F.when(F.octet_length(value) > max_bytes, F.lit(TOO_LARGE)).otherwise(problem)
        size = [F.octet_length(value).alias("size")]
    facts = F.struct(
        problem.alias("problem"),
        F.lit(stops).alias("stops"),
        *size,
        *([F.struct(*at).alias("at")] if at else []),
        F.lit(decoder.mismatch).alias("mismatch"),
        F.lit(expected if expected and len(expected) <= CARRIED else None).alias("schema"),
        F.base64(F.substring(value.cast("binary"), 1, CARRIED)).alias("record"),
    )
    return F.raise_error(F.concat(F.lit(_MARK), F.to_json(facts)))


def stop_because(mismatch: str, value: Column, *, at: Sequence[Column]) -> Column:
    """An error that stops the flow at a record that Spark has parsed, with the value that is wrong."""
    facts = F.struct(
        F.lit(UNPARSEABLE).alias("problem"),
        F.lit(True).alias("stops"),
        F.struct(*at).alias("at"),
        F.lit(mismatch).alias("mismatch"),
        F.base64(F.substring(value.cast("binary"), 1, CARRIED)).alias("record"),
    )
    return F.raise_error(F.concat(F.lit(_MARK), F.to_json(facts)))


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be decoded, as Spark's message describes it."""

    code: str
    at: Mapping[str, Any]  # what identifies the record: topic, partition and offset, or the path of its file
    value: bytes | None
    is_cut: bool
    schema: Mapping[str, Any] | None  # the declared schema, in Spark's JSON form
    size: int | None = None  # the number of the record's bytes, if it is known
    mismatch: str | None = None  # why it is bad, if its format is not JSON
    stops: bool = False  # whether the flow stops at such a record in any case

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
                size=facts.get("size"),
                mismatch=facts.get("mismatch"),
                stops=facts.get("stops", False),
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
            where: The place of the record; by default `at`.
            remedies: The commands that print the record.
        """
        where = where or ", ".join(f"{name} {value}" for name, value in self.at.items())
        return _ERRORS[self.code](
            f"flow {flow}: {self.describe()}" + (f" ({where})" if where else ""),
            location=location,
            facts=(f"the record begins: {self.text[:_EXCERPT]}", NOT_COMMITTED),
            remedies=(*remedies, *self._remedies()),
            params={"flow": flow, **self.at, **(params or {})},
        )

    def describe(self) -> str:
        """Why the record could not be decoded, in one sentence."""
        if self.value is None:
            return "the record has no value"
        if self.code == TOO_LARGE:
            return f"the value has {self.size:,} bytes, more than max_value_bytes"
        if self.code == NOT_UTF8:
            return _describe_invalid(self.value)
        if self.mismatch is not None:
            return self.mismatch
        if self.code == DRIFTED:
            names = find_unknown(self.text, self.schema)
            return f"the record has fields that its schema does not have: {', '.join(names) or '?'}"
        found = find_problem(self.text, self.schema, is_cut=self.is_cut)
        return found or "the record does not match the declared schema"

    def _remedies(self) -> Iterator[str]:
        if self.code == NOT_UTF8:
            yield 'or replace invalid bytes by U+FFFD: invalid_utf8="replace"'
        elif self.value is None:
            yield 'skip records without a value, or make them NULL: tombstones="skip" or tombstones="keep"'
        elif self.code == TOO_LARGE:
            yield "or set a larger max_value_bytes"
        elif self.code == DRIFTED:
            yield 'add the fields to the schema, or choose drift="evolve", "rescue" or "quarantine" for them'
        elif "path" not in self.at:
            yield 'correct the schema, or read the records with format="raw"'


def _describe_invalid(value: bytes) -> str:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"the record is not valid UTF-8: byte 0x{value[error.start]:02x} at position {error.start + 1}"
    return "the record is not valid UTF-8"
