"""SQL files: their statements declare what the decorators of Python files declare."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_never

from headrace.declare.cdc import create_auto_cdc_flow, create_auto_cdc_from_snapshot_flow
from headrace.declare.expectations import build_expectations
from headrace.declare.lakeflow import check_path
from headrace.declare.python import Scope
from headrace.declare.registry import ActivePipeline, Registry
from headrace.declare.sql_functions import find_calls
from headrace.errors import PipelineFileFailedError, SourceLocation, SqlInvalidError, SqlParameterUnsetError
from headrace.model.declarations import (
    AppendFlow,
    Expectation,
    MaterializedView,
    RefreshFlow,
    StreamingTable,
    TemporaryView,
)
from headrace.model.names import names_in_use, separate_names, use_names
from headrace.model.queries import Edit, SqlQuery
from headrace.syntax.cdc_statement import CdcFlow, ColumnChoice, without_live
from headrace.syntax.locations import display_path, located_at
from headrace.syntax.sql import SqlText
from headrace.syntax.statements import (
    AlterColumns,
    Constraint,
    CreateDataset,
    InsertFlow,
    SetSetting,
    UseNames,
    parse_statement,
)
from headrace.syntax.tokens import (
    Cursor,
    SqlTokenError,
    Token,
    build_note,
    find_cells,
    quote_string,
    split_statements,
    tokenize,
)

_DECLARES = frozenset({"CREATE", "APPLY", "AUTO", "SET", "USE"})
"""What the statements of a notebook are read for; the plan has a note for each other one."""
_PARAMETER = re.compile(r"\$\{\s*([\w.:-]+)\s*\}")
_REMEDIES = {
    "SCHEDULE": "start `headrace run` at these times",
    "TRIGGER": "run continuously: headrace run --continuous",
    "CLUSTER BY AUTO": "name the columns: CLUSTER BY (columns)",
}
"""What has the effect of a clause that is ignored."""


def declare_file(file: Path, active: ActivePipeline) -> None:
    path = display_path(file, active.settings.root)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PipelineFileFailedError(
            f"{path} is not valid UTF-8",
            location=SourceLocation(path, 1),
            remedies=["save the file as UTF-8"],
            params={"path": path, "exception": type(error).__name__},
        ) from error
    is_notebook = text.startswith("-- Databricks notebook source")
    with separate_names():
        declare_text(text, path, active, is_notebook=is_notebook)
    if is_notebook and active.registry is not None:
        for cell in find_cells(text):
            if cell.magic != "md":
                active.registry.add_note(build_note(cell, path))


def declare_text(text: str, path: str, active: ActivePipeline, *, is_notebook: bool = False) -> None:
    """Declare what statements declare; queries of a notebook are not run: the plan has notes of them."""
    scope = _File(active)
    for statement in split_text(text, path):
        if is_notebook and (word := statement.text.split(None, 1)[0].upper()) not in _DECLARES:
            active.note(f"the statement {word} is not run", statement.location)
        else:
            scope.declare(statement)


def split_text(text: str, path: str) -> Iterator[SqlText]:
    """The statements of a text; a comment, a string or a name without an end is an error."""
    whole = SqlText(text, SourceLocation(path, 1, 1, is_sql=True))
    try:
        found = list(split_statements(text))
    except SqlTokenError as error:
        raise open_literal(whole, error) from error
    for start, stop in found:
        yield SqlText(text[start:stop], replace(whole.locate(start, start, None), length=None))


def open_literal(text: SqlText, error: SqlTokenError) -> SqlInvalidError:
    """The error for a comment, a string or a name that has no end, or a wrong literal in hexadecimal."""
    if error.opening[:1].lower() == "x":
        return SqlInvalidError(
            f"{error.opening} is not a value in hexadecimal: it may have the digits 0-9 and A-F only",
            location=text.locate(error.index, error.index + len(error.opening) - 1, None),
            remedies=["write such as X'0AFF'"],
            params={"problem": "hexadecimal"},
        )
    kind = {"/*": "comment", "`": "name in backquotes"}.get(error.opening, "string")
    return SqlInvalidError(
        f"this {kind} has no end",
        location=text.locate(error.index, error.index + len(error.opening) - 1, None),
        remedies=[f"end it with {'*/' if error.opening == '/*' else error.opening[-1]}"],
        params={"problem": "no end"},
    )


@dataclass
class _File:
    active: ActivePipeline
    settings: dict[str, str] = field(default_factory=dict)  # the settings of ``SET`` so far

    @property
    def registry(self) -> Registry:
        assert self.active.registry is not None
        return self.active.registry

    def declare(self, written: SqlText) -> None:
        text = with_values(written, {**self.active.settings.configuration, **self.settings})
        try:
            statement = parse_statement(Cursor(text))
        except SqlTokenError as error:
            raise open_literal(text, error) from error
        with located_at(getattr(statement, "location", None)):
            match statement:
                case SetSetting(key, value):
                    if value is not None:
                        self.settings[key] = value
                case UseNames(catalog, schema):
                    use_names(catalog, schema, self.active.settings.catalog)
                case CreateDataset():
                    self._dataset(statement)
                case InsertFlow():
                    scope = Scope("CREATE FLOW", None)
                    target = scope.table_name(".".join(statement.target))
                    query = self._query(statement.query, statement.location)
                    name = scope.arguments.flow_name(statement.name)
                    settings = scope.flow_settings(self.settings, None, once=statement.once)
                    scope.register(AppendFlow(name=name, target=target, query=query, **settings))
                case CdcFlow():
                    self._change_flow(statement)
                case AlterColumns():
                    scope = Scope("ALTER TABLE", None)
                    table = scope.table_name(".".join(statement.name))
                    changed = scope.changed_columns(statement.renamed, statement.dropped)
                    self.registry.change_columns(table, statement.location, changed)
                case _:
                    assert_never(statement)

    def _dataset(self, statement: CreateDataset) -> None:
        call = f"CREATE {'TEMPORARY VIEW' if statement.kind == 'view' else statement.kind.upper()}"
        scope = Scope(call, None)
        name = scope.table_name(".".join(without_live(statement.name)))
        for clause, location in statement.ignored:
            self.active.note(
                f"{clause} of `{name.short}` has no effect", location, remedy=_REMEDIES.get(clause)
            )
        expectations = tuple(_expectations(scope, statement.constraints))
        query = None if statement.query is None else self._query(statement.query, statement.location)
        if statement.kind == "view":
            assert query is not None
            scope.register(
                TemporaryView(
                    name=name,
                    query=query,
                    has_schema=not statement.is_private or len(without_live(statement.name)) > 1,
                    comment=statement.comment,
                    spark_conf=dict(self.settings),
                    expectations=expectations,
                )
            )
            return
        stored = scope.stored(
            name,
            statement.comment,
            statement.properties,
            statement.partition_cols or None,
            statement.cluster_by or None,
            statement.columns,
            statement.format,
        )
        stored |= {"expectations": expectations, "is_private": statement.is_private}
        if statement.kind == "materialized view":
            assert query is not None
            refresh = RefreshFlow(
                target=name,
                query=query,
                spark_conf=dict(self.settings),
                trigger=scope.arguments.view_trigger(None, self.settings),
            )
            policy = statement.refresh_policy or "auto"
            scope.register(MaterializedView(**stored, refresh_policy=policy), refresh)
            self._check_location(call, statement)
            return
        scope.register(StreamingTable(**stored))
        self._check_location(call, statement)
        if query is not None:
            settings = scope.flow_settings(self.settings, None)
            flow = name.within(scope.default_schema)
            scope.register(AppendFlow(name=flow, target=name, query=query, **settings))
        if statement.cdc is not None:
            self._change_flow(statement.cdc)

    def _check_location(self, call: str, statement: CreateDataset) -> None:
        if statement.path is not None:
            path, location = statement.path
            with located_at(location):
                check_path(call, path, "LOCATION")

    def _snapshots(self, statement: CdcFlow) -> None:
        source = statement.source
        if source.token.kind == "string":
            path = source.string("a path")
            # A text without `/` would be the name of a table.
            given = path if "/" in path or not path.strip() else f"./{path}"
        else:
            name = without_live(source.name("a table or a path"))
            given = ".".join(names_in_use().qualified(name))
            if len(name) == 2 and name[0].lower() == "delta" and "/" in name[1]:
                given = name[1]
        if not source.done:
            raise source.unexpected("KEYS (columns)")
        create_auto_cdc_from_snapshot_flow(
            target=".".join(statement.target),
            source=given,
            keys=statement.keys,
            stored_as_scd_type="2" if statement.scd_type == "2" else "1",
            name=statement.name,
            spark_conf=dict(self.settings),
            **_lists("track_history_column_list", statement.tracked),
        )

    def _change_flow(self, statement: CdcFlow) -> None:
        if statement.is_snapshot:
            self._snapshots(statement)
            return
        prefix = f"SELECT * FROM {'' if statement.is_stream or statement.once else 'STREAM '}"
        choices: dict[str, Any] = {}
        for argument, choice in (
            ("column_list", statement.columns),
            ("ignore_null_updates_column_list", statement.kept_if_null),
            ("track_history_column_list", statement.tracked),
        ):
            choices |= _lists(argument, choice)
        create_auto_cdc_flow(
            target=".".join(statement.target),
            source=self._query(statement.source, statement.location, prefix),
            keys=statement.keys,
            sequence_by=statement.sequence_by,
            ignore_null_updates=statement.ignores_nulls,
            apply_as_deletes=statement.deletes,
            apply_as_truncates=statement.truncates,
            stored_as_scd_type="2" if statement.scd_type == "2" else "1",
            name=statement.name,
            spark_conf=dict(self.settings),
            once=statement.once,
            **choices,
        )

    def _query(self, query: Cursor, location: SourceLocation, prefix: str = "") -> SqlQuery:
        return SqlQuery(
            statement=query.text.text,
            begins=query.text.location,
            location=location,
            start=query.start,
            stop=query.stop,
            prefix=prefix,
            edits=query.text.edits,
            calls=tuple(find_calls(query)),
            names=names_in_use(),
        )


def with_values(written: SqlText, values: Mapping[str, str]) -> SqlText:
    """A statement with the values of its parameters, also in comments: there Spark would shift locations."""
    if "${" not in written.text and ":" not in written.text:
        return written
    tokens = tokenize(written.text)
    edits: list[Edit] = []
    for one in _PARAMETER.finditer(written.text):
        if (value := values.get(one[1])) is not None:
            edits.append(Edit(one.start(), one.end(), value))
        elif any(token.start <= one.start() < token.stop for token in tokens):
            raise _unset(written, one[1], one.start(), one.end())
    for colon, name in _named_parameters(tokens):
        if (value := values.get(name.value)) is None:
            raise _unset(written, name.value, colon.start, name.stop)
        edits.append(Edit(colon.start, name.stop, quote_string(value)))
    return SqlText(written.text, written.location, tuple(edits))


def _named_parameters(tokens: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """The tokens of each ``:name``. Behind a name or a parenthesis, a colon extracts a JSON field."""
    before, depth = Token("symbol", "", -1, -1), 0
    for colon, name in pairwise(tokens):
        if colon.is_symbol("<") and (depth or before.is_word("STRUCT", "ARRAY", "MAP")):
            # The fields of a type, such as STRUCT<a :INT>.
            depth += 1
        elif depth and colon.kind == "symbol":
            depth -= colon.value.count(">")
        follows = before.stop == colon.start and (before.kind != "symbol" or before.value in (")", "]"))
        if (
            colon.is_symbol(":")
            and name.kind == "word"
            and name.start == colon.stop
            and not (follows or depth)
        ):
            yield colon, name
        before = colon


def _unset(written: SqlText, name: str, start: int, stop: int) -> SqlParameterUnsetError:
    return SqlParameterUnsetError(
        f"the parameter `{name}` has no value",
        location=written.locate(start, stop - 1, None),
        remedies=[
            f"set it in headrace.yml:   configuration: {{{name}: VALUE}}",
            f"or above the statement:   SET {name} = VALUE;",
        ],
        params={"parameter": name},
    )


def _expectations(scope: Scope, constraints: tuple[Constraint, ...]) -> Iterator[Expectation]:
    for one in constraints:
        with located_at(one.location):
            arguments = Scope("CONSTRAINT", None).arguments
            yield from build_expectations(arguments, "EXPECT", one.action, {one.name: one.condition})


def _lists(argument: str, choice: ColumnChoice | None) -> Mapping[str, Any]:
    """A choice of columns as the two arguments of `create_auto_cdc_flow`."""
    if choice is None:
        return {}
    excluded = argument.replace("column_list", "except_column_list")
    given = {argument: choice.included, excluded: choice.excluded}
    return {name: columns for name, columns in given.items() if columns is not None}
