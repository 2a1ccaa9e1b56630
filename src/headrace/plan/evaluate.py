"""Runs the user's code: a pipeline's files while they are loaded, and its queries in a plan or a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, assert_never

from headrace import errors
from headrace.contracts.expectations import counted, guarded
from headrace.errors import HeadraceError, SourceLocation, did_you_mean, nearest
from headrace.model.declarations import AppendFlow, TemporaryView
from headrace.model.names import TableName
from headrace.model.notes import suggestions
from headrace.model.project import ProjectSettings
from headrace.model.queries import PythonQuery, Query, SqlQuery, running
from headrace.plan.function_patches import SCHEMA_REMEDIES
from headrace.plan.intercept import Interception, in_force, suspended
from headrace.plan.logical import METADATA
from headrace.plan.modes import Bounded, Loading, Running, Sending, SourceHook, TableAccess
from headrace.plan.names import find_dataset, label_of, split_name
from headrace.plan.patches import install
from headrace.plan.spark_errors import explain_condition, find_missing
from headrace.plan.sql_queries import SQL_TEXT_ATTRIBUTE, build_frame
from headrace.plan.stages import Declared, Plan
from headrace.runtime.gateway import active_session, frame_of_plan
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sinks.delta.table import register_table
from headrace.storage.mapped_files import find_unmapped, mapping_files
from headrace.storage.table_log import is_table
from headrace.syntax.bindings import required_parameters
from headrace.syntax.locations import argument_location, innermost, located_at, pinpoint, return_location
from headrace.syntax.sql import SqlText


class Unresolved(Exception):
    """A dataset that a query reads could not be resolved; the reason has been reported already."""


@contextmanager
def loading(
    settings: ProjectSettings, session: Callable[[], SparkSession], sources: SourceHook | None = None
) -> Iterator[Callable[[], SparkSession]]:
    """Intercept what a pipeline's files ask of Spark at module level; actions are allowed."""

    def opened() -> SparkSession:
        with suspended():
            return session()

    install()
    with in_force(Interception(settings=settings, mode=Loading(session=opened, sources=sources))):
        yield opened


def evaluate(session: SparkSession, declared: Declared, plan: Plan, mode: Running | Bounded) -> DataFrame:
    """Build a query's DataFrame over the real tables; its code gets this session, whatever it asks for."""
    known = {str(one.name).casefold(): one for one in plan.datasets}
    tables = mode.tables if isinstance(mode, Bounded) else None
    frames: dict[TableName, DataFrame] = {}

    def interception() -> Interception:
        return Interception(
            settings=plan.project,
            mode=mode,
            session=session,
            tables=read,
            declared=lambda name, parts: find_dataset(known, name, parts) is not None,
        )

    def read(access: TableAccess) -> DataFrame | None:
        view = find_dataset(known, access.name, access.parts)
        if not isinstance(view, TemporaryView):
            return tables(access) if tables else None
        if view.name not in frames:
            name = view.name.short
            with session_settings(session, view.spark_conf, name=name, location=view.location):
                frame = call_query(view.query, interception(), name=name)
            with suspended():
                if isinstance(mode, Running):
                    frame = counted(frame, view)
                frames[view.name] = guarded(frame, view.expectations)
        return frames[view.name]

    name = declared.name.short if isinstance(declared, TemporaryView) else label_of(declared)
    with active_session(session):
        frame = call_query(declared.query, interception(), name=name)
        with suspended():
            if isinstance(declared, AppendFlow) and declared.groups is not None:
                frame = without_final_sort(frame) or frame
        return frame


@contextmanager
def sending(session: SparkSession, plan: Plan) -> Iterator[None]:
    """Let the function of a sink find the tables of the pipeline and those of `tables` by their names."""
    known = {str(one.name).casefold(): one for one in plan.datasets}
    storage = plan.project.storage

    def open_table(access: TableAccess) -> None:
        path = storage.table(access.name)
        if is_table(path):
            register_table(session, access.name, path)

    install()
    interception = Interception(
        settings=plan.project,
        mode=Sending(),
        session=session,
        tables=open_table,
        declared=lambda name, parts: find_dataset(known, name, parts) is not None,
    )
    with _intercepting(interception):
        yield


