"""Patches of PySpark that show what the user's code asks of Spark; installed once, without effect elsewhere.

Each patch looks for the interception in force (`headrace.plan.intercept`) and calls PySpark directly if
there is none. Code that a patch calls runs without an interception, so that PySpark's own calls of patched
methods are not taken for the user's.

A session that the user's code holds from elsewhere, such as one in a global, is replaced by the session
of the interception: a flow reads in its own session.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

from headrace.errors import ArgumentInvalidError
from headrace.model.texts import option_text
from headrace.plan import function_patches
from headrace.plan.function_patches import accepting_numbers, call_with_texts, patch_functions
from headrace.plan.intercept import Interception, current_interception, suspended
from headrace.plan.modes import Bounded
from headrace.plan.names import split_name
from headrace.plan.sql_queries import USE, run_text, use_in_python
from headrace.runtime.gateway import named_frame, silence_loggers
from headrace.runtime.lazy_pyspark import T
from headrace.sources.delta.reader import reads_feed
from headrace.sources.registry import kind_for
from headrace.sources.requests import FormatRead, ReadRequest, format_reader
from headrace.syntax.locations import caller

Method = Callable[..., Any]

_ACTIONS = (
    *("collect", "count", "foreach", "foreachPartition", "head", "first", "take", "tail", "show", "isEmpty"),
    *("toPandas", "toArrow", "toLocalIterator", "checkpoint", "localCheckpoint", "inputFiles", "pandas_api"),
    *("approxQuantile", "corr", "cov", "crosstab", "transpose"),
)
_WRITE_PROPERTIES = ("write", "writeStream")
_TABLE_WRITES = ("delete", "update", "merge", "restoreToVersion", "restoreToTimestamp", "vacuum")
_TABLE_ACTIONS = ("generate", "clone", "cloneAtVersion", "cloneAtTimestamp")
_FILE_METHODS = ("json", "csv", "xml", "parquet", "orc", "text")
_TIME_TRAVEL = frozenset({"versionasof", "timestampasof"})

_lock = RLock()
_installed = False


@dataclass
class _ReaderState:
    """What has been set on a reader; PySpark itself keeps it in the JVM only."""

    format: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    schema: Any = None

    def request(
        self, *, streaming: bool, format: str | None = None, path: str | None = None, **options: str
    ) -> ReadRequest:
        return ReadRequest(
            streaming=streaming,
            format=(format or self.format or "parquet").lower(),
            options={**self.options, **options},
            columns=_columns(self.schema),
            path=path,
            schema=self.schema,
        )

    @property
    def travels(self) -> bool:
        return any(key.lower() in _TIME_TRAVEL for key in self.options)

    @property
    def changes(self) -> bool:
        return reads_feed(self.options)


def install() -> None:
    """Patch PySpark's classic classes; further calls do nothing."""
    global _installed
    with _lock:
        if not _installed:
            _patch_sessions()
            _patch_readers()
            _patch_frames()
            _patch_tables()
            patch_functions()
            silence_loggers()
            _installed = True


def _patch_sessions() -> None:
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.session import SparkSession

    _patch(SparkSession, "table", _session_table)
    _patch(SparkSession, "sql", _session_sql)
    _patch(SparkSession, "createDataFrame", _create_frame)
    _patch(SparkSession, "range", _in_session)
    for name in ("read", "readStream"):
        _patch_property(SparkSession, name, _in_session)
    _patch(Catalog, "setCurrentCatalog", functools.partial(_use, "CATALOG"))
    _patch(Catalog, "setCurrentDatabase", functools.partial(_use, "SCHEMA"))
    _patch(SparkSession.Builder, "getOrCreate", _session_in_use)
    for name in ("active", "getActiveSession"):
        found = getattr(SparkSession, name).__func__
        setattr(SparkSession, name, classmethod(_wrapped(found, _session_in_use)))


def _patch_readers() -> None:
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

    for reader, streaming in ((DataFrameReader, False), (DataStreamReader, True)):
        for name in ("format", "option", "options", "schema"):
            _patch(reader, name, functools.partial(_set, name))
        _patch(reader, "load", functools.partial(_load, streaming))
        for name in _FILE_METHODS:
            _patch(reader, name, functools.partial(_load_files, streaming, name))
        _patch(reader, "table", functools.partial(_reader_table, streaming, False))
        _patch(reader, "changes", functools.partial(_reader_table, streaming, True))


