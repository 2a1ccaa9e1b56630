"""The error for a file that cannot be read: its path, the line if there is one, and Spark's reason."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import PurePath
from typing import Any

from headrace.errors import NOT_COMMITTED, FileUnreadableError, HeadraceError, RecordUnparseableError, text_of
from headrace.model.declarations import AppendFlow, AutoCdcFlow, RefreshFlow, TemporaryView
from headrace.model.folders import plain_path
from headrace.runtime.lazy_pyspark import F, SparkSession, StructType, T
from headrace.sources.decoders import NOT_UTF8
from headrace.sources.files.headers import open_unpacked
from headrace.sources.records import BadRecord
from headrace.storage.layout import is_uri

Declared = AppendFlow | AutoCdcFlow | RefreshFlow | TemporaryView

ColumnsOf = Callable[[str, StructType], StructType]

_PATH = re.compile(r"(?:reading file|footer for file:?|for the file:?) ((?:file|s3a?):/\S+?)[.,]?(?=\s|$)")
_REASON = re.compile(
    r"Caused by: ((?!.*(?:SparkException|BadRecordException))[^\n]+"
    # What is wrong with the header of a CSV file takes several lines.
    r"(?:\n ?(?:Header|Schema|Expected)\b[^\n]*)*)"
)
_POSITION = re.compile(r"line: (\d+), column: (\d+)")
_CORRUPT = "_headrace_corrupt"
_FORMATS = {"JsonFileFormat": "json", "CSVFileFormat": "csv"}
_EXCERPT = 120
"""The maximum number of a record's characters in an error."""
_REASON_LENGTH = 300


def explain_bad_file(
    error: BaseException,
    flow: Declared,
    session: SparkSession | None,
    columns_of: ColumnsOf = lambda _, declared: declared,
) -> HeadraceError | None:
    """The error of a file or record that made a query fail; None if the query failed for another reason.
    `columns_of`: gives the columns of a file, in its order, from the declared ones."""
    text = "\n".join(_texts(error))
    bad = BadRecord.find(text)
    if bad is not None:
        return _explain_bad_record(bad, flow) if "path" in bad.at else None
    found = _PATH.search(text)
    if found is None:
        return None
    uri = found[1]
    path = plain_path(uri)
    reasons = _REASON.findall(text)
    reason = _short(reasons[-1]) if reasons else _short(text)
    if "MALFORMED_RECORD_IN_PARSING" in text:
        place = _POSITION.search(text)
        record = None if session is None else _bad_record(session, str(flow.name), uri, columns_of)
        line = int(place[1]) if place else None if record is None else find_line(path, record)
        column = int(place[2]) if place else None
        where = path if line is None else f"{path}, line {line}" + (f", column {column}" if column else "")
        begins = () if record is None or column else (f"the record begins: {record[:_EXCERPT]}",)
        return RecordUnparseableError(
            f"flow {flow.name}: the record does not match the declared schema ({where})",
            location=flow.location,
            facts=(*begins, f"Spark's message: {reason}", NOT_COMMITTED),
            remedies=(*_print_remedy(path, line), *_REMEDIES),
            params={"flow": str(flow.name), "path": path, "line": line},
        )
    has_other_header = _OTHER_HEADER in reason
    problem = "has other columns in its header than its flow reads" if has_other_header else "cannot be read"
    return FileUnreadableError(
        f"flow {flow.name}: the file {path} {problem}",
        location=flow.location,
        facts=(f"Spark's message: {reason}", NOT_COMMITTED),
        remedies=_HEADER_REMEDIES if has_other_header else _REPAIR_REMEDIES,
        params={"flow": str(flow.name), "path": path},
    )


def find_line(path: str, record: str, *, is_prefix: bool = False) -> int | None:
    """The line of a file on which a record begins, counted from 1; ``None`` if it is not found."""
    first = record.splitlines()[0] if record else ""

    def matches(line: str) -> bool:
        text = line.rstrip("\r\n").removeprefix("\ufeff")
        return text == first or (is_prefix and text.startswith(first) and not _is_json(text))

    return _find_first(path, matches)


def _find_first(path: str, matches: Callable[[str], object], errors: str = "replace") -> int | None:
    try:
        with open_unpacked(path) as file, TextIOWrapper(file, "utf-8", errors) as lines:
            return next((number for number, line in enumerate(lines, 1) if matches(line)), None)
    except (OSError, ValueError):
        return None


