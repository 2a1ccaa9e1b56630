"""Table functions of SQL files, such as ``read_kafka``, as calls of the readers of Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.declare.auto_loader import CLOUD_FILES, READ_FILES
from headrace.declare.dbutils import Dbutils
from headrace.declare.kinesis_reads import read_kinesis
from headrace.declare.reads import read_kafka
from headrace.declare.registry import require_pipeline, spark
from headrace.declare.stored_reads import read_files
from headrace.errors import SourceLocation
from headrace.model.queries import Edit, SqlCall
from headrace.model.texts import option_text
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.syntax.locations import located_at
from headrace.syntax.sql import SqlText
from headrace.syntax.tokens import Cursor, SqlTokenError, Token

_KAFKA_READER = frozenset({"subscribe", "subscribepattern", "assign"})
"""Arguments that name topics as Spark does; such a call has Spark's columns, ``topic``, ``offset``, .."""
_SERVERS = "kafka.bootstrap.servers"
_REFUSED = ("read_pulsar", "read_pubsub", "read_state")


@dataclass
class _Arguments:
    cursor: Cursor
    function: Token
    streaming: bool
    positional: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Token] = field(default_factory=dict)


def find_calls(query: Cursor) -> Iterator[SqlCall]:
    """The table functions of a query that Headrace reads."""
    tokens = query.tokens
    for index, token in enumerate(tokens[:-1]):
        if not tokens[index + 1].is_symbol("(") or (index and tokens[index - 1].is_symbol(".")):
            continue
        name = token.value.lower()
        if token.kind == "word" and name == "from_json":
            _check_schema(query, index)
        if token.kind == "word" and name in _REFUSED:
            raise query.unsupported(f"the table function {name}", token=token)
        if token.kind != "word" or name not in _FUNCTIONS:
            continue
        cursor = Cursor(query.text, tokens)
        cursor.index = index + 1
        group = cursor.group("arguments")
        begins, ends, streaming = index, cursor.index, False
        if index and tokens[index - 1].is_word("STREAM"):
            begins, streaming = index - 1, True
        elif index > 1 and tokens[index - 2].is_word("STREAM") and cursor.take_symbol(")"):
            begins, ends, streaming = index - 2, cursor.index, True
        arguments = _Arguments(query, token, streaming)
        for item in group.items():
            _argument(item, arguments)
        read, is_known = _FUNCTIONS[name](arguments)
        has_metadata = name in _FILES and any(one.is_word("_METADATA") for one in tokens)
        yield SqlCall(
            start=tokens[begins].start,
            stop=tokens[ends - 1].stop,
            location=query.text.locate(token.start, token.stop - 1, None),
            read=partial(_with_metadata, read) if has_metadata else read,
            is_known=is_known,
            hides=tuple(_hidden_in_stars(tokens, begins)) if has_metadata else (),
        )


def _check_schema(query: Cursor, index: int) -> None:
    """Refuse ``from_json(value, NULL, ..)``, with which Databricks infers the schema."""
    cursor = Cursor(query.text, query.tokens)
    cursor.index = index + 1
    given = list(cursor.group("arguments").items())
    if len(given) > 1 and len(given[1].tokens) - given[1].index == 1 and given[1].at("NULL"):
        raise query.unsupported(
            "from_json without a schema",
            "give the fields: from_json(value, 'id LONG, name STRING')",
            "headrace infer TOPIC writes the schema of a topic's records to a file",
            token=query.tokens[index],
        )


_NAMED = re.compile(r"\b(?:read_\w+|cloud_files|from_json)\s*\(", re.IGNORECASE)


def find_calls_in(text: str, location: SourceLocation) -> tuple[SqlCall, ...]:
    """The table functions of an SQL text in Python code."""
    if not _NAMED.search(text):
        return ()
    try:
        cursor = Cursor(SqlText(text, location))
    except SqlTokenError:
        # Spark reports it.
        return ()
    return tuple(find_calls(cursor))


def _with_metadata(read: Callable[[], DataFrame]) -> DataFrame:
    """The rows of files with Spark's hidden column ``_metadata``, which a temporary view would not have."""
    return read().select("*", "_metadata")


