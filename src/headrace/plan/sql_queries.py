"""Runs SQL texts: those of ``spark.sql``, and the queries of SQL files. Names and paths in a text mean the
same as in ``spark.read``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import ActionInQueryError, HeadraceError
from headrace.model.names import use_names
from headrace.model.queries import Edit, SqlQuery, table_functions
from headrace.plan.intercept import LOCATION_OPTION, Interception, in_force, suspended
from headrace.plan.modes import Loading
from headrace.plan.names import delta_path, quoted, quoted_parts
from headrace.runtime.lazy_pyspark import DataFrame, SparkSession
from headrace.sources.delta.reader import reads_feed
from headrace.sources.registry import kind_for
from headrace.sources.requests import ReadRequest
from headrace.syntax.locations import caller, located_at
from headrace.syntax.sql import INSERT, RUNS_STATEMENTS, SqlRelation, SqlText, expression_end, parse_sql
from headrace.syntax.statements import UseNames, parse_statement
from headrace.syntax.tokens import Cursor, quote_string

SQL_TEXT_ATTRIBUTE = "_headrace_sql_text"
"""An attribute of exceptions that Spark raises for an SQL text: the `SqlText`."""

_METADATA = "_metadata"
_METADATA_ITSELF = re.compile(r"\b_metadata\b(?!\s*\.)")
"""The hidden column as a whole, and not one of its fields."""
USE = re.compile(r"\s*(USE|SET\s+CATALOG)\s", re.IGNORECASE)
_numbers = itertools.count(1)


_WRITES_ROWS = frozenset(
    {
        *("InsertIntoStatement", "MergeIntoTable", "UpdateTable", "DeleteFromTable", "TruncateTable"),
        *("ReplaceTableAsSelect", "ReplaceTable", "DropTable", "OverwriteByExpression", "InsertIntoDir"),
        *RUNS_STATEMENTS.values(),
    }
)
"""Spark's names of the statements that change or remove rows; a file may create a table that it reads."""


def run_sql(interception: Interception, session: SparkSession, text: SqlText, args: Any = None) -> DataFrame:
    sql = read_sql(interception, session, text)
    with suspended():
        try:
            return session.sql(sql.edited, args)
        except Exception as error:
            setattr(error, SQL_TEXT_ATTRIBUTE, sql)
            raise


def run_text(interception: Interception, session: SparkSession, text: str, args: Any = None) -> DataFrame:
    """The DataFrame of an SQL text in Python code, which may have table functions."""
    location = caller(interception.root)
    calls = tuple(table_functions(text, location))
    if not calls:
        return run_sql(interception, session, SqlText(text, location), args)
    query = SqlQuery(statement=text, begins=location, location=location, start=0, stop=len(text), calls=calls)
    return build_frame(query, interception, session, args)


def use_in_python(interception: Interception, session: SparkSession, text: str) -> DataFrame:
    """Set the catalog and the schema for the rest of a Python file, as ``USE`` does in an SQL file."""
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


def build_frame(
    query: SqlQuery, interception: Interception, session: SparkSession, args: Any = None
) -> DataFrame:
    interception = interception.using(query.names)
    with located_at(query.location), in_force(interception):
        statement = SqlText(query.statement, query.begins, query.edits)
        text = statement.with_edits(
            Edit(0, query.start, query.prefix), *_calls(query), Edit(query.stop, len(statement.edited), "")
        )
        frame = run_sql(interception, session, text.with_edits(), args)
        if _uses_metadata(query) and not _METADATA_ITSELF.search(query.statement):
            frame = frame.drop(_METADATA)
        return frame if query.then is None else query.then(frame)


def _uses_metadata(query: SqlQuery) -> bool:
    """Whether a query may use the hidden column of files."""
    return bool(query.calls) and _METADATA in query.statement


def _calls(query: SqlQuery) -> Iterator[Edit]:
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
    java_frame: Any = frame._jdf
    hidden = java_frame.queryExecution().analyzed().metadataOutput()
    return any(str(hidden.apply(index).name()) == _METADATA for index in range(hidden.size()))