def call_query(query: Query, interception: Interception, *, name: str) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    location = query.location
    frame = run_code(lambda: _frame(query, interception, name), interception, name=name, location=location)
    if not isinstance(frame, DataFrame):
        given = "nothing" if frame is None else f"a {type(frame).__name__}"
        raise errors.QueryInvalidError(
            f"the query of `{name}` returns {given}, not a DataFrame",
            location=return_location(location),
            remedies=[
                'return the rows as a DataFrame, such as:   return spark.readStream.table("NAME")',
                'or, in a materialized view:   return spark.read.table("NAME")',
            ],
            params={"name": name, "returned": type(frame).__name__},
        )
    return frame if interception.session is None else bound(frame, interception.session)


def run_code(
    function: Callable[[], Any], interception: Interception, *, name: str, location: SourceLocation
) -> Any:
    try:
        install()
        with _intercepting(interception), running(name), located_at(None):
            return function()
    except Unresolved:
        raise
    except HeadraceError as error:
        place = innermost(error.__traceback__, interception.root) or location
        raise error.with_location(place) from error.__cause__
    except Exception as error:
        place = innermost(error.__traceback__, interception.root) or location
        unmapped = find_unmapped(error, interception.settings, place)
        raise unmapped or _failed(error, interception.root, name, location) from error


@contextmanager
def _intercepting(interception: Interception) -> Iterator[None]:
    """Intercept the reads of the user's code that runs in the block, and map its paths."""
    with in_force(interception), mapping_files(interception.settings.paths):
        yield


def _frame(query: Query, interception: Interception, name: str) -> Any:
    match query:
        case PythonQuery():
            if needed := required_parameters(query.function):
                raise errors.QueryInvalidError(
                    f"the query of `{name}` has parameters without a default: {', '.join(needed)}",
                    location=query.location,
                    remedies=["give each parameter a default; in a loop: def query(item=item)"],
                    params={"name": name, "arguments": needed},
                )
            with in_force(interception.using(query.names)):
                return query.function()
        case SqlQuery():
            assert interception.session is not None
            return build_frame(query, interception, interception.session)
        case _:
            assert_never(query)


_UNKNOWN_FUNCTION = re.compile(r"routine (?:`[^`]*`\.)*`([^`]+)`")


def _remedies(condition: str, text: str) -> list[str]:
    """What helps with a misspelt function, and with errors that pipelines from Databricks often have."""
    if condition == "UNRESOLVED_ROUTINE":
        from pyspark.sql import functions

        unknown = _UNKNOWN_FUNCTION.search(text)
        return [] if unknown is None else list(did_you_mean(unknown[1], functions.__all__))
    if condition == "REQUIRES_SINGLE_PART_NAMESPACE":
        return ["write the expression of the function: functions of a catalog do not exist here"]
    if condition == "DATA_SOURCE_NOT_FOUND":
        return [
            'add its package to the spec:   configuration: {spark.jars.packages: "GROUP:NAME:VERSION"}',
            'or read a table of a database with format("jdbc")',
        ]
    return []


_NO_CLIENT = re.compile(r'No FileSystem for scheme "?(\w+)')
S3_CLIENT = (
    "let Spark have the client of S3: add a key to headrace.yml, such as   "
    "object_storage: {s3: {region: us-east-1}}"
)


