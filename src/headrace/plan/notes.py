"""Notes of a plan: facts about its queries that may surprise their author."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headrace.model.notes import Note
from headrace.model.queries import Query
from headrace.plan.logical import LogicalPlan
from headrace.sources.files.options import PARSED_FORMATS
from headrace.sources.files.read import FORMAT_OPTION
from headrace.syntax.bindings import ReboundGlobal, find_rebound

_PARSER = re.compile(r"\bfrom_(?:json|csv|xml)\((?=(?:StructField|ArrayType|MapType|VariantType)\b)")
"""A parsing function as Spark prints it: the schema first, then the options, then the column."""
_MODE = re.compile(r"\(mode,", re.IGNORECASE)


def find_notes(queries: Mapping[str, tuple[Query, LogicalPlan]], root: Path) -> Iterator[Note]:
    """The notes of a pipeline."""
    yield from _rebound_globals({name: query for name, (query, _) in queries.items()}, root)
    yield from _permissive(queries)


def _rebound_globals(queries: Mapping[str, Query], root: Path) -> Iterator[Note]:
    """One warning for each helper and global, however many queries call the helper."""
    found: dict[ReboundGlobal, list[str]] = {}
    for name, query in queries.items():
        for rebound in find_rebound(query, root):
            found.setdefault(rebound, []).append(name)
    for rebound, names in found.items():
        yield Note(
            level="warning",
            text=f"`{rebound.helper}`, which the query of {_listed(names)} calls, reads the global "
            f"`{rebound.name}`; it was assigned again after the query was declared, and the helper sees "
            "the last value",
            location=rebound.location or queries[names[0]].location,
            remedy=f"pass `{rebound.name}` to `{rebound.helper}` as an argument",
        )


def _permissive(queries: Mapping[str, tuple[Query, LogicalPlan]]) -> Iterator[Note]:
    """One note for all queries that parse in Spark's default mode."""
    names = [name for name, (_, plan) in queries.items() if parses_permissively(plan)]
    if names:
        yield Note(
            level="note",
            text=f"the query of {_listed(names)} parses records in Spark's default mode, PERMISSIVE: a "
            "malformed record becomes NULL",
            location=queries[names[0]][0].location,
            remedy="to stop the flow instead, use hr.parse_json or hr.read_files, or set mode=FAILFAST",
        )


def parses_permissively(plan: LogicalPlan) -> bool:
    """Whether a query of the user's calls a parsing function, or streams files, without naming a mode."""
    functions = (_arguments(plan.text, found.end()) for found in _PARSER.finditer(plan.text))
    if any(not any(map(_MODE.match, arguments)) for arguments in functions):
        return True
    return any(
        leaf.provider in PARSED_FORMATS
        and FORMAT_OPTION not in leaf.options
        and "mode" not in {name.lower() for name in leaf.options}
        for leaf in plan.leaves
    )


def _arguments(text: str, start: int) -> list[str]:
    """The arguments of a call in the text of a plan, from behind its parenthesis."""
    arguments, depth = [""], 0
    for character in text[start:]:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            break
        if character == "," and depth == 0:
            arguments.append("")
        elif character != " " or arguments[-1]:
            arguments[-1] += character
    return arguments


def _listed(names: Sequence[str]) -> str:
    return f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
