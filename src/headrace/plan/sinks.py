"""Checks of sinks: the rows that they get, and queries that read them."""

from __future__ import annotations

from headrace.errors import SinkInvalidError, SourceLocation
from headrace.model.declarations import Sink, StreamingTable
from headrace.plan import columns
from headrace.plan.names import shown


def check_sink(table: StreamingTable, sink: Sink, schema: columns.Schema) -> None:
    """Check that rows have the columns that the writer of a sink needs.

    Raises:
        SinkInvalidError: A row for Kafka has no value, or nothing says which topic it is for.
    """
    names = {field["name"] for field in schema["fields"]}
    if sink.writer != "kafka":
        return
    missing = "value" if "value" not in names else "topic"
    if missing in names or (missing == "topic" and "topic" in sink.options):
        return
    remedies = ['return a column `value`: selectExpr("to_json(struct(*)) AS value")']
    if missing == "topic":
        remedies = ['set options={"topic": ..}', "or return a column `topic`"]
    raise SinkInvalidError(
        f"the rows for the Kafka sink `{shown(table.name)}` have no column `{missing}`",
        location=table.location,
        facts=[f"they have {', '.join(sorted(names))}"],
        remedies=remedies,
        params={"sink": str(table.name), "column": missing},
    )


def sink_read(table: StreamingTable, location: SourceLocation) -> SinkInvalidError:
    """The error for a query that reads a sink."""
    return SinkInvalidError(
        f"a query reads `{shown(table.name)}`, which is a sink and stores no rows",
        location=location,
        facts=[f"the sink is declared at {table.location}"],
        remedies=["read the tables that its flows read"],
        params={"sink": str(table.name), "column": None},
    )