def _explain_bad_record(bad: BadRecord, flow: Declared) -> HeadraceError:
    """The error for a record of a file that could not be decoded, with its path and line."""
    name, path = str(flow.name), plain_path(str(bad.at["path"]))
    if bad.code == NOT_UTF8:
        # Python reads a byte that is not valid UTF-8 as such a character.
        line = _find_first(path, re.compile("[\udc80-\udcff]").search, "surrogateescape")
    else:
        text = "" if bad.value is None else bad.value.decode("utf-8", errors="replace")
        line = find_line(path, text, is_prefix=bad.is_cut)
    where = path if line is None else f"{path}, line {line}"
    remedies = (*_print_remedy(path, line), *(_NOT_UTF8_REMEDIES if bad.code == NOT_UTF8 else _REMEDIES))
    return bad.to_error(name, flow.location, where, remedies, {"path": path, "line": line})


def _print_remedy(path: str, line: int | None) -> Iterator[str]:
    if line is None:
        return
    unpack = {".gz": "gunzip -c", ".bz2": "bunzip2 -c"}.get(PurePath(path).suffix)
    name = shlex.quote(path)
    if is_uri(path):
        command = f"aws s3 cp {name} - | " + ("" if unpack is None else f"{unpack} | ") + f"sed -n {line}p"
    else:
        command = f"sed -n {line}p {name}" if unpack is None else f"{unpack} {name} | sed -n {line}p"
    yield f"print the line:   {command}"


_REMEDIES = (
    "correct the file, and start again:   headrace run",
    'or correct the schema, or read the files with format="text" and no schema, and parse `value` in the '
    "query",
)
_REPAIR_REMEDIES = (
    "repair the file, or replace it by a good copy of the same name, then run again:   headrace run",
    "or give up its records: replace it by an empty file of the same name; without a file of this name, the "
    "flow stops, too",
)
_HEADER_REMEDIES = (
    "correct the header of the file, and start again:   headrace run",
    "or move the file to another folder, which another append flow of the table reads",
)
_OTHER_HEADER = "CSV header"
_NOT_UTF8_REMEDIES = ("write the file in UTF-8, and start again:   headrace run",)


def _bad_record(session: SparkSession, name: str, uri: str, columns_of: ColumnsOf) -> str | None:
    """The first record that Spark cannot read in a file, read once more to find it."""
    for relation, paths in file_relations(session, name):
        format = _FORMATS.get(relation.fileFormat().getClass().getSimpleName())
        if format is None or plain_path(uri) not in map(plain_path, paths):
            continue
        chosen = relation_options(session, relation)
        chosen |= {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        # The path names one file, whatever special characters are in it.
        chosen["__globPaths__"] = "false"
        declared = T.StructType.fromJson(json.loads(str(relation.dataSchema().json())))
        columns = columns_of(plain_path(uri), declared)
        reader = session.read.format(format).schema(columns.add(_CORRUPT, T.StringType()))
        rows = reader.options(**chosen).load(uri).where(F.col(_CORRUPT).isNotNull()).limit(1)
        return next((str(row[_CORRUPT]) for row in rows.collect()), None)
    return None


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _texts(error: BaseException) -> Iterator[str]:
    """What an exception says, and what the exceptions behind it in the JVM say."""
    yield text_of(error)
    java: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    for _ in range(20):
        if java is None:
            return
        yield f"Caused by: {java.toString()}"
        java = java.getCause()


def _short(reason: str) -> str:
    words = " ".join(reason.split())
    words = re.sub(r"^[\w.$]+(?:Exception|Error): ", "", words)
    return re.sub(r"\.? ?SQLSTATE: \w+", "", words)[:_REASON_LENGTH]


def relation_options(session: SparkSession, relation: Any) -> dict[str, str]:
    jvm: Any = session._jvm
    options = jvm.scala.jdk.javaapi.CollectionConverters.asJava(relation.options())
    text = jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(options)
    return {str(key): str(value) for key, value in json.loads(text).items()}


def file_relations(session: SparkSession, name: str) -> Iterator[tuple[Any, list[str]]]:
    """How the batch under way of a query reads files: Spark's relations, each with its paths."""
    query: Any = next(one for one in session.streams.active if one.name == name)
    jvm: Any = session._jvm
    # One call for all the paths, where each of them would be one.
    mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
    leaves = query._jsq.streamingQuery().lastExecution().analyzed().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "LogicalRelation" and leaf.isStreaming():
            yield (
                leaf.relation(),
                json.loads(mapper.writeValueAsString(leaf.relation().location().inputFiles())),
            )
