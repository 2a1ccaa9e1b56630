"""The places in PySpark where a query's reads and actions can be seen; installed once, idle elsewhere.

Each patch looks for the interception in force (`headrace.plan.intercept`) and forwards to PySpark at
once where there is none. Code that a patch forwards to runs suspended, so that PySpark's own calls of
patched methods are never taken for the user's.

A session that the user's code holds from elsewhere, such as one that a module has kept in a global,
is replaced by the session of the interception: a flow must read in its own session and no other.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from headrace.plan.bad_records import FUNCTIONS, failfast_edits, with_failfast
from headrace.plan.intercept import (
    SQL_CALL_ATTRIBUTE,
    Interception,
    apply_edits,
    current_interception,
    is_quiet,
    suspended,
)
from headrace.plan.options import ReadRequest
from headrace.plan.sqltext import edited
from headrace.sources.files.source import FORMATS as FILE_FORMATS

Method = Callable[..., Any]

_ACTIONS = (
    *("collect", "count", "foreach", "foreachPartition", "head", "first", "take", "tail", "show", "isEmpty"),
    *("toPandas", "toArrow", "toLocalIterator", "checkpoint", "localCheckpoint", "inputFiles", "pandas_api"),
    *("approxQuantile", "corr", "cov", "crosstab", "transpose"),
)
_ACTION_PROPERTIES = ("rdd", "write", "writeStream")
_ACTION_WRITERS = ("writeTo", "mergeInto")
_FILE_METHODS = ("json", "csv", "xml", "parquet", "orc", "text")
_TIME_TRAVEL = ("versionAsOf", "timestampAsOf")

_lock = RLock()
_installed = False


@dataclass
class _Asked:
    """What a reader has been told so far; PySpark itself keeps it in the JVM only."""

    format: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    schema: Any = None

    def request(
        self, *, streaming: bool, format: str | None = None, path: str | None = None, **options: str
    ) -> ReadRequest:
        return ReadRequest(
            streaming=streaming,
            format=(format or self.format or "parquet").lower(),
            options={**self.options, **options},
            columns=self.columns,
            path=path,
            schema=self.schema,
        )

    @property
    def travels(self) -> bool:
        return any(key.lower() in {name.lower() for name in _TIME_TRAVEL} for key in self.options)

    @property
    def changes(self) -> bool:
        return self.request(streaming=False).reads_changes


def install() -> None:
    """Patch PySpark's classic classes; further calls do nothing."""
    global _installed
    with _lock:
        if _installed:
            return
        from pyspark.sql.classic.dataframe import DataFrame
        from pyspark.sql.functions import builtin
        from pyspark.sql.group import GroupedData
        from pyspark.sql.readwriter import DataFrameReader
        from pyspark.sql.session import SparkSession
        from pyspark.sql.streaming.readwriter import DataStreamReader

        _patch(SparkSession, "table", _session_table)
        _patch(SparkSession, "sql", _session_sql)
        for name in ("createDataFrame", "range"):
            _patch(SparkSession, name, _redirected)
        for name in ("read", "readStream"):
            _redirect_property(SparkSession, name)
        _patch(SparkSession.Builder, "getOrCreate", _session_in_use)
        for name in ("active", "getActiveSession"):
            found = getattr(SparkSession, name).__func__
            setattr(SparkSession, name, classmethod(functools.wraps(found)(_session_in_use(found))))
        _patch_reader(DataFrameReader, streaming=False)
        _patch_reader(DataStreamReader, streaming=True)
        for name in (*_ACTIONS, *_ACTION_WRITERS):
            _patch(DataFrame, name, functools.partial(_action, f"{name}()"))
        for name in _ACTION_PROPERTIES:
            _patch_property(DataFrame, name)
        for name in ("createTempView", "createOrReplaceTempView"):
            _patch(DataFrame, name, _create_view)
        _patch(DataFrame, "dropDuplicatesWithinWatermark", _drop_duplicates)
        _patch(GroupedData, "pivot", _pivot)
        # Users' files may have imported the functions themselves before; all go through this one.
        builtin._invoke_function = _invoke(builtin._invoke_function)
        _patch(DataFrame, "selectExpr", _select_expr)
        for name in ("filter", "where"):
            _patch(DataFrame, name, _filter)
        _hush_loggers()
        _installed = True