_ALIAS = re.compile(
    r"\s+(?!(?:WHERE|GROUP|ORDER|HAVING|LIMIT|OFFSET|JOIN|LEFT|RIGHT|FULL|INNER|CROSS|NATURAL|SEMI|ANTI|ON|USING"
    r"|UNION|EXCEPT|MINUS|INTERSECT|LATERAL|WINDOW|PIVOT|UNPIVOT|CLUSTER|DISTRIBUTE|SORT|QUALIFY|SET)\b)"
    r"(?:`|\w)",
    re.IGNORECASE,
)
"""An alias behind a relation: a name that is not the next clause of the query."""
_LITERAL = re.compile(r"""'[^'\\]*'|"[^"\\]*"|\d+""")
_TRAVEL = re.compile(
    r"(?:FOR\s+)?(?:SYSTEM_)?(VERSION|TIMESTAMP|TIME)\s+AS\s+OF\s+(.*)", re.IGNORECASE | re.DOTALL
)
_SAMPLE = re.compile(r"\s+TABLESAMPLE\s*\([^)]*\)(?:\s*REPEATABLE\s*\(\s*\d+\s*\))?", re.IGNORECASE)
_OPTIONS = re.compile(r"""\s+WITH\s*\((?:'(?:[^'\\]|\\.)*'|[^'")]|"(?:[^"\\]|\\.)*")*\)""", re.IGNORECASE)


def read_sql(interception: Interception, session: SparkSession, sql: SqlText) -> SqlText:
    """An SQL text with the edits that its reads need."""
    from pyspark.errors import ParseException

    try:
        parsed = parse_sql(session, sql.text)
    except ParseException:
        # Spark's own call reports it, with the user's line on the stack.
        return sql
    if parsed.writes is not None:
        what = f"spark.sql with {parsed.writes}"
        if parsed.writes in _WRITES_ROWS:
            interception.refuse_write(what)
        else:
            interception.refuse_action(
                what, remedy="move the call out of the function, above the declarations"
            )
    edits: list[Edit] = []
    for relation in parsed.relations:
        edits.extend(_read(interception, session, sql, relation, parsed.writes))
    return replace(sql, edits=tuple(edits))


def _read(
    interception: Interception, session: SparkSession, sql: SqlText, relation: SqlRelation, writes: str | None
) -> Iterator[Edit]:
    mapped = interception.mapped(session, relation.parts)
    if mapped is not None and mapped.path is not None:
        if writes is not None and not relation.streaming:
            yield from _name_path(sql.text, relation, mapped.path, is_named=writes != INSERT)
            return
        if relation.travel is not None and (travel := _travel_options(session, sql.text, relation)):
            yield Edit(*relation.travel, "")
            relation = replace(relation, options={**relation.options, **travel})
        yield from _read_path(interception, session, sql, relation, "delta", mapped.path)
        return
    parts = relation.parts if mapped is None else mapped.parts
    name = interception.dataset(session, parts)
    if name is None and mapped is not None:
        yield Edit(relation.start, relation.stop + 1, quoted_parts(parts))
        return
    if name is None:
        yield from _read_folder(interception, session, sql, relation)
        return
    location = sql.locate_unedited(relation.start, relation.stop, interception.root)
    request = ReadRequest(streaming=relation.streaming, format="delta", options=relation.options)
    added = interception.reader_options(request, location)
    if interception.tables is not None:
        answer = interception.ask(
            name,
            streaming=relation.streaming,
            changes=reads_feed(relation.options),
            options=relation.options,
            location=location,
            parts=parts,
        )
        if answer.frame is not None:
            # The columns of a relation are qualified by its name, so the view keeps it.
            mine = interception.replaced.setdefault(name.name.casefold(), name) == name
            yield from _replaced(
                sql.text, relation, answer.frame, name.name if mine else None, None if mine else name.name
            )
            return
        if interception.stands_in and relation.travel is not None:
            # An empty stand-in has no history; its columns are those of any version.
            yield Edit(*relation.travel, "")
    is_spark_name = relation.parts == (name.schema, name.name)[-len(relation.parts) :]
    if not is_spark_name or (interception.names.qualifies and len(relation.parts) == 1):
        yield Edit(relation.start, relation.stop + 1, quoted(name))
    if relation.streaming:
        if LOCATION_OPTION in added:
            # One for the whole text: Spark takes equal relations of a text for one.
            added[LOCATION_OPTION] = str(caller(interception.root))
        yield from _with_options(relation, added)