def _hidden_in_stars(tokens: Sequence[Token], call: int) -> Iterator[Edit]:
    """The edits that leave ``_metadata`` out of each ``*`` of the query that reads a table function."""
    depth = 0
    for index in range(call - 1, 0, -1):
        token, before = tokens[index], tokens[index - 1]
        if token.is_symbol(")"):
            depth += 1
        elif token.is_symbol("("):
            depth -= 1
        if depth < 0 or (depth == 0 and token.is_word("SELECT")):
            return
        in_list = before.is_word("SELECT", "DISTINCT", "ALL") or before.value in (",", ".")
        if depth == 0 and token.is_symbol("*") and in_list:
            if tokens[index + 1].is_word("EXCEPT"):
                yield Edit(tokens[index + 2].stop, tokens[index + 2].stop, "_metadata, ")
            else:
                yield Edit(token.stop, token.stop, " EXCEPT (_metadata)")


_Reads = tuple[Callable[[], Any], bool]


def _read_kafka(arguments: _Arguments) -> _Reads:
    values = dict(arguments.named)
    for name in [name for name in values if name.lower() in ("bootstrapservers", "bootstrap_servers")]:
        values[_SERVERS] = values.pop(name)
    if not _KAFKA_READER.isdisjoint(name.lower() for name in values):
        if arguments.positional:
            raise arguments.cursor.invalid("name the topics once", arguments.function)
        options = {name: option_text(value) for name, value in values.items()}
        return partial(_load, arguments.streaming, "kafka", None, options, None), True
    if not arguments.streaming:
        raise arguments.cursor.unsupported(
            "read_kafka without STREAM", "write STREAM read_kafka(..)", token=arguments.function
        )
    given, options = _split(arguments, values, read_kafka, ("topic",))
    return partial(read_kafka, **given, **_options(options)), True


def _read_kinesis(arguments: _Arguments) -> _Reads:
    if not arguments.streaming:
        raise arguments.cursor.unsupported(
            "read_kinesis without STREAM", "write STREAM read_kinesis(..)", token=arguments.function
        )
    given, options = _split(arguments, arguments.named, read_kinesis, ("stream",))
    if "stream" not in given:
        raise arguments.cursor.invalid(
            "read_kinesis needs a stream", arguments.function, "write STREAM read_kinesis('clicks')"
        )
    return partial(read_kinesis, **given, **_options(options)), True


def _cloud_files(arguments: _Arguments) -> _Reads:
    values = [*arguments.positional, {}]
    if arguments.named or not 3 <= len(values) <= 4 or not isinstance(values[2], dict):
        raise arguments.cursor.invalid(
            "the arguments of cloud_files are a path, a format and a map of options",
            arguments.function,
            "write cloud_files('landing', 'json', map('cloudFiles.inferColumnTypes', 'true'))",
        )
    # It is a stream with and without STREAM.
    arguments.streaming = True
    path, format, options = values[:3]
    schema = next((options.pop(name) for name in list(options) if name.lower() == "schema"), None)
    return _auto_loader(arguments, path, {**options, "cloudFiles.format": format}, schema)


def _auto_loader(arguments: _Arguments, path: str, options: Mapping[str, str], schema: str | None) -> _Reads:
    named = {**options, READ_FILES: arguments.function.value.lower()}
    return partial(_load, arguments.streaming, CLOUD_FILES, path, named, schema), schema is not None


def _read_files(arguments: _Arguments) -> _Reads:
    names = {name.lower().replace("_", "") for name in arguments.named}
    if ("schema" not in names and not names & _OWN) or names & _AUTO_LOADER:
        # Spark's options are in camel case: `maxFilesPerTrigger`.
        camel = {name: re.sub(r"_([a-z])", lambda found: found[1].upper(), name) for name in arguments.named}
        values = {camel[name]: option_text(value) for name, value in arguments.named.items()}
        if len(arguments.positional) != 1 or not isinstance(arguments.positional[0], str):
            remedy = "write read_files('landing', format => 'json')"
            raise arguments.cursor.invalid("read_files needs a path", arguments.function, remedy)
        return _auto_loader(arguments, arguments.positional[0], values, values.pop("schema", None))
    given, options = _split(arguments, arguments.named, read_files, ("path",))
    for option in [one for one in options if one.lower() in _FILE_OPTIONS]:
        given[_FILE_OPTIONS[option.lower()]] = options.pop(option)
    if isinstance(given.get("format"), str):
        given["format"] = given["format"].lower()
    for required in ("path", "format"):
        if required not in given:
            raise arguments.cursor.invalid(
                f"read_files needs {required}",
                arguments.function,
                "write read_files('landing/orders', format => 'json')",
            )
    if arguments.streaming:
        return partial(read_files, **given, **_options(options)), True
    if extra := given.keys() - {"path", "format", "schema"}:
        name = min(extra)
        raise arguments.cursor.unsupported(
            f"{name} in read_files without STREAM",
            "write STREAM read_files(..) in a streaming table",
            token=arguments.names.get(name, arguments.function),
        )
    texts = {name: option_text(value) for name, value in options.items()}
    read = partial(_load, False, given["format"], given["path"], texts, given.get("schema"))
    return read, given.get("schema") is not None