def _patch_frames() -> None:
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.group import GroupedData

    for name in _ACTIONS:
        _patch(DataFrame, name, functools.partial(_action, f"{name}()"))
    _patch(DataFrame, "writeTo", function_patches.write_to)
    _patch(DataFrame, "mergeInto", function_patches.merge_into)
    for name in _WRITE_PROPERTIES:
        _patch_property(DataFrame, name, functools.partial(_write, name))
    _patch_property(DataFrame, "rdd", functools.partial(_action, "rdd"))
    for name in ("createTempView", "createOrReplaceTempView"):
        _patch(DataFrame, name, _create_view)
    _patch(DataFrame, "dropDuplicatesWithinWatermark", _drop_duplicates)
    for name in ("filter", "where", "selectExpr"):
        _patch(DataFrame, name, call_with_texts)
    _patch(GroupedData, "pivot", _pivot)


def _patch_tables() -> None:
    from delta.tables import DeltaOptimizeBuilder, DeltaTable
    from pyspark.sql.catalog import Catalog
    from pyspark.sql.readwriter import DataFrameWriter

    _patch(DataFrameWriter, "saveAsTable", function_patches.save_as)
    _patch(DataFrameWriter, "insertInto", function_patches.insert_into)
    _patch(Catalog, "tableExists", function_patches.exists)
    table: Any = DeltaTable
    table.forName = classmethod(_wrapped(table.forName.__func__, function_patches.table_for_name))
    for name in _TABLE_WRITES:
        _patch(DeltaTable, name, functools.partial(_write, f"DeltaTable.{name}()"))
    for name in _TABLE_ACTIONS:
        _patch(DeltaTable, name, functools.partial(_action, f"DeltaTable.{name}()"))
    for name in ("executeCompaction", "executeZOrderBy"):
        _patch(DeltaOptimizeBuilder, name, functools.partial(_action, f"DeltaTable.optimize().{name}()"))


def _wrapped(original: Method, treat: Method) -> Method:
    """A method that calls ``treat(interception, original, self, ..)`` while an interception is in force."""

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        interception = current_interception()
        if interception is None:
            return original(self, *args, **kwargs)
        return treat(interception, original, self, *args, **kwargs)

    return wrapped


def _patch(owner: type, name: str, treat: Method) -> None:
    original = owner.__dict__.get(name)
    if original is not None:
        setattr(owner, name, _wrapped(original, treat))


def _patch_property(owner: type, name: str, treat: Method) -> None:
    original = owner.__dict__[name]
    getter = _wrapped(lambda self: original.__get__(self, type(self)), treat)
    setattr(owner, name, property(getter, doc=original.__doc__))


def _session_table(interception: Interception, original: Method, self: Any, tableName: Any) -> Any:
    session = interception.session or self
    name = _table_name(interception, "spark.table", tableName)
    answer = interception.read_table(session, name, streaming=False)
    if answer.path is not None:
        return _named(session.read.format("delta").load(answer.path), name)
    with suspended():
        return original(session, answer.text) if answer.frame is None else answer.frame


def _session_sql(
    interception: Interception, original: Method, self: Any, sqlQuery: Any, args: Any = None, **kwargs: Any
) -> Any:
    if not isinstance(sqlQuery, str):
        return original(self, sqlQuery, args, **kwargs)
    from pyspark.sql.sql_formatter import SQLStringFormatter

    session = interception.session or self
    formatter = SQLStringFormatter(session)
    text = formatter.format(sqlQuery, **kwargs) if kwargs else sqlQuery
    try:
        if USE.match(text):
            return use_in_python(interception, session, text)
        return run_text(interception, session, text, args)
    finally:
        formatter.clear()


def _use(
    what: str, interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any
) -> None:
    (name,) = (*args, *kwargs.values())
    use_in_python(interception, self._sparkSession, f"USE {what} {name}")