def _hush_loggers() -> None:
    """PySpark prints each failed analysis to stderr as JSON of several kilobytes, before it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).addFilter(lambda _: not is_quiet())


def _patch(owner: type, name: str, wrap: Callable[[Method], Method]) -> None:
    original = owner.__dict__.get(name)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(wrap(original)))


def _patch_property(owner: type, name: str) -> None:
    original = owner.__dict__[name]

    def fget(self: Any) -> Any:
        if interception := current_interception():
            interception.refuse_action(name)
        return original.__get__(self, type(self))

    setattr(owner, name, property(fget, doc=original.__doc__))


def _patch_reader(reader: type, *, streaming: bool) -> None:
    for name in ("format", "option", "options", "schema"):
        _patch(reader, name, functools.partial(_tracked, name))
    _patch(reader, "load", functools.partial(_load, streaming))
    for name in _FILE_METHODS:
        _patch(reader, name, functools.partial(_load_files, streaming, name))
    _patch(reader, "table", functools.partial(_reader_table, streaming, False))
    _patch(reader, "changes", functools.partial(_reader_table, streaming, True))


# -- sessions


def _session_table(original: Method) -> Method:
    def table(self: Any, tableName: str) -> Any:
        interception = current_interception()
        if interception is None or not isinstance(tableName, str):
            return original(self, tableName)
        session = interception.session or self
        answer = interception.read_table(session, tableName, streaming=False)
        with suspended():
            return original(session, answer.text) if answer.frame is None else answer.frame

    return table


def _session_sql(original: Method) -> Method:
    def sql(self: Any, sqlQuery: str, args: Any = None, **kwargs: Any) -> Any:
        interception = current_interception()
        if interception is None or not isinstance(sqlQuery, str):
            return original(self, sqlQuery, args, **kwargs)
        from pyspark.sql.sql_formatter import SQLStringFormatter

        session = interception.session or self
        formatter = SQLStringFormatter(session)
        text = formatter.format(sqlQuery, **kwargs) if kwargs else sqlQuery
        try:
            call = interception.read_sql(session, text)
            with suspended():
                try:
                    return original(session, apply_edits(call), args)
                except Exception as error:
                    setattr(error, SQL_CALL_ATTRIBUTE, call)
                    raise
        finally:
            formatter.clear()

    return sql


def _redirected(original: Method) -> Method:
    def redirected(self: Any, *args: Any, **kwargs: Any) -> Any:
        interception = current_interception()
        if interception is None or interception.session is None:
            return original(self, *args, **kwargs)
        from pyspark.sql.session import SparkSession

        # PySpark makes the session that is asked for the active one of the whole process; whoever comes
        # next, such as a later run, would be given a session that is gone.
        with _lock:
            before = SparkSession._activeSession
            try:
                return original(interception.session, *args, **kwargs)
            finally:
                SparkSession._activeSession = before

    return redirected


def _redirect_property(owner: type, name: str) -> None:
    original = owner.__dict__[name]

    def fget(self: Any) -> Any:
        interception = current_interception()
        if interception is not None and interception.session is not None:
            self = interception.session
        return original.__get__(self, type(self))

    setattr(owner, name, property(fget, doc=original.__doc__))


def _session_in_use(original: Method) -> Method:
    def session_in_use(self_or_class: Any) -> Any:
        # PySpark gives the first session of the process whatever session is active in the JVM; a
        # query has to get the one that it is resolved with.
        interception = current_interception()
        if interception is not None and interception.session is not None:
            return interception.session
        return original(self_or_class)

    return session_in_use


# -- readers


def _asked(reader: Any) -> _Asked:
    asked = reader.__dict__.get("_headrace_asked")
    if asked is None:
        asked = reader._headrace_asked = _Asked()
    assert isinstance(asked, _Asked)
    return asked


def _tracked(name: str, original: Method) -> Method:
    def tracked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        asked = _asked(self)
        if name == "format":
            asked.format = str(args[0] if args else kwargs["source"])
        elif name == "schema":
            asked.schema = args[0] if args else kwargs["schema"]
            asked.columns = _columns(asked.schema)
        elif name == "option":
            key, value = inspect.signature(original).bind(self, *args, **kwargs).args[1:]
            asked.options[str(key)] = _text(value)
        else:
            asked.options.update({key: _text(value) for key, value in kwargs.items()})
        return result

    return tracked


def _columns(schema: Any) -> tuple[str, ...]:
    from pyspark.sql.types import StructType

    struct = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    return tuple(struct.fieldNames())


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _complete(reader: Any, interception: Interception, request: ReadRequest) -> ReadRequest:
    """Give a reader the options that it lacks; returns the request with them."""
    added = interception.reader_options(request)
    for key, value in added.items():
        reader.option(key, value)
    return request.with_options(added)


def _reader_table(streaming: bool, changes: bool, original: Method) -> Method:
    def table(self: Any, tableName: str) -> Any:
        interception = current_interception()
        if interception is None or not isinstance(tableName, str):
            return original(self, tableName)
        asked = _asked(self)
        answer = interception.read_table(
            self._spark,
            tableName,
            streaming=streaming,
            changes=changes or asked.changes,
            options=asked.options,
        )
        if answer.frame is not None:
            return answer.frame
        if answer.name is not None:
            _complete(self, interception, asked.request(streaming=streaming, format="delta"))
        with suspended():
            if interception.stands_in and asked.travels:
                # A stand-in is empty and has no history; its columns are those of any version.
                return self._spark.read.table(answer.text)
            return original(self, answer.text)

    return table


def _load(streaming: bool, original: Method) -> Method:
    def load(
        self: Any, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        interception = current_interception()
        if interception is None:
            return original(self, path, format, schema, **options)
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        asked = _asked(self)
        request = asked.request(streaming=streaming)
        folder = path if isinstance(path, str) else request.value("path") if path is None else None
        if streaming and request.format in FILE_FORMATS and folder is not None:
            path = folder = _in_folder(folder, interception)
            request = asked.request(streaming=streaming, path=folder)
        answer = interception.read_path(
            folder,
            format=request.format,
            streaming=streaming,
            changes=asked.changes,
            options=asked.options,
        )
        if answer is not None and answer.frame is not None:
            return answer.frame
        request = _complete(self, interception, request)
        if answer is None:
            frame = interception.read_source(self._spark, request, _paths(folder, path))
            if frame is not None:
                return frame
            interception.require_table(folder, request.format)
        with suspended():
            if answer is None:
                return original(self, path)
            if interception.stands_in and asked.travels:
                return self._spark.read.table(answer.text)
            return self.table(answer.text)

    return load


def _load_files(streaming: bool, format: str, original: Method) -> Method:
    signature = inspect.signature(original)

    def load_files(self: Any, *args: Any, **kwargs: Any) -> Any:
        interception = current_interception()
        if interception is None:
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        if given.get("schema") is not None:
            _asked(self).schema = given["schema"]
            _asked(self).columns = _columns(given["schema"])
        paths = _paths(given.get("path"), given.get("paths"))
        options = {**given, **given.get("options", {})}
        for name in ("self", "path", "paths", "schema", "options"):
            options.pop(name, None)
        chosen = {key: _text(value) for key, value in options.items() if value is not None}
        folder = given.get("path") if streaming else None
        if isinstance(folder, str):
            folder = given["path"] = _in_folder(folder, interception)
        request = _asked(self).request(streaming=streaming, format=format, path=folder, **chosen)
        request = _complete(self, interception, request)
        paths = _paths(given.get("path"), given.get("paths"))
        frame = interception.read_source(self._spark, request, paths) if paths else None
        if frame is not None:
            return frame
        with suspended():
            return original(*bound.args, **bound.kwargs)

    return load_files


# -- parsing functions


def _invoke(original: Method) -> Method:
    def invoke(name: str, *args: Any) -> Any:
        if current_interception() is not None:
            if name in FUNCTIONS:
                column, schema, options = args
                args = (column, schema, with_failfast(schema, options))
            elif name == "expr":
                args = (_parsing(args[0]),)
        return original(name, *args)

    return functools.wraps(original)(invoke)


def _select_expr(original: Method) -> Method:
    def select_expr(self: Any, *expr: Any) -> Any:
        if current_interception() is not None:
            given = expr[0] if len(expr) == 1 and isinstance(expr[0], list) else expr
            expr = tuple(_parsing(one) for one in given)
        return original(self, *expr)

    return select_expr


def _filter(original: Method) -> Method:
    def filtered(self: Any, condition: Any) -> Any:
        return original(self, condition if current_interception() is None else _parsing(condition))

    return filtered


def _parsing(text: Any) -> Any:
    """An SQL expression in which what cannot be parsed is no null."""
    return edited(text, failfast_edits(text)) if isinstance(text, str) else text


def _in_folder(path: str, interception: Interception) -> str:
    """A path relative to the pipeline's folder, wherever the process happens to have been started."""
    if interception.root is None or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", path):
        return path
    return os.path.normpath(interception.root.absolute() / path)


