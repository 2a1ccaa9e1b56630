"""Formats of readers and arguments of functions that Spark does not have, such as `cloudFiles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from headrace.runtime.lazy_pyspark import Column, DataFrame


@dataclass(frozen=True, kw_only=True)
class FormatRead:
    streaming: bool
    path: str | None
    options: Mapping[str, str]
    schema: Any  # the schema of the reader: DDL or a ``StructType``
    note: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RegisteredAvro:
    data: Any  # the column, or its name
    schema: str | None  # the reader's schema
    subject: Any
    address: str | None  # the address of the registry
    options: Mapping[str, str] = field(repr=False)


RegistryDecoder = Callable[[RegisteredAvro], "Column"]

FormatReader = Callable[[FormatRead], "DataFrame"]

_readers: ContextVar[Mapping[str, FormatReader]] = ContextVar("headrace_formats")
_decoder: ContextVar[RegistryDecoder | None] = ContextVar("headrace_registry_decoder", default=None)


def registry_decoder() -> RegistryDecoder | None:
    """What decodes records with the schemas of a registry; ``None`` outside of a pipeline."""
    return _decoder.get()


def format_reader(format: str | None) -> FormatReader | None:
    """The reader of a format, by its name in any letter case; ``None`` for formats of Spark."""
    return _readers.get({}).get((format or "").lower())


@contextmanager
def reading_formats(readers: Mapping[str, FormatReader], decoder: RegistryDecoder) -> Iterator[None]:
    """Let the readers of the code within take further formats, and ``from_avro`` a registry."""
    token, decoding = _readers.set(readers), _decoder.set(decoder)
    try:
        yield
    finally:
        _readers.reset(token)
        _decoder.reset(decoding)
