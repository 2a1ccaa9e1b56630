"""The names that statements of `headrace sql` can have, for completion and `\\\\d`."""

from __future__ import annotations

from prompt_toolkit.completion import Completer, WordCompleter

from headrace.plan.columns import type_text
from headrace.plan.stored import load_stored
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer
from headrace.shell.stream_sql import table_columns
from headrace.syntax.stream_statements import CreateScan
from headrace.syntax.tokens import SqlTokenError, tokenize

KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AS"),
    *("AND", "OR", "NOT", "IN", "IS NULL", "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END"),
    *("CREATE TABLE", "CREATE SCAN", "CREATE STREAM", "IF NOT EXISTS", "USING kafka", "USING delta"),
    *("USING STREAM", "OPTIONS", "LOCATION", "PARTITIONED BY", "CLUSTER BY", "INSERT INTO", "BY NAME"),
    *("MERGE INTO", "WHEN MATCHED THEN UPDATE *", "WHEN NOT MATCHED THEN INSERT *", "DELETE", "WITH"),
    *("SHOW STREAMS", "SHOW TABLES", "DESCRIBE", "DESCRIBE STREAM", "STOP STREAM", "DROP STREAM"),
    *("DROP SCAN", "DROP TABLE", "EXPLAIN", "UNION ALL", "DISTINCT", "SET"),
)


def make_completer(names: Names) -> Completer:
    """Completes keywords, the names of tables, scans and streams, and the columns of tables."""

    def words() -> list[str]:
        known = names.kinds()
        columns = (column for name in known for column in names.columns(name))
        return [*dict.fromkeys((*columns, *known, *KEYWORDS))]

    return WordCompleter(words, ignore_case=True)


def is_complete(text: str) -> bool:
    """Whether a text ends in a semicolon, or is a command such as ``\\d``."""
    if not text.strip() or text.lstrip().startswith("\\"):
        return True
    try:
        tokens = tokenize(text)
    except SqlTokenError:
        return False
    return bool(tokens) and tokens[-1].is_symbol(";")


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
        if text is None:
            return Answer(
                columns=("name", "kind"), types=("string", "string"), rows=tuple(self.kinds().items())
            )
        columns = self.columns(text)
        if not columns:
            raise self._definitions.unknown("table", text, None)
        return Answer(columns=("column", "type"), types=("string", "string"), rows=tuple(columns.items()))