_FUNCTIONS: Mapping[str, Callable[[_Arguments], _Reads]] = {
    "read_kafka": _read_kafka,
    "read_kinesis": _read_kinesis,
    "read_files": _read_files,
    "cloud_files": _cloud_files,
}
_FILES = ("read_files", "cloud_files")
_OWN = frozenset({"drift", "badrecords", "invalidutf8", "maxvaluebytes", "recursive", "glob", "options"})
"""Arguments of `hr.read_files`, in lower case; a call with them is one of it."""
_AUTO_LOADER = frozenset({"schemahints", "rescueddatacolumn", "schemaevolutionmode", "infercolumntypes"})
"""Arguments of Databricks' function that `hr.read_files` does not have."""
_FILE_OPTIONS = {"pathglobfilter": "glob", "filenamepattern": "glob", "recursivefilelookup": "recursive"}


def _load(
    streaming: bool, format: str, path: str | None, options: Mapping[str, str], schema: str | None
) -> DataFrame:
    reader: Any = spark.readStream if streaming else spark.read
    if schema is not None:
        reader = reader.schema(schema)
    frame: DataFrame = reader.format(format).options(**options).load(path)
    return frame


def _split(
    arguments: _Arguments, named: Mapping[str, Any], reader: Callable[..., Any], positions: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a reader of Python, and the options that it passes to Spark."""
    known = inspect.signature(reader).parameters.keys() - {"options"}
    if len(arguments.positional) > len(positions):
        raise arguments.cursor.invalid(
            "an argument behind the first needs a name: name => value", arguments.function
        )
    given = dict(zip(positions, arguments.positional, strict=False))
    options: dict[str, Any] = {}
    for name, value in named.items():
        argument = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
        if argument in given:
            raise arguments.cursor.invalid(f"{argument} is given twice", arguments.names[name])
        (given if argument in known else options)[argument if argument in known else name] = value
    return given, options


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"options": {name: option_text(value) for name, value in options.items()}} if options else {}


def _argument(item: Cursor, found: _Arguments) -> None:
    token = item.token
    if item.done:
        raise item.unexpected("an argument")
    if any(one.is_symbol("=>") for one in item.tokens):
        name = ".".join(item.name("the name of an argument"))
        if not item.take_symbol("=>"):
            raise item.unexpected("=>")
        if name in found.named:
            raise item.invalid(f"{name} is given twice", token)
        found.names[name] = token
        found.named[name] = _value(item)
    else:
        found.positional.append(_value(item))
    if not item.done:
        raise item.unsupported("an expression as an argument", "write a string, a number, or map(..)")


def _value(item: Cursor) -> Any:
    """A literal: strings (also joined by ``||``), numbers, booleans, and maps and arrays of them."""
    if item.done:
        raise item.unexpected("a value")
    if item.take("TRUE"):
        return True
    if item.take("FALSE"):
        return False
    if item.at("MAP") or item.at("ARRAY"):
        is_map = item.next().is_word("MAP")
        values = [_value(one) for one in item.group("values").items()]
        if not is_map:
            return values
        return {str(key): option_text(value) for key, value in zip(values[::2], values[1::2], strict=False)}
    if item.token.kind == "number":
        text = item.next().value
        return int(text) if text.isdigit() else text
    text = _text_of(item)
    while item.take_symbol("||"):
        text += _text_of(item)
    return text


def _text_of(item: Cursor) -> str:
    """A string, or a secret: ``secret('scope', 'key')``."""
    function = item.token
    if item.take("SECRET"):
        given = [one.string("a string") for one in item.group("a scope and a key").items()]
        if len(given) != 2:
            raise item.invalid("secret has a scope and a key", function)
        with located_at(item.text.locate(function.start, function.stop - 1, None)):
            return Dbutils(require_pipeline("secret").settings).secrets.get(*given)
    if item.token.kind != "string":
        raise item.unsupported("an expression as an argument", "write a string, a number, or map(..)")
    return item.string("a string")
