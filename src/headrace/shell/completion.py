"""The names that statements of `headrace sql` can have, for completion and `\\\\d`."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from headrace.plan.columns import type_text
from headrace.plan.stored import load_stored
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer
from headrace.shell.stream_sql import table_columns
from headrace.syntax.stream_statements import CreateScan
from headrace.syntax.tokens import SqlTokenError, Token, tokenize

KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AS"),
    *("AND", "OR", "NOT", "IN", "IS NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("CREATE TABLE", "CREATE SCAN", "CREATE STREAM", "IF NOT EXISTS", "USING kafka", "USING delta"),
    *("USING STREAM", "OPTIONS", "LOCATION", "PARTITIONED BY", "CLUSTER BY", "INSERT INTO", "BY NAME"),
    *("MERGE INTO", "WHEN MATCHED THEN UPDATE *", "WHEN NOT MATCHED THEN INSERT *", "DELETE", "WITH"),
    *("SHOW STREAMS", "SHOW TABLES", "DESCRIBE", "DESCRIBE STREAM", "STOP STREAM", "DROP STREAM"),
    *("DROP SCAN", "DROP TABLE", "EXPLAIN", "UNION ALL", "DISTINCT", "SET"),
)
_BEFORE_TABLES = ("FROM", "JOIN", "INTO", "TABLE", "ON", "DESCRIBE", "SCAN")


class NamesCompleter(Completer):
    def __init__(self, names: Names) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        word = document.get_word_before_cursor(WORD=False)
        word = word if word.replace("_", "").isalnum() else ""
        before = document.text_before_cursor[: len(document.text_before_cursor) - len(word)]
        for found in self._candidates(before, document.text):
            if found.lower().startswith(word.lower()):
                yield Completion(found, start_position=-len(word))

    def _candidates(self, before: str, text: str) -> list[str]:
        if before.startswith("\\d"):
            return list(self._names.kinds())
        tokens = _tokens(before)
        if not tokens:
            return list(KEYWORDS)
        last = tokens[-1]
        if last.is_symbol(".") and len(tokens) > 1:
            return list(self._names.columns(self._table(tokens[-2].value, text)))
        kinds = self._names.kinds()
        if last.is_word("STREAM") and len(tokens) > 1 and tokens[-2].is_word("DESCRIBE", "STOP", "DROP"):
            return [name for name, kind in kinds.items() if kind == "stream"]
        tables = [name for name, kind in kinds.items() if kind != "stream"]
        if last.is_word(*_BEFORE_TABLES):
            return tables
        named = {token.value.casefold() for token in _tokens(text)}
        columns = [
            column for name in tables if name.casefold() in named for column in self._names.columns(name)
        ]
        return [*dict.fromkeys(columns), *tables, *KEYWORDS]

    def _table(self, name: str, text: str) -> str:
        """The table of an alias; the name itself if it is not an alias."""
        known = {one.casefold() for one in self._names.kinds()}
        tokens = _tokens(text)
        for index, token in enumerate(tokens[1:], 1):
            table = tokens[index - 2] if tokens[index - 1].is_word("AS") and index > 1 else tokens[index - 1]
            if token.value.casefold() == name.casefold() and table.value.casefold() in known:
                return table.value
        return name


def is_complete(text: str) -> bool:
    """Whether a text ends in a semicolon, or is a command such as ``\\d``."""
    if not text.strip() or text.lstrip().startswith("\\"):
        return True
    try:
        tokens = tokenize(text)
    except SqlTokenError:
        return False
    return bool(tokens) and tokens[-1].is_symbol(";")


def _tokens(text: str) -> tuple[Token, ...]:
    try:
        return tokenize(text)
    except SqlTokenError:
        return ()


_KAFKA = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
}


class Names:
    """The tables, scans and streams of a storage, read without Spark."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions

    def kinds(self) -> dict[str, str]:
        """The kind of each table, scan and stream, by name."""
        definitions, storage = self._definitions, self._definitions.settings.storage
        found = {}
        for name in sorted(storage.find_tables()):
            stored = load_stored(storage, name)
            if stored is not None and stored.is_private:
                continue
            kind = None if stored is None else stored.kind
            found[name.short] = (kind or "table").replace("_", " ")
        for text in definitions.names("table"):
            name = definitions.name_of(tuple(text.split(".")))
            table = definitions.table(name)
            if table is not None:
                found.setdefault(name.short, "Kafka table" if table.is_kafka else "table without rows")
        found.update(dict.fromkeys(definitions.names("scan"), "scan"))
        return {**found, **{name: "stream" for name in definitions.names("stream") if name not in found}}

    def columns(self, text: str) -> dict[str, str]:
        """The columns of a table or a scan with their types; none if there is no such table."""
        scan = self._definitions.find("scan", text)
        if scan is not None and isinstance(scan[0], CreateScan):
            return self.columns(".".join(scan[0].table))
        name = self._definitions.name_of(tuple(text.split(".")))
        stored = load_stored(self._definitions.settings.storage, name)
        if stored is not None:
            return {field["name"]: type_text(field["type"]) for field in stored.schema["fields"]}
        table = self._definitions.table(name)
        if table is None:
            return {}
        return _KAFKA if table.is_kafka else table_columns(table)

    def describe(self, text: str | None) -> Answer:
        """All names with their kinds, or the columns of one table."""
        if text is None:
            return Answer(
                columns=("name", "kind"), types=("string", "string"), rows=tuple(self.kinds().items())
            )
        columns = self.columns(text)
        if not columns:
            raise self._definitions.unknown("table", text, None)
        return Answer(columns=("column", "type"), types=("string", "string"), rows=tuple(columns.items()))
