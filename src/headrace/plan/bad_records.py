"""`from_json` and its kin: by themselves they turn what they cannot parse into nulls, without a word.

Where a query gives no mode, they get ``FAILFAST``; a mode that is given is the user's own meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import BadRecordsHiddenError, SourceLocation
from headrace.plan.sqltext import Edit

if TYPE_CHECKING:
    from headrace.plan.logical import LogicalPlan

FUNCTIONS = frozenset({"from_json", "from_csv", "from_xml"})

_CORRUPT, _CORRUPT_COLUMN = "columnnameofcorruptrecord", "_corrupt_record"
_CHOICES = frozenset({"mode", _CORRUPT})
_EXPRESSIONS = {"JsonToStructs": "from_json", "CsvToStructs": "from_csv", "XmlToStructs": "from_xml"}
_ANY = re.compile(r"\bfrom_(json|csv|xml)\s*\(", re.IGNORECASE)
_TOKEN = re.compile(
    r"""(?P<skipped>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/)"""
    r"|(?P<call>\bfrom_(?:json|csv|xml)\s*\()|(?P<open>[(\[])|(?P<close>[)\]])|(?P<comma>,)",
    re.IGNORECASE | re.DOTALL,
)
_MAP = re.compile(r"\s*map\s*\(\s*", re.IGNORECASE)


def with_failfast(schema: object, options: Mapping[str, str]) -> dict[str, str]:
    """The options of such a function, with the mode that stops a flow where the user gives none."""
    chosen = {key.lower(): value for key, value in options.items()}
    hides = isinstance(schema, str) and chosen.get(_CORRUPT, _CORRUPT_COLUMN) in schema
    return dict(options) if hides or "mode" in chosen else {**options, "mode": "FAILFAST"}


@dataclass
class _Call:
    """A parenthesis that is open: of such a function, or any other."""

    start: int
    is_ours: bool
    commas: list[int] = field(default_factory=list)


def failfast_edits(text: str) -> Iterator[Edit]:
    """What gives the functions in an SQL text the mode, where they have none."""
    if not _ANY.search(text):
        return
    opened: list[_Call] = []
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "call" | "open":
                opened.append(_Call(token.end(), token.lastgroup == "call"))
            case "comma" if opened:
                opened[-1].commas.append(token.start())
            case "close" if opened:
                call = opened.pop()
                if call.is_ours:
                    yield from _edits_of(text, call, token.start())


def _edits_of(text: str, call: _Call, end: int) -> Iterator[Edit]:
    arguments = [
        text[start:stop]
        for start, stop in zip([call.start, *(c + 1 for c in call.commas)], [*call.commas, end], strict=True)
    ]
    if len(arguments) == 2 and _CORRUPT_COLUMN not in arguments[1]:
        yield Edit(end, end, ", map('mode', 'FAILFAST')")
    elif len(arguments) == 3 and not any(choice in arguments[2].lower() for choice in _CHOICES):
        found = _MAP.match(arguments[2])
        if found is not None:
            at = call.commas[1] + 1 + found.end()
            yield Edit(at, at, "'mode', 'FAILFAST'" + ("" if text[at] == ")" else ", "))


def check_bad_records(plan: LogicalPlan, name: str, location: SourceLocation) -> None:
    """Refuse a query that hides bad records all the same.

    Raises:
        BadRecordsHiddenError: It calls such a function in a way that could not be given the mode.
    """
    if not _ANY.search(plan.text):
        return
    for root in (plan.java_plan, *_each(plan.java_plan.subqueriesAll())):
        for expression in _expressions(root):
            function = _EXPRESSIONS.get(str(expression.getClass().getSimpleName()))
            if function is not None and not _has_choice(expression):
                raise BadRecordsHiddenError(
                    f"`{name}` calls {function} without a mode: records that do not fit would become nulls",
                    location=location,
                    remedies=[
                        f"write {function}(column, schema, map('mode', 'FAILFAST')), which stops the flow, "
                        "or PERMISSIVE if nulls are meant",
                    ],
                    params={"name": name, "function": function},
                )


def _has_choice(expression: Any) -> bool:
    options = {str(pair._1()).lower(): str(pair._2()) for pair in _each(expression.options().toSeq())}
    corrupt = options.get(_CORRUPT, _CORRUPT_COLUMN)
    return "mode" in options or f'"{corrupt}"' in str(expression.schema().json())


def _expressions(node: Any) -> Iterator[Any]:
    for expression in _each(node.expressions()):
        yield from _within(expression)
    for child in _each(node.children()):
        yield from _expressions(child)


def _within(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _each(expression.children()):
        yield from _within(child)


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