def _read_folder(
    interception: Interception, session: SparkSession, sql: SqlText, relation: SqlRelation
) -> Iterator[Edit]:
    """A folder in an SQL text, such as ``STREAM delta.`/data/orders```: read as a reader reads it.

    Spark's own SQL knows no stream of a Delta table by its path; batch reads are left to Spark.
    """
    if len(relation.parts) != 2:
        return
    format, path = relation.parts
    if not kind_for(format.lower()).reader.has_path:
        return
    if not relation.streaming and interception.sources is None:
        absolute = interception.absolute_path(path).replace("`", "``")
        yield Edit(relation.start, relation.stop + 1, f"{format}.`{absolute}`")
        return
    yield from _read_path(interception, session, sql, relation, format, path)


def _read_path(
    interception: Interception,
    session: SparkSession,
    sql: SqlText,
    relation: SqlRelation,
    format: str,
    path: str,
) -> Iterator[Edit]:
    """Put a reader's DataFrame in the place of a relation."""
    reader = session.readStream if relation.streaming else session.read
    try:
        frame = reader.format(format).options(**relation.options).load(path)
    except HeadraceError as error:
        location = sql.locate_unedited(relation.start, relation.stop, interception.root)
        raise error.with_(location=location) from error.__cause__
    # The columns of a table are qualified by the last part of its name.
    alias = None if path == relation.parts[-1] else relation.parts[-1]
    yield from _replaced(sql.text, relation, frame, None, alias)


def _travel_options(session: SparkSession, text: str, relation: SqlRelation) -> dict[str, str]:
    """The options of a reader for ``VERSION AS OF`` or ``TIMESTAMP AS OF``."""
    found = relation.travel and _TRAVEL.fullmatch(text, *relation.travel)
    if not found:
        return {}
    kind, value = "versionAsOf" if found[1].lower() == "version" else "timestampAsOf", found[2]
    if _LITERAL.fullmatch(value):
        return {kind: value.strip("'\"")}
    with suspended():
        return {kind: str(session.sql(f"SELECT CAST(CAST({value} AS TIMESTAMP) AS STRING)").head()[0])}


def _name_path(text: str, relation: SqlRelation, path: str, *, is_named: bool) -> Iterator[Edit]:
    """Put the path of a mapped table in the place of its name in a command, which keeps its options."""
    yield Edit(relation.start, relation.stop + 1, delta_path(path))
    end = _clauses_end(text, relation)
    if (is_named or not relation.is_target) and not _ALIAS.match(text, end):
        yield Edit(end, end, f" AS {quoted_parts((relation.parts[-1],))}")


def _clauses_end(text: str, relation: SqlRelation) -> int:
    """The index behind the clauses that belong to a relation, where an alias can stand."""
    end = expression_end(text, relation) if relation.travel is None else relation.travel[1]
    for clause in (_OPTIONS, _SAMPLE):
        found = clause.match(text, end)
        end = found.end() if found else end
    return end


def _with_options(relation: SqlRelation, options: Mapping[str, str]) -> Iterator[Edit]:
    listed = ", ".join(f"'{key}' = {quote_string(value)}" for key, value in options.items())
    if listed and relation.options_at is None:
        yield Edit(relation.ends, relation.ends, f" WITH ({listed})")
    elif listed and relation.options_at is not None:
        yield Edit(relation.options_at, relation.options_at, f"{listed}, ")


def _replaced(
    text: str, relation: SqlRelation, frame: DataFrame, name: str | None, alias: str | None = None
) -> Iterator[Edit]:
    """Put a temporary view of a DataFrame in the place of a relation."""
    # SQL knows temporary views by a name of one part only.
    view = name or f"headrace_read_{next(_numbers)}"
    with suspended():
        frame.createOrReplaceTempView(view)
    end, place = expression_end(text, relation), _clauses_end(text, relation)
    named = "" if alias is None or _ALIAS.match(text, place) else f" AS {quoted_parts((alias,))}"
    if relation.streaming and not frame.isStreaming:
        yield Edit(relation.begins, end, f"`{view}`")
    else:
        yield Edit(relation.start, relation.stop + 1, f"`{view}`")
        if end > relation.ends:
            # The DataFrame was read with these options.
            yield Edit(relation.ends, end, "")
    if named:
        yield Edit(place, place, named)