def _failed(error: Exception, root: Path, name: str, location: SourceLocation) -> HeadraceError:
    from pyspark.errors import PySparkException

    place = innermost(error.__traceback__, root) or location
    if _lacks_schema(error):
        return errors.FeatureUnsupportedError(
            f"the query of `{name}` calls from_json without a schema, which only Databricks infers",
            location=place,
            remedies=SCHEMA_REMEDIES,
            params={"what": "from_json"},
        )
    params: dict[str, Any] = {"name": name, "exception": type(error).__name__}
    facts: list[str] = []
    of_ansi: list[str] = []
    remedies = suggestions(error)
    text = str(error).strip() or type(error).__name__
    if isinstance(error, PySparkException):
        params["condition"] = error.getCondition()
        text = shortened(text)
        condition = str(error.getCondition())
        of_ansi, settings = explain_condition(condition, text, location)
        remedies = [*remedies, *_remedies(condition, text), *settings]
        if condition == "UNRESOLVED_ROUTINE" and (unknown := _UNKNOWN_FUNCTION.search(text)) is not None:
            text = f"the function `{unknown[1]}` does not exist"
        if isinstance(sql := getattr(error, SQL_TEXT_ATTRIBUTE, None), SqlText):
            place = _place_in_sql(error, sql, root) or place
            line, column = _position_in_sql(error)
            if line and place.column is None:
                facts.append(f"in the SQL text: line {line}, column {column}")
        if (column_error := missing_column(error, name, place, root)) is not None:
            return column_error
    elif (java := getattr(error, "java_exception", None)) is not None:
        # PySpark does not convert every exception of Spark's.
        text = str(java.getMessage())
        if (missing := find_missing(text, place)) is not None:
            text, remedies = missing
    else:
        text = f"{type(error).__name__}: {text}"
    if (client := _NO_CLIENT.search(text)) is not None and client[1] in ("s3", "s3a"):
        remedies = [S3_CLIENT]
    summary, *rest = text.splitlines()
    return errors.QueryFailedError(
        f"the query of `{name}` failed: {summary}",
        location=place,
        facts=[*[*facts, *(line for line in rest if line.strip())][:12], *of_ansi],
        remedies=remedies or [f"correct {place}; --debug prints the stack trace"],
        params=params,
    )


def _lacks_schema(error: Exception) -> bool:
    """Whether ``from_json`` has failed in SQL because its schema is NULL; in Python the call is refused."""
    condition = str(getattr(error, "getCondition", lambda: "")())
    return condition.startswith("INVALID_SCHEMA") and re.search(r"\bNULL\b", str(error)) is not None


def missing_column(
    error: Any, name: str, location: SourceLocation, root: Path
) -> errors.ColumnNotFoundError | None:
    """The error for a column that Spark cannot resolve; ``None`` if it has failed for another reason."""
    condition = str(error.getCondition())
    if not condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD", "FIELD_NOT_FOUND")):
        return None
    parameters = error.getMessageParameters() or {}
    parts = split_name(parameters.get("objectName") or parameters.get("fieldName") or "") or ()
    listed = parameters.get("proposal") or parameters.get("fields") or ""
    known = [part[-1] for text in listed.split(", ") if (part := split_name(text))]
    column = ".".join(parts)
    if parts[:1] == (METADATA,):
        return no_metadata(
            name, "its source", location if location.column else pinpoint(location, column, root)
        )
    meant = nearest(parts[-1], known) if parts else None
    return errors.ColumnNotFoundError(
        f"the query of `{name}` uses the column `{column}`, which does not exist",
        location=location if location.column else pinpoint(location, column, root),
        facts=[f"similar columns: {', '.join(known)}"] if known and meant is None else [],
        remedies=[f"did you mean `{meant}`?" if meant else "correct the name, or add the column first"],
        params={"name": name, "column": column, "suggestion": meant, "condition": condition},
    )


def no_metadata(name: str, source: str, location: SourceLocation) -> errors.ColumnNotFoundError:
    """The error for the hidden column of files, in a stream that does not have it."""
    return errors.ColumnNotFoundError(
        f"the query of `{name}` uses the column `{METADATA}`, which {source} does not have",
        location=location,
        facts=["streams of files have this column; streams of Delta tables have it on Databricks only"],
        remedies=[
            f'keep it in the table, where the files are read: .select("*", "{METADATA}.file_path")',
            "or read the table as a batch, in a materialized view",
        ],
        params={"name": name, "column": METADATA, "suggestion": None},
    )


