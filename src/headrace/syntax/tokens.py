"""Tokens of SQL texts, a cursor that reads statements from them, and the cells of notebooks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

from headrace.errors import FeatureUnsupportedError, SourceLocation, SqlInvalidError
from headrace.model.notes import Note
from headrace.syntax.sql import SqlText

_PIECE = re.compile(r"\w+|\S")
_LITERAL = re.compile(
    r"""--[^\n]*|[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|(?P<open>/\*|['"`])""",
    re.DOTALL,
)
_HEX = re.compile(r"\b[xX]'(?=[^']*[^0-9a-fA-F'])[^']*'")
_COMMAND = re.compile(r"^-- COMMAND -+\s*$", re.MULTILINE)
_COMMENT_PART = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Token:
    # A word is a keyword, or a name without quotes. A name is in backquotes.
    kind: Literal["word", "name", "string", "number", "symbol"]
    value: str  # the word, the name without backquotes, the string without quotes, or the characters
    start: int
    stop: int  # the index behind its last character

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.value.upper() in words

    def is_symbol(self, symbol: str) -> bool:
        return self.kind == "symbol" and self.value == symbol


def quote_string(text: str) -> str:
    """A text as a string literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@dataclass(eq=False)
class SqlTokenError(ValueError):
    """A comment, a string or a name in backquotes has no end, or a literal in hexadecimal is wrong."""

    index: int
    opening: str

    def __str__(self) -> str:
        return f"{self.opening} has no end"


def tokenize(text: str) -> tuple[Token, ...]:
    """The tokens of a text, without comments."""
    from sqlglot.errors import TokenError
    from sqlglot.tokenizer_core import TokenType

    try:
        found = _tokenizer()(dialect="databricks").tokenize(text)
    except TokenError as error:
        raise SqlTokenError(*_find_open(text)) from error
    strings = {TokenType.STRING, TokenType.RAW_STRING}
    tokens: list[Token] = []
    for one in found:
        start, stop = int(one.start), int(one.end) + 1
        if tokens and start < tokens[-1].stop:
            # A number with a type, such as 1L, gives three tokens.
            continue
        raw = text[start:stop]
        if one.token_type in strings:
            before = tokens[-1] if tokens else None
            if before is not None and before.stop == start and text[start] == text[start - 1]:
                # In Spark 4, a quote that is written twice is a quote: 'it''s'.
                first, value = tokens.pop().start, f"{before.value}{text[start]}{one.text}"
                tokens.append(Token("string", value, first, stop))
            else:
                tokens.append(Token("string", str(one.text), start, stop))
        elif one.token_type is TokenType.IDENTIFIER:
            tokens.append(Token("name", str(one.text), start, stop))
        elif one.token_type is TokenType.NUMBER:
            tokens.append(Token("number", raw, start, stop))
        elif raw[0].isalpha() or raw[0] == "_":
            # One token can have several words: PARTITIONED BY.
            tokens.extend(
                Token("word", piece[0], start + piece.start(), start + piece.end())
                for piece in _PIECE.finditer(raw)
            )
        else:
            tokens.append(Token("symbol", raw, start, stop))
    return tuple(tokens)


@functools.cache
def _tokenizer() -> Any:
    from sqlglot.dialects.databricks import Databricks

    class Tokenizer(Databricks.Tokenizer):
        # sqlglot takes the rest of SHOW and other statements for one string.
        COMMANDS: ClassVar[set[Any]] = set()

    return Tokenizer


def _find_open(text: str) -> tuple[int, str]:
    """The index and the first characters of the comment, string or name that has no end."""
    index = 0
    while (found := _LITERAL.search(text, index)) is not None:
        index = found.end()
        if found["open"] is None:
            continue
        depth = 1
        while found["open"] == "/*" and depth and (part := _COMMENT_PART.search(text, index)):
            depth += 1 if part[0] == "/*" else -1
            index = part.end()
        if depth:
            return found.start(), found["open"]
    wrong = _HEX.search(text)
    return (0, text[:1]) if wrong is None else (wrong.start(), wrong[0])


def split_statements(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each statement; a notebook's ``-- COMMAND ----------`` ends one, too."""
    first: Token | None = None
    last: Token | None = None
    for token in tokenize(text):
        ends = first is not None and last is not None and _COMMAND.search(text, last.stop, token.start)
        if first is not None and last is not None and (ends or token.is_symbol(";")):
            yield first.start, last.stop
            first = None
        if not token.is_symbol(";"):
            first, last = first or token, token
    if first is not None and last is not None:
        yield first.start, last.stop


class Cursor:
    def __init__(
        self, text: SqlText, tokens: Sequence[Token] | None = None, after: Token | None = None
    ) -> None:
        self.text = text
        self.edited = text.edited
        self.tokens = tokenize(self.edited) if tokens is None else tuple(tokens)
        self.index = 0
        end = self.tokens[-1].stop if self.tokens else len(self.edited)
        self._after = after or Token("symbol", "", end, end)

    @property
    def done(self) -> bool:
        return self.index >= len(self.tokens)

    @property
    def token(self) -> Token:
        if not self.done:
            return self.tokens[self.index]
        return Token("symbol", "", self._after.start, self._after.stop)

    def at(self, *words: str) -> bool:
        """Whether these keywords are next."""
        following = self.tokens[self.index : self.index + len(words)]
        return len(following) == len(words) and all(
            token.is_word(word) for token, word in zip(following, words, strict=True)
        )

    def at_symbol(self, symbol: str) -> bool:
        return self.token.is_symbol(symbol)

    def take(self, *words: str) -> bool:
        """Read these keywords if they are next."""
        found = self.at(*words)
        self.index += len(words) if found else 0
        return found

    def take_symbol(self, symbol: str) -> bool:
        found = self.at_symbol(symbol)
        self.index += found
        return found

    def expect(self, *words: str) -> None:
        """Read these keywords; anything else is an error."""
        if not self.take(*words):
            raise self.unexpected(" ".join(words))

    def next(self) -> Token:
        token = self.token
        self.index += 1
        return token

    def name(self, what: str) -> tuple[str, ...]:
        parts = [self._part(what)]
        while self.take_symbol("."):
            parts.append(self._part(what))
        return tuple(parts)

    def named(self, what: str) -> tuple[SourceLocation, tuple[str, ...]]:
        first = self.token
        parts = self.name(what)
        return self.locate(first, self.tokens[self.index - 1]), parts

    def locate(self, first: Token, last: Token | None = None) -> SourceLocation:
        return self.text.locate(first.start, (last or first).stop - 1, None)

    def end(self) -> None:
        """Refuse anything behind the statement."""
        if not self.done:
            raise self.unexpected("the end of the statement")

    def _part(self, what: str) -> str:
        if self.token.kind not in ("word", "name"):
            raise self.unexpected(what)
        return self.next().value

    def query(self) -> Cursor:
        """A cursor over the query that is the rest of the statement."""
        if self.done:
            raise self.unexpected("a query")
        return Cursor(self.text, self.tokens[self.index :])

    def string(self, what: str) -> str:
        if self.token.kind != "string":
            raise self.unexpected(what)
        parts = []
        while self.token.kind == "string":
            parts.append(self.next().value)
        return "".join(parts)

    def group(self, what: str) -> Cursor:
        """Read a group in parentheses, and return a cursor over what is between them."""
        opening = self.token
        if not self.take_symbol("("):
            raise self.unexpected(what)
        inner = self.until(lambda: self.at_symbol(")"))
        if not self.take_symbol(")"):
            raise self.invalid("this parenthesis is not closed", opening, "close it with )")
        return inner

    def until(self, ends: Callable[[], bool]) -> Cursor:
        """Read up to a token outside of all parentheses, and return a cursor over the tokens before."""
        first, depth = self.index, 0
        while not self.done and (depth or not ends()):
            depth += self.at_symbol("(") - self.at_symbol(")")
            self.index += 1
        after = None if self.done else self.token
        return Cursor(self.text, self.tokens[first : self.index], after or self._after)

    def items(self) -> Iterator[Cursor]:
        while not self.done:
            yield self.until(lambda: self.at_symbol(","))
            self.take_symbol(",")

    @property
    def start(self) -> int:
        """The index of the next token's first character."""
        return self.token.start

    @property
    def stop(self) -> int:
        """The index behind the last token."""
        return self.tokens[-1].stop if self.tokens else self.start

    @property
    def rest(self) -> str:
        """The text from the next token to the last."""
        return self.edited[self.start : self.stop]

    def unexpected(self, expected: str) -> SqlInvalidError:
        value = (self._after if self.done else self.token).value
        found = f"`{value}`" if value else "the end of the statement"
        return self.invalid(f"expected {expected}, found {found}")

    def invalid(self, problem: str, token: Token | None = None, *remedies: str) -> SqlInvalidError:
        return SqlInvalidError(
            problem,
            location=self._location(token or self.token),
            remedies=remedies,
            params={"problem": problem},
        )

    def unsupported(self, what: str, *remedies: str, token: Token | None = None) -> FeatureUnsupportedError:
        """The error for a form that this version does not support, at a token, by default the next one."""
        return FeatureUnsupportedError(
            f"this version does not support {what}",
            location=self._location(token or self.token),
            remedies=remedies,
            params={"what": what},
        )

    def _location(self, token: Token) -> SourceLocation:
        return self.text.locate(token.start, max(token.start, token.stop - 1), None)


_CELL_ENDS = re.compile(r"^(?:#|--) COMMAND -+\s*$")
_MAGIC = re.compile(r"^(?:#|--) MAGIC %(\w+)[ \t]*(.*)$")
WHOLE_CELL = frozenset(
    {"sql", "run", "md", "sh", "bash", "script", "scala", "r", "fs", "html", "javascript", "python"}
)
"""The magic commands that a whole cell belongs to; others are for their line."""
_REMEDIES = {
    "pip": "install the packages in the environment of Headrace",
    "python": "move the code to a Python file",
}


@dataclass(frozen=True)
class Cell:
    """A cell, or one line of it, whose lines are comments of the file."""

    magic: str  # the word behind ``%``
    argument: str
    line: int
    stop: int


def cell_bounds(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The numbers of the lines before and behind each cell of an exported notebook."""
    ends = [number for number, line in enumerate(lines, 1) if _CELL_ENDS.match(line)]
    return pairwise([0, *ends, len(lines) + 1])


def find_cells(text: str) -> Iterator[Cell]:
    """The cells of a notebook that begin with a magic command, and the lines with commands between code."""
    lines = text.split("\n")
    for first, stop in cell_bounds(lines):
        begun = False
        for number in range(first + 1, stop):
            line = lines[number - 1]
            if found := _MAGIC.match(line):
                cell = Cell(found[1].lower(), found[2].strip(), number, stop)
                if not begun or cell.magic not in ("sql", "run", "md"):
                    yield cell
                if not begun and cell.magic in WHOLE_CELL:
                    break
                begun = True
            elif line.strip() and not line.startswith(("#", "--")):
                begun = True


def build_note(cell: Cell, path: str) -> Note:
    text = f"the cell `%{cell.magic}` is not run"
    if cell.magic == "run":
        text = f"`%run {cell.argument}` is not run: there is no such file"
    location = SourceLocation(path, cell.line)
    return Note(level="note", text=text, location=location, remedy=_REMEDIES.get(cell.magic))
