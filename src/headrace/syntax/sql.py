"""SQL texts: the tables that they read, as Spark's own parser sees them, and edits of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import SourceLocation
from headrace.model.queries import Edit, edited, original_index
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.syntax.locations import pinpoint_sql

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_HARMLESS = frozenset(
    {"SetCommand", "ResetCommand", "CreateViewCommand", "CreateTempViewUsing"}
    | {"CreateFunctionCommand", "CreateUserDefinedFunction", "CreateSQLFunctionCommand"}
    | {"DropFunctionCommand", "SetCatalogAndNamespace", "SetNamespaceCommand", "CreateVariable"}
    | {"SetVariable", "DropVariable", "ExplainCommand"}
)
"""Statements that change the session and no table; ``Show..`` and ``Describe..`` are harmless too."""

RUNS_STATEMENTS = {
    "CompoundBody": "BEGIN .. END",
    "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE",
    "Call": "CALL",
}
"""Statements that Spark executes while it analyses them; what they change is not known before."""

INSERT = "InsertIntoStatement"
_TARGET = "__required_write_privileges__"
"""An option that Spark's parser gives the target of a statement."""

_GAP = r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
_IDENTIFIER = r"(?:`(?:[^`]|``)+`|\w+)"
_NAME = rf"(?P<name>{_IDENTIFIER}(?:{_GAP}\.{_GAP}{_IDENTIFIER})*)"
_STREAM = re.compile(
    rf"STREAM{_GAP}(?P<open>\({_GAP})?{_NAME}(?(open){_GAP}\))(?P<with>{_GAP}\bWITH{_GAP}\()?",
    re.IGNORECASE | re.DOTALL,
)
_BATCH = re.compile(_NAME, re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class SqlRelation:
    parts: tuple[str, ...]
    streaming: bool  # whether it is read as ``STREAM name``
    start: int  # the index of the name's first character
    stop: int  # the index of the name's last character
    begins: int
    ends: int  # the index behind the whole expression; of ``STREAM(name)``, behind the parenthesis
    # The index behind the parenthesis of ``WITH (``, where options can be added.
    options_at: int | None = None
    # The start and the end (exclusive) of a ``VERSION AS OF`` or ``TIMESTAMP AS OF`` clause.
    travel: tuple[int, int] | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_target: bool = False  # whether the statement changes the table


@dataclass(frozen=True, kw_only=True)
class SqlStatement:
    # The tables that it reads, those of subqueries and common table expressions too.
    relations: tuple[SqlRelation, ...]
    writes: str | None = None  # the name of the statement if it changes tables


@dataclass(frozen=True)
class SqlText:
    text: str
    location: SourceLocation  # the line of the call that has the text; with a column, the text begins there
    edits: tuple[Edit, ...] = ()
    # The text that ``text`` was edited from; ``None`` if ``text`` is the user's.
    source: SqlText | None = None

    @property
    def edited(self) -> str:
        return edited(self.text, self.edits)

    def with_edits(self, *edits: Edit) -> SqlText:
        return SqlText(self.edited, self.location, edits, source=self)

    def locate(self, start: int, stop: int, root: Path | None) -> SourceLocation:
        """The location in the user's file of characters of the edited text."""
        first, last = original_index(start, self.edits), original_index(stop, self.edits)
        return self.locate_unedited(first, max(first, last), root)

    def locate_unedited(self, start: int, stop: int, root: Path | None) -> SourceLocation:
        """The location in the user's file of characters of the text before the edits."""
        if self.source is not None:
            return self.source.locate(start, stop, root)
        return pinpoint_sql(self.location, self.text, start, stop, root)


_WITH = re.compile(r"\bwith\b", re.IGNORECASE)
_REST_OF_OPTIONS = re.compile(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'")])*\)""", re.DOTALL)


def expression_end(text: str, relation: SqlRelation) -> int:
    """The index behind a streaming relation and its options."""
    if relation.options_at is None:
        return relation.ends
    found = _REST_OF_OPTIONS.match(text, relation.options_at)
    return found.end() if found else relation.ends


def parse_sql(session: SparkSession, text: str) -> SqlStatement:
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    walked = [*(_walk(plan, frozenset()) if _WITH.search(text) else _leaves(plan))]
    statements = [*_statements(plan)]
    # The parser keeps the target of an insert apart from the children.
    walked += [one.table() for one in statements if str(one.nodeName()) == INSERT]
    writes = next(filter(None, (_writes(session, one) for one in statements)), None)
    has_options = writes is not None or _WITH.search(text) is not None
    found = (_relation(node, text, has_options=has_options) for node in walked)
    # The parser gives a subquery of a SELECT list more than once.
    unique = {one.start: one for one in found if one is not None}
    return SqlStatement(relations=tuple(unique.values()), writes=writes)


def _statements(plan: Any) -> Iterator[Any]:
    """The statements of a text: one behind ``WITH``, or several inserts behind one ``FROM``."""
    if str(plan.nodeName()) in ("UnresolvedWith", "Union"):
        for child in items(plan.children()):
            yield from _statements(child)
    else:
        yield plan


def _writes(session: SparkSession, plan: Any) -> str | None:
    from py4j.java_gateway import is_instance_of

    name = str(plan.nodeName())
    if name in RUNS_STATEMENTS:
        return RUNS_STATEMENTS[name]
    gateway = session.sparkContext._gateway
    if not any(
        is_instance_of(gateway, plan, f"{_LOGICAL}.{kind}") for kind in ("Command", "ParsedStatement")
    ):
        return None
    return None if name in _HARMLESS or name.startswith(("Show", "Describe")) else name


def items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a plan without common table expressions, in few calls to the JVM."""
    yield from items(plan.collectLeaves())
    for subquery in items(plan.subqueriesAll()):
        yield from items(subquery.collectLeaves())
    for inner in items(plan.innerChildren()):
        yield from _leaves(inner)


def _walk(node: Any, expressions: frozenset[str]) -> Iterator[Any]:
    """The leaves of a plan, but for names of the common table expressions in scope."""
    name = str(node.nodeName())
    if name == "UnresolvedWith":
        relations = node.cteRelations()
        for pair in items(relations):
            alias, inner = str(pair._1()).lower(), pair._2()
            # A definition sees those before it; a recursive one sees itself.
            yield from _walk(inner, expressions | ({alias} if node.allowRecursion() else set()))
            expressions = expressions | {alias}
    for child in items(node.children()):
        yield from _walk(child, expressions)
    for subquery in items(node.subqueries()):
        yield from _walk(subquery, expressions)
    if name == "CreateViewCommand":
        for inner in items(node.innerChildren()):
            yield from _walk(inner, expressions)
    if name in {"UnresolvedRelation", "RelationTimeTravel"}:
        relation = node.relation() if name == "RelationTimeTravel" else node
        parts = _parts(relation)
        if not (len(parts) == 1 and parts[0].lower() in expressions):
            yield node


def _parts(relation: Any) -> tuple[str, ...]:
    names = relation.multipartIdentifier()
    return tuple(str(part) for part in items(names))


def _relation(node: Any, text: str, *, has_options: bool) -> SqlRelation | None:
    name = str(node.nodeName())
    travel = None
    if name == "RelationTimeTravel":
        origin = node.origin()
        travel = (int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1)
        node = node.relation()
        name = str(node.nodeName())
    if name != "UnresolvedRelation":
        return None
    streaming = bool(node.isStreaming())
    origin = node.origin()
    if not origin.startIndex().isDefined():
        return None
    found = (_STREAM if streaming else _BATCH).match(text, int(origin.startIndex().get()))
    if found is None:
        return None
    options = dict(node.options().asCaseSensitiveMap()) if has_options else {}
    is_target = options.pop(_TARGET, None) is not None
    return SqlRelation(
        parts=_parts(node),
        streaming=streaming,
        start=found.start("name"),
        stop=found.end("name") - 1,
        begins=found.start(),
        ends=found.start("with") if streaming and found["with"] else found.end(),
        options_at=found.end("with") if streaming and found["with"] else None,
        travel=travel,
        options=options,
        is_target=is_target,
    )