def _paths(*given: Any) -> tuple[str, ...]:
    """The first that names folders or files: one, or several in a sequence."""
    for one in given:
        if isinstance(one, str):
            return (one,)
        if isinstance(one, list | tuple) and one and all(isinstance(path, str) for path in one):
            return tuple(one)
    return ()


# -- actions


def _action(what: str, original: Method) -> Method:
    def action(self: Any, *args: Any, **kwargs: Any) -> Any:
        if interception := current_interception():
            interception.refuse_action(what)
        return original(self, *args, **kwargs)

    return action


def _pivot(original: Method) -> Method:
    def pivot(self: Any, pivot_col: str, values: Any = None) -> Any:
        interception = current_interception()
        if interception is not None and values is None:
            interception.refuse_action("pivot() without values")
        return original(self, pivot_col, values)

    return pivot


def _drop_duplicates(original: Method) -> Method:
    def drop_duplicates(self: Any, subset: Any = None, *more: Any) -> Any:
        interception = current_interception()
        if interception is not None and interception.batchwise:
            # Spark knows it for streams only; over all rows at once nothing is ever too late.
            return self.dropDuplicates(subset, *more)
        return original(self, subset, *more)

    return drop_duplicates


def _create_view(original: Method) -> Method:
    def create_view(self: Any, name: str) -> Any:
        if interception := current_interception():
            interception.views.append(name)
        return original(self, name)

    return create_view
