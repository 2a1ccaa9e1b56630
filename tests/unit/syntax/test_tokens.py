"""Tokens of SQL texts: what ends a statement, and what only looks as if it did."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import SourceLocation
from headrace.syntax.sql import SqlText
from headrace.syntax.tokens import Cursor, SqlTokenError, split_statements, tokenize

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
SAFE = st.sampled_from([";", "--", "/*", "*/", "'", '"', "`", "\\", "é", "😀", "$", "{", "a b", ""])
PIECES = st.lists(st.one_of(TEXT, SAFE), max_size=5).map("".join)


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _name(text: str) -> str:
    return f"`{text.replace('`', '``') or 'a'}`"


def _line_comment(text: str) -> str:
    return f"--{text}\n"


def _block_comment(text: str) -> str:
    inner = text.replace("*/", "").replace("/*", "").rstrip("*/").lstrip("*/")
    return f"/* {inner} /* ; */ */"


def test_an_open_string_is_told_in_words() -> None:
    with pytest.raises(SqlTokenError, match=r"^' has no end$"):
        tokenize("SELECT 'a")


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(
            st.one_of(
                PIECES.map(_string),
                PIECES.map(_name),
                PIECES.map(_line_comment),
                PIECES.map(_block_comment),
                st.sampled_from(["SELECT", "1", "a.b", "(x)", "=>"]),
            ),
            max_size=6,
        ),
        max_size=4,
    )
)
def test_only_semicolons_outside_of_literals_end_a_statement(statements: list[list[str]]) -> None:
    parts = [" ".join(["CREATE", *pieces, "END"]) for pieces in statements]
    text = ";\n".join(parts)
    found = [text[start:stop] for start, stop in split_statements(text)]
    assert found == parts


@settings(deadline=None, derandomize=True)
@given(PIECES, PIECES)
def test_the_value_of_a_string_and_a_name_is_its_text(string: str, name: str) -> None:
    first, second = tokenize(f"{_string(string)} {_name(name)}")
    assert (first.kind, second.kind, second.value) == ("string", "name", name or "a")
    if "\\" not in string:
        assert first.value == string


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("'it''s'", ["it's"]),
        ("'it''''s' 'b'", ["it''s", "b"]),
        ('"say ""a"""', ['say "a"']),
        ("'a'\"b\"", ["a", "b"]),
        (r"'a\'b\n'", ["a'b\n"]),
        (r"r'a\d'", [r"a\d"]),
        ("`a`'b'", ["a", "b"]),
    ],
)
def test_values_of_strings(text: str, values: list[str]) -> None:
    assert [token.value for token in tokenize(text)] == values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (";;", []),
        ("-- nothing", []),
        ("a; -- b;\nc", ["a", "c"]),
        ("a 'x;''y'; b", ["a 'x;''y'", "b"]),
        ('a "x;"; b', ['a "x;"', "b"]),
        ("a r'\\'; b", ["a r'\\'", "b"]),
        ("a `x;``y`; b", ["a `x;``y`", "b"]),
        ("a /* ; /* ; */ ; */ ; b", ["a", "b"]),
        ("SELECT 1 -- end", ["SELECT 1"]),
        ("-- MAGIC %md\na\n\n-- COMMAND ----------\n\nb; c\n-- COMMAND ----------\n", ["a", "b", "c"]),
        ("a '\n-- COMMAND ----------\n'", ["a '\n-- COMMAND ----------\n'"]),
    ],
)
def test_statements_of_a_text(text: str, expected: list[str]) -> None:
    assert [text[start:stop] for start, stop in split_statements(text)] == expected


@pytest.mark.parametrize(
    ("text", "index", "opening"),
    [
        ("a; 'b", 3, "'"),
        ("'it''s' \"b", 8, '"'),
        ("-- it's\n`b", 8, "`"),
        ("/* ; */ /* b /* */", 8, "/*"),
        ("'\\'", 0, "'"),
    ],
)
def test_a_literal_without_an_end_is_found(text: str, index: int, opening: str) -> None:
    with pytest.raises(SqlTokenError) as caught:
        tokenize(text)
    assert (caught.value.index, caught.value.opening) == (index, opening)


def test_a_token_of_several_words_is_read_word_by_word() -> None:
    cursor = Cursor(SqlText("PARTITIONED   BY (a) 10L GROUP BY", SourceLocation("a.sql", 3, 5)))
    assert cursor.take("PARTITIONED", "BY")
    assert [token.value for token in cursor.group("columns").tokens] == ["a"]
    assert cursor.next().value == "10L"
    assert cursor.take("group", "by") or cursor.take("GROUP", "BY")
    assert cursor.done


def test_an_error_has_the_line_and_column_of_its_token() -> None:
    cursor = Cursor(SqlText("CREATE\n  (a, b", SourceLocation("a.sql", 3, 5)))
    cursor.next()
    with pytest.raises(Exception) as caught:
        cursor.group("columns")
    assert str(caught.value.location) == "a.sql:4:3"  # type: ignore[attr-defined]
    assert str(Cursor(SqlText("a", SourceLocation("a.sql", 3, 5))).unexpected("b").location) == "a.sql:3:5"
