"""The DataFrames of SQL texts: those of ``spark.sql``, and the queries of SQL files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import ActionInQueryError
from headrace.model.names import use_names
from headrace.model.queries import Edit, SqlQuery, table_functions
from headrace.plan.intercept import Interception, in_force, suspended
from headrace.plan.modes import Loading
from headrace.plan.sql_reads import read_sql
from headrace.syntax.locations import caller, located_at
from headrace.syntax.sql import SqlText
from headrace.syntax.statements import UseNames, parse_statement
from headrace.syntax.tokens import Cursor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SQL_TEXT_ATTRIBUTE = "_headrace_sql_text"
"""An attribute of exceptions that Spark raises for an SQL text: the `SqlText`."""

_METADATA = "_metadata"
_METADATA_ITSELF = re.compile(r"\b_metadata\b(?!\s*\.)")
"""The hidden column as a whole, and not one of its fields."""
_USE = re.compile(r"\s*(USE|SET\s+CATALOG)\s", re.IGNORECASE)
_numbers = itertools.count(1)


def run_sql(interception: Interception, session: SparkSession, text: SqlText, args: Any = None) -> DataFrame:
    """The DataFrame of an SQL text, whose reads are treated as a reader's."""
    sql = read_sql(interception, session, text)
    with suspended():
        try:
            return session.sql(sql.edited, args)
        except Exception as error:
            setattr(error, SQL_TEXT_ATTRIBUTE, sql)
            raise


def build_frame(query: SqlQuery, interception: Interception) -> DataFrame:
    """The DataFrame of a query of an SQL file."""
    assert interception.session is not None
    return _build(query, interception, interception.session)


def run_text(interception: Interception, session: SparkSession, text: str, args: Any = None) -> DataFrame:
    """The DataFrame of an SQL text in Python code, which may have table functions.

    Args:
        args: The values of its parameters, as ``spark.sql`` takes them.
    """
    location = caller(interception.root)
    calls = tuple(table_functions(text, location))
    if not calls:
        return run_sql(interception, session, SqlText(text, location), args)
    query = SqlQuery(statement=text, begins=location, location=location, start=0, stop=len(text), calls=calls)
    return _build(query, interception, session, args)


def is_use(text: str) -> bool:
    """Whether an SQL text in Python code is ``USE``, or ``SET CATALOG``."""
    return _USE.match(text) is not None


def use_in_python(interception: Interception, session: SparkSession, text: str) -> DataFrame:
    """Set the catalog and the schema for the rest of a Python file, as ``USE`` does in an SQL file.

    Raises:
        ActionInQueryError: A query function runs the statement.
        SqlInvalidError: The statement is not valid.
    """
    location = caller(interception.root)
    shown = " ".join(text.split())
    if not isinstance(interception.mode, Loading):
        raise ActionInQueryError(
            f"a query calls spark.sql({shown!r}), which would change what names mean in other queries",
            location=location,
            remedies=["move the call out of the function, above the declarations that it applies to"],
            params={"action": shown},
        )
    statement = parse_statement(Cursor(SqlText(text, location)))
    assert isinstance(statement, UseNames)
    use_names(statement.catalog, statement.schema, interception.settings.catalog)
    with suspended():
        return session.range(0).select()


def _build(query: SqlQuery, interception: Interception, session: SparkSession, args: Any = None) -> DataFrame:
    interception = interception.using(query.names)
    with located_at(query.location), in_force(interception):
        statement = SqlText(query.statement, query.begins, query.edits)
        text = statement.with_edits(
            Edit(0, query.start, query.prefix),
            *_calls(query),
            Edit(query.stop, len(statement.edited), ""),
        )
        frame = run_sql(interception, session, text.with_edits(), args)
        if _uses_metadata(query) and not _METADATA_ITSELF.search(query.statement):
            frame = frame.drop(_METADATA)
        return frame if query.then is None else query.then(frame)


def _uses_metadata(query: SqlQuery) -> bool:
    """Whether a query may use the hidden column of files."""
    return bool(query.calls) and _METADATA in query.statement


def _calls(query: SqlQuery) -> Iterator[Edit]:
    """Put a temporary view in the place of each table function."""
    yield from dict.fromkeys(edit for call in query.calls for edit in call.hides)
    for call in query.calls:
        with located_at(call.location):
            frame = call.read()
        view = f"headrace_call_{next(_numbers)}"
        with suspended():
            if _uses_metadata(query) and _hides_metadata(frame):
                # A view has no hidden columns.
                frame = frame.select("*", _METADATA)
            frame.createOrReplaceTempView(view)
        yield Edit(call.start, call.stop, view)


def _hides_metadata(frame: DataFrame) -> bool:
    """Whether a DataFrame has the hidden column of files."""
    java_frame: Any = frame._jdf
    hidden = java_frame.queryExecution().analyzed().metadataOutput()
    return any(str(hidden.apply(index).name()) == _METADATA for index in range(hidden.size()))
