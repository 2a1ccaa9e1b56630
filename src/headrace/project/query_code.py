"""Describes everything that a query's plan depends on, through every function that it can call.

A query gives the same plan again if its code, the values that it reads and everything that it calls are
the same, and if nothing in it depends on the time, the environment, a file or a random number. Only these are
accepted: values that their text describes, functions of the pipeline's own files, and a list
of names of PySpark and Headrace. Everything else is `UnknownCode`.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, assert_never

import headrace
from headrace.declare.registry import spark
from headrace.model.queries import PythonQuery, Query, SqlQuery
from headrace.syntax.bindings import READS, codes
from headrace.syntax.ipynb import without_cell

_OTHER = frozenset({"LOAD_BUILD_CLASS", "STORE_GLOBAL", "DELETE_GLOBAL"})
_MODULES = frozenset(
    {"headrace", "pyspark.sql", "pyspark.sql.functions", "pyspark.sql.types", "pyspark.sql.window"}
)
_HEADRACE = frozenset({"read_kafka", "read_files", "parse_json", "spark"})
_UDF_FILES = ("pyspark/sql/udf.py", "pyspark/sql/pandas/functions.py")
_SCALARS = (str, bytes, int, float, bool, type(None), Decimal, date, timedelta)
_BUILTIN_NAMES = """
    abs all any bool bytes dict divmod enumerate filter float int isinstance len list map max min
    range repr reversed round slice sorted str sum tuple zip None True False ArithmeticError
    AssertionError Exception IndexError KeyError LookupError NotImplementedError RuntimeError
    TypeError ValueError
"""
_BUILTINS = frozenset(_BUILTIN_NAMES.split())
_METHOD_NAMES = """
    agg alias append apply asc asc_nulls_first asc_nulls_last astype avg between bitwiseAND
    bitwiseOR bitwiseXOR cast clear coalesce colRegex columns contains copy count createDataFrame
    crossJoin cube currentRow desc desc_nulls_first desc_nulls_last distinct drop dropDuplicates
    dropDuplicatesWithinWatermark dropFields drop_duplicates dropna eqNullSafe endswith except
    exceptAll explain extend fill fillna filter functions get getField getItem groupBy group_by
    groupby groupingSets hint ilike index insert intersect intersectAll isNaN isNotNull isNull isin
    items join keys like limit lower lstrip max mean melt min na name observe offset option options
    orderBy order_by otherwise over partitionBy partition_by pivot pop range rangeBetween read
    readStream removeprefix removesuffix repartition repartitionByRange replace rlike rollup
    rowsBetween rstrip sample sampleBy select selectExpr setdefault sort sortWithinPartitions split
    sql startswith strip substr subtract sum summary table title to toDF transform types unbounded
    unboundedFollowing unboundedPreceding union unionAll unionByName unpivot upper values when where
    window withColumn withColumnRenamed withColumns withColumnsRenamed withField withMetadata
    withWatermark zfill Window
"""
_METHODS = frozenset(_METHOD_NAMES.split())
_STREAM_METHODS = frozenset({"format", "load", "schema"})
"""Methods of a stream's reader. Those of the batch reader infer a schema from files."""
_CLASSES = (
    *("session.SparkSession", "dataframe.DataFrame", "dataframe.DataFrameNaFunctions"),
    *("dataframe.DataFrameStatFunctions", "group.GroupedData", "column.Column", "window.WindowSpec"),
    *("readwriter.DataFrameReader", "streaming.readwriter.DataStreamReader"),
)
"""The types that the methods above return, besides Python's own values."""
_VALUES = (*_SCALARS, list, tuple, dict, set, frozenset, FunctionType, type)


class UnknownCode(Exception):
    """A query uses something that may give another plan the next time."""


def describe_query(query: Query, files: frozenset[Path]) -> list[Any]:
    """Everything that a query's plan depends on, as text that is the same in every process. `files`: the
    pipeline's own Python and SQL files, whose content is known to be the same."""
    match query:
        case PythonQuery():
            walk = _Walk(files)
            try:
                walk.value(query.function)
            except RecursionError:
                raise UnknownCode("a value holds itself") from None
            if "read" in walk.names and not _STREAM_METHODS.isdisjoint(walk.names):
                raise UnknownCode("a batch reader may read files")
            return walk.found
        case SqlQuery():
            # What the query is made of is in the file, but for the values of its parameters.
            if not all(call.is_known for call in query.calls):
                raise UnknownCode("the columns of files are inferred")
            return [query.statement, query.edits, query.names.catalog, query.names.schema]
        case _:
            assert_never(query)