def shortened(text: str) -> str:
    """A Spark error's text without the plan, the state's code and the excerpt of the query."""
    text = text.split("\n\n== SQL", 1)[0].split("\n== SQL", 1)[0].split("\n== DataFrame ==", 1)[0]
    text = re.split(r";\n['~+:!\w]", text, maxsplit=1)[0]
    text = re.sub(r"\.? ?SQLSTATE: \w+", "", text)
    text = re.sub(r"(; line \d+,? pos \d+| \(line \d+, pos \d+\))", "", text)
    text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", text.strip())
    return text.strip().rstrip(";")


def _place_in_sql(error: Any, sql: SqlText, root: Path) -> SourceLocation | None:
    for context in error.getQueryContext() or ():
        try:
            start, stop = int(context.startIndex()), int(context.stopIndex())
        except Exception:
            # A context of the DataFrame API has no indexes, and says so by raising.
            continue
        if start >= 0:
            found = sql.locate(start, stop, root)
            return found if found.column is not None else None
    line, column = _position_in_sql(error)
    # Only in an SQL file is the location of each character known.
    if sql.location.column is None or line is None or column is None:
        return None
    above = sum(len(one) for one in sql.edited.splitlines(keepends=True)[: line - 1])
    return sql.locate(above + column - 1, above + column - 1, root)


def _position_in_sql(error: BaseException) -> tuple[int | None, int | None]:
    found = re.search(r"line (\d+),? pos (\d+)", str(error))
    return (int(found[1]), int(found[2]) + 1) if found else (None, None)


def bound(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same query in another session.

    A DataFrame that was built at module level belongs to the pipeline's session. A flow runs in a clone
    with its own settings, and several flows may have the same DataFrame.
    """
    theirs: Any = frame.sparkSession._jsparkSession
    if theirs.equals(session._jsparkSession):
        return frame
    with suspended():
        return frame_of_plan(session, frame._jdf.queryExecution().analyzed())


@contextmanager
def session_settings(
    session: SparkSession, settings: Mapping[str, str], *, name: str, location: SourceLocation
) -> Iterator[None]:
    """Set a session's settings for the code within."""
    from pyspark.errors import PySparkException

    before = {key: session.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            try:
                with suspended():
                    session.conf.set(key, value)
            except PySparkException as error:
                raise errors.QueryFailedError(
                    f"Spark refuses the setting {key} of `{name}`: {shortened(str(error))}",
                    location=argument_location(location, "spark_conf", key),
                    remedies=[
                        "remove it from spark_conf; settings for the whole pipeline go under "
                        "`configuration` in headrace.yml"
                    ],
                    params={"name": name, "setting": key, "condition": error.getCondition()},
                ) from error
        yield
    finally:
        restore_settings(session, before)


def restore_settings(session: SparkSession, before: Mapping[str, str | None]) -> None:
    """Set settings of a session to earlier values; ``None`` removes one."""
    from pyspark.errors import PySparkException

    for key, value in before.items():
        # A setting that cannot be changed has not been changed either.
        with suppress(PySparkException):
            if value is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, value)


_KEEPS_ROWS = frozenset({"Project", "Filter", "SubqueryAlias", "View"})
"""The nodes that give the same rows for rows in another order."""


def without_final_sort(frame: DataFrame) -> DataFrame | None:
    """The query without the sort of its result; ``None`` if it does not sort its result."""
    node: Any = frame._jdf.queryExecution().analyzed()
    above = []
    while (kind := str(node.nodeName())) in _KEEPS_ROWS:
        above.append(node)
        node = node.child()
    if kind != "Sort":
        return None
    jvm: Any = frame.sparkSession._jvm
    node = node.child()
    for parent in reversed(above):
        node = parent.withNewChildren(jvm.PythonUtils.toSeq([node]))
    return frame_of_plan(frame.sparkSession, node)
