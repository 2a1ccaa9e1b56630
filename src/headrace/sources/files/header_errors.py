"""The errors for CSV files whose header does not fit the columns of their read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headrace.errors import (
    NOT_COMMITTED,
    FileUnreadableError,
    HeadraceError,
    RecordDriftedError,
    SourceLocation,
)
from headrace.model.folders import plain_path
from headrace.model.texts import counted
from headrace.sources.files.headers import HeaderGroup, HeaderRules

_AGAIN = "correct the header of the file, and start again:   headrace run"


def repeated_name(path: str, line: int, name: str) -> HeadraceError:
    return _unreadable(
        None, path, line, f"has the name `{name}` twice in its header", None, remedies=(_AGAIN,)
    )


def foreign_header(
    flow: str, group: HeaderGroup, rules: HeaderRules, location: SourceLocation
) -> HeadraceError:
    """The error for files without any column of the schema: their rows would have no value."""
    facts = (f"header: {_listed(group.layout.names)}", f"columns: {_listed(rules.columns)}")
    problem = "has no column of the schema in its header"
    remedies = (_AGAIN, 'or set header to "false", if the files have no header')
    return _unreadable(flow, group.paths[0], group.line, problem, location, facts, remedies)


def stateful_header(
    flow: str, group: HeaderGroup, rules: HeaderRules, location: SourceLocation
) -> HeadraceError:
    return _unreadable(
        flow,
        group.paths[0],
        group.line,
        "has other columns in its header than the schema, and the query of the flow keeps state",
        location,
        (f"header: {_listed(group.layout.names)}", f"columns: {_listed(rules.columns)}"),
        (
            "read the files into a table of their own, and stream from that table: files with other headers "
            "can then be read",
        ),
    )


def misplaced_column(flow: str, path: str, line: int, column: str, location: SourceLocation) -> HeadraceError:
    problem = f"has the column `{column}` at another position in its header than the schema"
    facts = ("Spark reads CSV files by position: the rows would have the values of other columns",)
    remedies = (
        'read the files by name:   hr.read_files(.., format="csv", options={"header": "true"})',
        'or let Spark ignore the headers:   .option("enforceSchema", "true")',
    )
    return _unreadable(flow, path, line, problem, location, facts, remedies)


def new_columns(
    flow: str, group: HeaderGroup, names: Sequence[str], location: SourceLocation
) -> HeadraceError:
    """The error for a new column where the flow is to stop."""
    path = plain_path(group.paths[0])
    several = len(names) > 1
    return RecordDriftedError(
        f"flow {flow}: the file {path}, line {group.line}, has {counted(len(names), 'column')} "
        f"that the schema does not have: {_listed(names)}",
        location=location,
        facts=(NOT_COMMITTED,),
        remedies=(
            f"add {'them' if several else 'it'} to the schema, and start again:   headrace run",
            'or let the table get new columns: drift="evolve" of hr.read_files, '
            "or cloudFiles.schemaEvolutionMode addNewColumns",
        ),
        params={"flow": flow, "path": path, "line": group.line, "columns": list(names)},
    )


def _unreadable(
    flow: str | None,
    path: str,
    line: int,
    problem: str,
    location: SourceLocation | None,
    facts: Sequence[str] = (),
    remedies: Sequence[str] = (),
) -> HeadraceError:
    path = plain_path(path)
    more = (
        () if path.endswith((".gz", ".bz2", ".zst")) else (f"print it:   sed -n {line}p {shlex.quote(path)}",)
    )
    away: tuple[str, ...] = ()
    if flow is not None:
        away = (f"or move the file away, and drop the planned batch:   headrace reset {flow}",)
    return FileUnreadableError(
        f"{'' if flow is None else f'flow {flow}: '}the file {path}, line {line}, {problem}",
        location=location,
        facts=(*facts, NOT_COMMITTED),
        remedies=(*more, *remedies, *away),
        params={"path": path, "line": line, **({} if flow is None else {"flow": flow})},
    )


def _listed(names: Sequence[str], shown: int = 12) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {counted(more, 'more column')}" if more > 0 else "")