class _Walk:
    def __init__(self, files: frozenset[Path]) -> None:
        self.found: list[Any] = []
        self.names: set[str] = set()
        self._files = files
        self._seen: set[int] = set()

    def value(self, value: Any) -> None:
        """Describe a value that a query reaches by a name, an argument or a closure."""
        kind = type(value)
        if kind in _SCALARS:
            if isinstance(value, str) and ".`" in value:
                raise UnknownCode(f"SQL with {value!r} may read a path")
            self.found.append(repr(value))
        elif kind in (list, tuple, set, frozenset, dict):
            self.found.append([kind.__name__, len(value)])
            items = sorted(value, key=repr) if kind in (set, frozenset) else value
            self._all(part for item in value.items() for part in item) if kind is dict else self._all(items)
        elif kind is FunctionType:
            self._function(value)
        elif isinstance(value, ModuleType) and (value.__name__ in _MODULES or self._is_own(value)):
            self.found.append(["module", value.__name__])
        elif value is spark:
            self.found.append("spark")
        elif _is_spark_type(value):
            self.found.append(repr(value))
        else:
            raise UnknownCode(f"{value!r} is not known")

    def _all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.value(value)

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        self.found.append([function.__module__, function.__qualname__, code.co_firstlineno])
        if _is_known_function(function) or id(function) in self._seen:
            return
        if Path(without_cell(code.co_filename)) not in self._files:
            raise UnknownCode(f"{function.__qualname__} is not in the pipeline's files")
        self._seen.add(id(function))
        self.value([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:
                raise UnknownCode("a closure value is not bound yet") from None
        for inner in codes(code):
            self._code(inner, function)

    def _code(self, code: CodeType, function: FunctionType) -> None:
        self._all(constant for constant in code.co_consts if isinstance(constant, str))
        # The members of the pipeline's own modules that this code names.
        members: dict[str, Any] = {}
        for step in dis.get_instructions(code):
            name = str(step.argval)
            if step.opname in _OTHER:
                raise UnknownCode(f"{code.co_name} makes a class or assigns a global")
            if step.opname in READS:
                members |= self._reached(name, self._global(name, function))
            elif step.opname == "IMPORT_NAME":
                if name not in _MODULES:
                    raise UnknownCode(f"the import of {name} is not known")
            elif step.opcode in dis.hasname and name in members:
                members |= self._reached(name, members[name])
            elif step.opcode in dis.hasname and not _is_known(name):
                raise UnknownCode(f"{code.co_name} uses .{name}")
            elif step.opcode in dis.hasname:
                self.names.add(name)

    def _global(self, name: str, function: FunctionType) -> Any:
        try:
            # The globals of a bound query also look up what its file has bound later.
            return function.__globals__[name]
        except KeyError:
            if name not in _BUILTINS or not hasattr(builtins, name):
                raise UnknownCode(f"{name} is not known") from None
            return None

    def _reached(self, name: str, value: Any) -> dict[str, Any]:
        """Describe a value that code uses by name; returns the members that the code may use."""
        self.found.append(name)
        self.value(value)
        return dict(vars(value)) if isinstance(value, ModuleType) and self._is_own(value) else {}

    def _is_own(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return file is not None and Path(file) in self._files


def _is_known(name: str) -> bool:
    """Whether an attribute of this name has the same value in every process."""
    if name in _METHODS or name in _STREAM_METHODS or name in _HEADRACE:
        return True
    spark_modules = [sys.modules.get(f"pyspark.sql.{module}") for module in ("functions", "types", "window")]
    if any(name in getattr(module, "__all__", ()) for module in spark_modules):
        return True
    parts = [path.rpartition(".") for path in _CLASSES]
    classes = [getattr(sys.modules.get(f"pyspark.sql.{one}"), kind, None) for one, _, kind in parts]
    if name.startswith("_") or None in classes or None in spark_modules:
        return False
    # What no class and no module has can only be a column, as in `orders.amount`.
    modules = (headrace, sys.modules["pyspark.sql"], *spark_modules)
    return not any(hasattr(kind, name) for kind in (*classes, *_VALUES, *modules))


def _is_known_function(function: FunctionType) -> bool:
    """Whether it is one of Headrace's readers, a function of PySpark's for columns, or a Python UDF."""
    file = function.__code__.co_filename
    if getattr(headrace, function.__name__, None) is function:
        return function.__name__ in _HEADRACE
    functions = sys.modules.get("pyspark.sql.functions")
    if getattr(functions, function.__name__, None) is function:
        return function.__name__ in getattr(functions, "__all__", ())
    return file.endswith(_UDF_FILES) and _is_below(file, "pyspark")


def _is_below(file: str, package: str) -> bool:
    folders = getattr(sys.modules.get(package), "__path__", ())
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _is_spark_type(value: Any) -> bool:
    """Whether it is a data type, or a class of data types or of windows."""
    kind = value if isinstance(value, type) else type(value)
    return kind.__module__ in ("pyspark.sql.types", "pyspark.sql.window")
