"""``MERGE INTO`` of a stream, in the one form that is a flow of changes by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import FeatureUnsupportedError
from headrace.syntax.tokens import Cursor, Token

_FORM = (
    "write MERGE INTO t USING source ON t.key = source.key [WHEN MATCHED AND condition THEN DELETE] "
    "WHEN MATCHED THEN UPDATE * WHEN NOT MATCHED THEN INSERT *"
)
_OTHER_KEYS = "MERGE ON anything but equal columns of the same names"
_NEGATED = {"=": ("<>", "!="), "==": ("<>", "!="), "<>": ("=", "=="), "!=": ("=", "==")}


@dataclass(frozen=True, kw_only=True)
class Merge:
    """The keys of a ``MERGE``, and the records that delete.

    Args:
        deletes: The condition of ``THEN DELETE`` over columns of the source; ``None`` without one.
    """

    keys: tuple[str, ...]
    deletes: str | None = None


def parse_merge(cursor: Cursor, target: tuple[str, ...]) -> tuple[Cursor, Merge]:
    """The source and the clauses of a cursor behind ``MERGE INTO target``.

    Raises:
        FeatureUnsupportedError: The statement has another form.
    """
    of_target = _alias(cursor, target[-1], "USING")
    cursor.expect("USING")
    source, name = _source(cursor)
    of_source = _alias(cursor, name, "ON")
    cursor.expect("ON")
    condition = cursor.until(lambda: cursor.at("WHEN"))
    keys = _keys(condition, of_target, of_source)
    deletes: tuple[Token, ...] | None = None
    updates = inserts = False
    while not cursor.done:
        first = cursor.token
        cursor.expect("WHEN")
        matched = not cursor.take("NOT")
        cursor.expect("MATCHED")
        if cursor.take("BY", "SOURCE"):
            raise _refused(cursor, "WHEN NOT MATCHED BY SOURCE", first)
        cursor.take("BY", "TARGET")
        only_if = cursor.until(lambda: cursor.at("THEN")) if cursor.take("AND") else None
        cursor.expect("THEN")
        if matched and cursor.take("DELETE"):
            if only_if is None or deletes is not None or updates:
                raise _refused(cursor, "THEN DELETE without a condition, or behind UPDATE", first)
            deletes = _columns_of(only_if, of_target, of_source)
        elif matched and cursor.at("UPDATE"):
            cursor.next()
            cursor.take("SET")
            if not cursor.take_symbol("*"):
                raise _refused(cursor, "UPDATE of single columns", cursor.token)
            if only_if is not None or updates:
                raise _refused(cursor, "UPDATE with a condition", first)
            updates = True
        elif not matched and cursor.take("INSERT"):
            if not cursor.take_symbol("*"):
                raise _refused(cursor, "INSERT of single columns", cursor.token)
            if inserts or (only_if is not None and not _negates(only_if, of_target, of_source, deletes)):
                raise _refused(cursor, "INSERT with a condition", first)
            inserts = True
        else:
            raise cursor.unexpected("UPDATE *, DELETE or INSERT *")
    if not (updates and inserts):
        missing = "WHEN NOT MATCHED THEN INSERT *" if updates else "WHEN MATCHED THEN UPDATE *"
        raise _refused(cursor, f"MERGE without {missing}", cursor.tokens[0])
    return source, Merge(keys=keys, deletes=None if deletes is None else _text(deletes))


def _source(cursor: Cursor) -> tuple[Cursor, str]:
    """The source, and the name that its columns have without an alias."""
    if not cursor.at_symbol("("):
        first = cursor.index
        name = cursor.name("a scan, or a query in parentheses")
        return Cursor(cursor.text, cursor.tokens[first : cursor.index], cursor.token), name[-1]
    return cursor.group("a query"), ""


def _alias(cursor: Cursor, name: str, before: str) -> str:
    """The name of a relation behind its optional alias."""
    if cursor.take("AS") or not cursor.at(before):
        return cursor.name("an alias")[-1]
    return name


def _keys(condition: Cursor, target: str, source: str) -> tuple[str, ...]:
    """The columns of ``target.key = source.key AND ..``."""
    first = condition.token
    if condition.at_symbol("(") and condition.tokens[-1].is_symbol(")"):
        condition = condition.group("a condition")
    keys = []
    while True:
        left = condition.name("a column")
        if not (condition.take_symbol("=") or condition.take_symbol("==")):
            raise _refused(condition, _OTHER_KEYS, condition.token)
        right = condition.name("a column")
        if left[0].casefold() == source.casefold():
            left, right = right, left
        same = left[-1].casefold() == right[-1].casefold() and len(left) == len(right) == 2
        if not same or (left[0].casefold(), right[0].casefold()) != (target.casefold(), source.casefold()):
            raise _refused(condition, _OTHER_KEYS, first)
        keys.append(right[-1])
        if condition.done:
            return tuple(keys)
        if not condition.take("AND"):
            raise _refused(condition, _OTHER_KEYS, first)


def _columns_of(condition: Cursor, target: str, source: str) -> tuple[Token, ...]:
    """A condition without the name of the source before its columns."""
    tokens, kept, index = condition.tokens, [], 0
    while index < len(tokens):
        is_path = index + 1 < len(tokens) and tokens[index + 1].is_symbol(".")
        if is_path and not (index and tokens[index - 1].is_symbol(".")):
            if tokens[index].value.casefold() == source.casefold():
                index += 2
                continue
            if tokens[index].value.casefold() == target.casefold():
                raise _refused(condition, "a column of the target in a condition", tokens[index])
        kept.append(tokens[index])
        index += 1
    return tuple(kept)


def _negates(condition: Cursor, target: str, source: str, deletes: Sequence[Token] | None) -> bool:
    """Whether a condition is the negation of another one, as far as its tokens show."""
    if deletes is None:
        return False
    found = [_plain(one) for one in _columns_of(condition, target, source)]
    other = [_plain(one) for one in deletes]
    if found in (["NOT", *other], ["NOT", "(", *other, ")"]):
        return len(found) > len(other) + 1 or not {"AND", "OR"}.intersection(other)
    signs = [at for at, one in enumerate(other) if one in _NEGATED]
    if len(signs) != 1 or {"AND", "OR", "NOT"}.intersection(other):
        return False
    at = signs[0]
    return any(found == [*other[:at], sign, *other[at + 1 :]] for sign in _NEGATED[other[at]])


def _plain(token: Token) -> str:
    return token.value.upper() if token.kind == "word" else token.value


def _text(tokens: Sequence[Token]) -> str:
    parts = []
    for token in tokens:
        value = token.value
        if token.kind == "string":
            value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        elif token.kind == "name":
            value = f"`{value}`"
        parts.append(value)
    return " ".join(parts).replace(" . ", ".")


def _refused(cursor: Cursor, what: str, token: Token) -> FeatureUnsupportedError:
    return cursor.unsupported(what, _FORM, token=token)
