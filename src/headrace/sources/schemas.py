"""Schemas as users give them: a DDL string, a ``StructType``, or a file that holds one of the two."""

from __future__ import annotations

import hashlib
import json
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import SchemaInvalidError, SourceLocation, did_you_mean, first_line, nearest
from headrace.runtime.lazy_pyspark import StructType, T

_DDL, _JSON = (".ddl", ".sql"), (".json",)
_OTHER = (".avsc", ".avro", ".proto", ".xsd", ".yml", ".yaml", ".txt")
_COMMENT = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_COLUMNS = "write columns as in CREATE TABLE: id LONG, at TIMESTAMP"
_UNKNOWN_TYPE = re.compile(r'Unsupported data type "(\w+)"')
_TYPES = (
    *("ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTEGER"),
    *("LONG", "MAP", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT"),
    "VARIANT",
)
_POSITION = re.compile(r"line (\d+),? pos (\d+)")


@dataclass(frozen=True)
class SchemaFile:
    """A schema's file, read and not yet parsed, so that it needs no pyspark."""

    path: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def is_json(self) -> bool:
        return self.path.lower().endswith(_JSON)


Schema = Any
"""A DDL string, a ``StructType``, a file's path, or a `SchemaFile`."""


def read_schema(given: Schema, root: Path, location: SourceLocation) -> Schema:
    """The schema with its file read, where it names one; needs no pyspark."""
    # No DDL string ends in the suffix of a file.
    if not isinstance(given, str) or not given.strip().lower().endswith((*_DDL, *_JSON, *_OTHER)):
        return given
    name = given.strip()
    if name.lower().endswith(_OTHER):
        raise SchemaInvalidError(
            f"the format of the schema file {name} is not supported",
            location=location,
            remedies=[
                "use a .ddl or .sql file with columns, or a .json file with the output of StructType.json()"
            ],
            params={"path": name},
        )
    path = root / name
    try:
        return SchemaFile(name, path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = path.read_bytes()[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise SchemaInvalidError(
            f"the schema file {name} is not UTF-8 text",
            location=SourceLocation(name, line, column),
            facts=[f"byte 0x{error.object[error.start]:02x} at position {error.start}"],
            remedies=["save the file as UTF-8"],
            params={"path": name, "line": line, "column": column},
        ) from error
    except OSError as error:
        names = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, names)
        example = "name a file in the pipeline's folder, such as schemas/orders.ddl"
        is_inferred = path.suffix == ".json" and path.parent.name == "schemas"
        raise SchemaInvalidError(
            f"the schema file {name} cannot be read: {error.strerror or error}",
            location=location,
            facts=[f"looked for {path.absolute()}"],
            remedies=[
                f"did you mean {near}?" if near else example,
                *([f"infer it from the records:   headrace infer {path.stem}"] if is_inferred else ()),
            ],
            params={"path": name},
        ) from error


def load_schema(given: Schema, root: Path, location: SourceLocation) -> StructType:
    """The columns of a user's schema."""
    found = read_schema(given, root, location)
    if isinstance(found, T.StructType):
        return found
    if isinstance(found, SchemaFile):
        start = SourceLocation(found.path, 1)
        if found.is_json:
            return _parse_json(found.text, start)
        return _parse_ddl(found.text, start, found.text)
    if not isinstance(found, str):
        raise SchemaInvalidError(
            f"a schema must be a DDL string, a StructType or a file, not a {type(found).__name__}",
            location=location,
            remedies=[_COLUMNS],
            params={"given": type(found).__name__},
        )
    path = Path(location.path)
    lines = linecache.getlines(str(path if path.is_absolute() else root / path))
    return _parse_ddl(found, location, "".join(lines))


def _parse_ddl(ddl: str, location: SourceLocation, content: str) -> StructType:
    """The columns of a DDL text, which is a part of ``content``, the file of ``location``."""
    from pyspark.errors import AnalysisException

    # Comments become blanks, so that positions in error messages stay right.
    text = _COMMENT.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), ddl)
    text = re.sub(r"[,;](\s*)\Z", r" \1", text)
    try:
        parsed = T.StructType.fromDDL(text) if text.strip() else None
    except AnalysisException as error:
        raise _not_columns(error, ddl, location, content) from error
    if not isinstance(parsed, T.StructType) or not parsed.fields:
        raise SchemaInvalidError("a schema has no columns", location=location, remedies=[_COLUMNS], params={})
    return parsed


def _not_columns(error: Exception, ddl: str, location: SourceLocation, content: str) -> SchemaInvalidError:
    message = first_line(error)
    found = _POSITION.search(str(error))
    place = location
    if found is not None:
        lines = ddl.split("\n")
        line = min(int(found[1]), len(lines))
        index = sum(len(one) + 1 for one in lines[: line - 1]) + int(found[2])
        if content.count(ddl) == 1:
            place = _place(location, content, content.index(ddl) + min(index, max(len(ddl) - 1, 0)))
    unknown = _UNKNOWN_TYPE.search(message)
    remedies = (_COLUMNS,) if unknown is None else did_you_mean(unknown[1], _TYPES, _COLUMNS)
    if unknown is not None and place.column is not None:
        place = replace(place, length=len(unknown[1]))
    return SchemaInvalidError(
        "a schema cannot be parsed as columns"
        if unknown is None
        else f"a schema has the unknown type `{unknown[1]}`",
        location=place,
        facts=[re.sub(r"^\[[A-Z0-9_.]+\] |\.? ?SQLSTATE: \w+", "", message).strip()]
        if unknown is None
        else [],
        remedies=remedies,
        params={"schema": ddl[:200], "line": place.line, "column": place.column},
    )


def _parse_json(text: str, location: SourceLocation) -> StructType:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = replace(location, line=error.lineno, column=error.colno)
        raise _not_json(f"it is not JSON: {error.msg}", place) from error
    try:
        if not isinstance(value, Mapping) or value.get("type") != "struct":
            raise _not_json('it is not an object such as {"type": "struct", "fields": [..]}', location)
        return _checked(T.StructType.fromJson(dict(value)))
    except SchemaInvalidError:
        raise
    except KeyError as error:
        raise _not_json(f"the key {error} is missing", location) from error
    except Exception as error:  # pyspark raises exceptions of many types for an invalid schema
        words = re.sub(r"^\[[A-Z0-9_.]+\] ", "", str(error)).splitlines()[0]
        raise _not_json(words, _place_of_words(location, text, words)) from error


def _checked(schema: StructType) -> StructType:
    names = [field.name for field in schema.fields]
    if not names:
        raise ValueError("it has no fields")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the field '{twice}' occurs twice")
    return schema


def _not_json(why: str, place: SourceLocation) -> SchemaInvalidError:
    return SchemaInvalidError(
        f"the schema file {place.path} cannot be parsed as a StructType",
        location=place,
        facts=[why],
        remedies=["write the output of StructType.json(), or use a .ddl file with columns"],
        params={"path": place.path, "line": place.line, "column": place.column},
    )


def _place_of_words(location: SourceLocation, text: str, message: str) -> SourceLocation:
    """The location of the last word of the error message that occurs in the file, else its first line."""
    for word in reversed(re.findall(r"[\w(),]*\w\)?", message)):
        if (at := text.find(f'"{word}"')) >= 0:
            return _place(location, text, at)
    return location


def _place(location: SourceLocation, content: str, index: int) -> SourceLocation:
    line = content.count("\n", 0, index) + 1
    return replace(location, line=line, column=index - (content.rfind("\n", 0, index) + 1) + 1)
