"""The names that statements of `headrace sql` can have, for completion and `\\d`."""

from __future__ import annotations

from headrace.plan.columns import type_text
from headrace.plan.stored import load_stored
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer
from headrace.shell.stream_sql import table_columns
from headrace.syntax.stream_statements import CreateScan

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