def _in_session(interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    if interception.session is None:
        return original(self, *args, **kwargs)
    from pyspark.sql.session import SparkSession

    # PySpark makes the session that is used the active one of the whole process; a later run would get a
    # session that is gone.
    with _lock:
        before = SparkSession._activeSession
        try:
            return original(interception.session, *args, **kwargs)
        finally:
            SparkSession._activeSession = before


def _create_frame(interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    return _in_session(interception, accepting_numbers(original), self, *args, **kwargs)


def _session_in_use(interception: Interception, original: Method, self_or_class: Any) -> Any:
    # PySpark gives the first session of the process, whatever session is active in the JVM.
    return interception.current_session()


def _state(reader: Any) -> _ReaderState:
    state = reader.__dict__.get("_headrace_state")
    if state is None:
        state = reader._headrace_state = _ReaderState()
    assert isinstance(state, _ReaderState)
    return state


def _set(
    name: str, interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any
) -> Any:
    if name in ("option", "options"):
        args = tuple(_mapped(value, interception) for value in args)
        # `load` maps a path.
        kwargs = {
            key: value if key == "path" else _mapped(value, interception) for key, value in kwargs.items()
        }
    result = original(self, *args, **kwargs)
    state = _state(self)
    if name == "format":
        state.format = str(args[0] if args else kwargs["source"])
    elif name == "schema":
        state.schema = args[0] if args else kwargs["schema"]
    elif name == "option":
        key, value = inspect.signature(original).bind(self, *args, **kwargs).args[1:]
        state.options[str(key)] = option_text(value)
    else:
        state.options.update({key: option_text(value) for key, value in kwargs.items()})
    return result


def _mapped(value: Any, interception: Interception) -> Any:
    """The value of an option; a path of another system, such as that of a key store, is replaced."""
    return interception.settings.paths.map(value) if isinstance(value, str) else value


def _columns(schema: Any) -> tuple[str, ...]:
    if schema is None:
        return ()
    struct = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    return tuple(struct.fieldNames())


def _table_name(interception: Interception, call: str, name: Any) -> str:
    if isinstance(name, str):
        return name
    label = getattr(name, "__name__", None)
    what = f"the function `{label}`" if callable(name) and label else f"a {type(name).__name__}"
    raise ArgumentInvalidError(
        f"{call}() needs a name, not {what}",
        location=caller(interception.root),
        remedies=[f'{call}("{label or "orders"}")'],
        params={"call": call, "argument": "tableName"},
    )


def _reader_table(
    streaming: bool, changes: bool, interception: Interception, original: Method, self: Any, tableName: Any
) -> Any:
    call = f"spark.{'readStream' if streaming else 'read'}.{'changes' if changes else 'table'}"
    state = _state(self)
    name = _table_name(interception, call, tableName)
    answer = interception.read_table(
        self._spark, name, streaming=streaming, changes=changes or state.changes, options=state.options
    )
    if answer.frame is not None:
        return answer.frame
    if answer.path is not None:
        reader = self.option("readChangeFeed", "true") if changes else self
        return _named(reader.format("delta").load(answer.path), name)
    if answer.name is not None:
        _complete(self, interception, state.request(streaming=streaming, format="delta"))
    with suspended():
        if interception.stands_in and state.travels:
            # A stand-in is empty and has no history; its columns are those of any version.
            return self._spark.read.table(answer.text)
        return original(self, answer.text)


def _named(frame: Any, name: str) -> Any:
    """The rows of a mapped table, whose columns its name qualifies."""
    with suspended():
        return named_frame(frame, split_name(name) or (name,))


def _load(
    streaming: bool,
    interception: Interception,
    original: Method,
    self: Any,
    path: Any = None,
    format: str | None = None,
    schema: Any = None,
    **options: Any,
) -> Any:
    if format is not None:
        self.format(format)
    if schema is not None:
        self.schema(schema)
    self.options(**options)
    state = _state(self)
    if (read := format_reader(state.format)) is not None:
        given = path if isinstance(path, str) else state.request(streaming=streaming).value("path")
        return read(
            FormatRead(
                streaming=streaming,
                path=None if given is None else interception.absolute_path(given),
                options=state.options,
                schema=state.schema,
                note=interception.note,
            )
        )
    request = state.request(streaming=streaming)
    given = path if path is not None else request.value("path")
    if given is not None and (kind_for(request.format).reader.has_path):
        given = _absolute(given, interception)
        if path is not None:
            path = given
        else:
            self.option("path", given)
    folder = given if isinstance(given, str) else None
    answer = interception.read_path(
        folder, format=request.format, streaming=streaming, changes=state.changes, options=state.options
    )
    if answer is not None and answer.frame is not None:
        return answer.frame
    request = _complete(self, interception, state.request(streaming=streaming, path=folder))
    if answer is None:
        frame = interception.read_source(self._spark, request, _paths(given))
        if frame is not None:
            return frame
        interception.check_path(folder, request.format)
    with suspended():
        if answer is None:
            return original(self, path)
        if interception.stands_in and state.travels:
            return self._spark.read.table(answer.text)
        return self.table(answer.text)


def _load_files(
    streaming: bool,
    format: str,
    interception: Interception,
    original: Method,
    self: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    given = bound.arguments
    state = _state(self)
    if given.get("schema") is not None:
        state.schema = given["schema"]
    for name in {"path", "paths"} & given.keys():
        given[name] = _absolute(given[name], interception)
    paths = _paths(given.get("path"), given.get("paths"))
    options = {**given, **given.get("options", {})}
    for name in ("self", "path", "paths", "schema", "options"):
        options.pop(name, None)
    chosen = {key: option_text(value) for key, value in options.items() if value is not None}
    folder = paths[0] if streaming and paths else None
    request = state.request(streaming=streaming, format=format, path=folder, **chosen)
    request = _complete(self, interception, request)
    frame = interception.read_source(self._spark, request, paths) if paths else None
    if frame is not None:
        return frame
    with suspended():
        return original(*bound.args, **bound.kwargs)


def _complete(reader: Any, interception: Interception, request: ReadRequest) -> ReadRequest:
    """Add the protocol's options to a reader; returns the request with them."""
    options = interception.replaced_options(request)
    if options is not None:
        _replace_options(reader, request, options)
        request = replace(request, options=options)
    added = interception.reader_options(request)
    for key, value in added.items():
        reader.option(key, value)
    return request.with_options(added)


def _replace_options(reader: Any, request: ReadRequest, options: Mapping[str, str]) -> None:
    """Give a reader other options than the user has set: Spark's own reader cannot forget one."""
    with suspended():
        fresh = reader._spark.readStream if request.streaming else reader._spark.read
        if request.schema is not None:
            fresh.schema(request.schema)
        fresh.format(request.format).options(**options)
    reader._jreader = fresh._jreader
    _state(reader).options = dict(options)


def _absolute(given: Any, interception: Interception) -> Any:
    """Paths as Spark gets them; values of other types are left to PySpark, which reports them."""
    if isinstance(given, str):
        return interception.absolute_path(given)
    if isinstance(given, list | tuple):
        return type(given)(_absolute(one, interception) for one in given)
    return given


def _paths(*given: Any) -> tuple[str, ...]:
    """The first value that names folders or files: one, or several in a sequence."""
    for one in given:
        if isinstance(one, str):
            return (one,)
        if isinstance(one, list | tuple) and one and all(isinstance(path, str) for path in one):
            return tuple(one)
    return ()


def _action(
    what: str, interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any
) -> Any:
    changes_table = "move the call above the function, or to a program of its own"
    interception.refuse_action(what, remedy=changes_table if what.startswith("DeltaTable") else None)
    return original(self, *args, **kwargs)


def _write(
    what: str, interception: Interception, original: Method, self: Any, *args: Any, **kwargs: Any
) -> Any:
    interception.refuse_write(what)
    return original(self, *args, **kwargs)


def _pivot(
    interception: Interception, original: Method, self: Any, pivot_col: str, values: Any = None
) -> Any:
    if values is None:
        remedy = 'name the values:   .pivot("COLUMN", ["VALUE", "VALUE"])'
        interception.refuse_action("pivot() without values", remedy=remedy)
    return original(self, pivot_col, values)


def _drop_duplicates(
    interception: Interception, original: Method, self: Any, subset: Any = None, *more: Any
) -> Any:
    if isinstance(interception.mode, Bounded):
        # Spark knows it for streams only; over all rows at once nothing is ever too late.
        return self.dropDuplicates(subset, *more)
    return original(self, subset, *more)


def _create_view(interception: Interception, original: Method, self: Any, name: str) -> Any:
    interception.views.append(name)
    return original(self, name)
