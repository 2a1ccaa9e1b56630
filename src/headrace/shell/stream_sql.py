"""The statements of a pipeline's SQL files for what `headrace sql` has defined. Nothing is written here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import SourceLocation, SqlInvalidError, did_you_mean
from headrace.model.names import TableName, quoted_column
from headrace.model.queries import Edit
from headrace.plan.names import quoted
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import CreateScan, CreateStream, CreateTable
from headrace.syntax.tokens import Cursor, Token, quote_string

POSITION = "_headrace_position"
"""The column with the position of a record, which orders the changes of a ``MERGE``."""
_POSITION = f"struct(partition, offset) AS {POSITION}"
_ROWS = "headrace_rows"
_TOPICS = ("subscribe", "subscribepattern", "assign")
_OPTIONS = ("checkpointLocation", "triggerType", "triggerInterval", "outputMode", "sequenceBy")
_MIXED = frozenset({"GROUP", "DISTINCT", "UNION", "INTERSECT", "JOIN", "WITH", "HAVING"})


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    checkpoint: str | None = None  # the folder of the checkpoint; ``None`` for one in the storage
    once: bool = False  # whether the stream ends after the records that exist at its start
    interval: str | None = None  # the minimum time between the starts of two batches
    sequence_by: str | None = None  # what orders the changes of a ``MERGE``


@dataclass(frozen=True, kw_only=True)
class FlowSql:
    text: str
    query: SqlText  # the user's statement, with the edits that the query has in the file
    # The index in the file of the edited statement's first character; negative if the file begins within
    # the statement.
    begins: int
    start: int  # the index of the query in the edited statement
    stop: int

    def original(self, location: SourceLocation) -> SourceLocation | None:
        """The location in the user's text of a location in the file; ``None`` outside of the query."""
        if location.column is None:
            return None
        above = "".join(self.text.splitlines(keepends=True)[: location.line - 1])
        index = len(above) + location.column - 1 - self.begins
        if not self.start <= index < self.stop:
            return None
        return self.query.locate(index, min(index + (location.length or 1), self.stop) - 1, None)


def read_options(stream: CreateStream) -> StreamOptions:
    names = {name.lower(): name for name in _OPTIONS}
    given = {}
    for name, value in stream.options.items():
        if name.lower() not in names:
            remedies = did_you_mean(name, _OPTIONS, f"its options: {', '.join(_OPTIONS)}")
            raise invalid_sql(stream.location, f"`{name}` is not an option of a stream", *remedies)
        given[name.lower()] = value
    kind = given.get("triggertype", "ProcessingTime")
    if kind.lower() not in ("processingtime", "once", "availablenow"):
        raise invalid_sql(
            stream.location, f"triggerType is `{kind}`", "write ProcessingTime, Once or AvailableNow"
        )
    if given.get("outputmode", "append").lower() not in ("append", "update"):
        raise invalid_sql(stream.location, f"outputMode is `{given['outputmode']}`", "write append")
    once = kind.lower() != "processingtime"
    return StreamOptions(
        checkpoint=given.get("checkpointlocation"),
        once=once,
        interval=None if once else given.get("triggerinterval"),
        sequence_by=given.get("sequenceby"),
    )


def build_table(table: CreateTable, name: TableName) -> str:
    clauses = [f"CREATE STREAMING TABLE {quoted(name)}"]
    clauses += [f"({table.columns})"] if table.columns else []
    for words, columns in (("PARTITIONED BY", table.partition_cols), ("CLUSTER BY", table.cluster_by)):
        clauses += [f"{words} ({', '.join(map(quoted_column, columns))})"] if columns else []
    clauses += [f"COMMENT {quote_string(table.comment)}"] if table.comment is not None else []
    if table.properties:
        clauses.append(f"TBLPROPERTIES ({_pairs(table.properties)})")
    return "\n".join(clauses) + ";\n"


def build_scan(scan: CreateScan, table: CreateTable | None, name: TableName) -> str:
    if table is None or not table.is_kafka:
        listed = _pairs(scan.options)
        read = f"STREAM {quoted(name)}" + (f" WITH ({listed})" if listed else "")
    else:
        options = kafka_options(scan, table)
        names = {key: ".".join(map(quoted_column, key.split("."))) for key in options}
        arguments = (f"{names[key]} => {quote_string(value)}" for key, value in options.items())
        read = f"STREAM read_kafka({', '.join(arguments)})"
    return f"CREATE TEMPORARY VIEW {quoted_column(scan.name)} AS SELECT * FROM {read};\n"


def kafka_options(scan: CreateScan | None, table: CreateTable) -> Mapping[str, str]:
    """The options of Spark's reader; an option of the scan replaces the same option of the table."""
    options = {**table.options, **({} if scan is None else scan.options)}
    if not any(name.lower() in _TOPICS for name in options):
        raise invalid_sql(
            table.location if scan is None else scan.location,
            f"the Kafka table `{table.name[-1]}` names no topic",
            "add the option subscribe 'topic' to the table",
        )
    return options


def batch_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a reader that reads all records of the topics."""
    return {
        name: value
        for name, value in options.items()
        if name.lower() in _TOPICS or name.lower().startswith("kafka.")
    }


def build_flow(
    name: str, stream: CreateStream, target: TableName, columns: Sequence[str], scans: Mapping[str, bool]
) -> FlowSql:
    options = read_options(stream)
    query = stream.query
    trigger = f"SET pipelines.trigger.interval = {options.interval};\n" if options.interval else ""
    head = f"{trigger}CREATE FLOW {quoted_column(name)} AS "
    edits = list(_streams(query.tokens, scans))
    if stream.merge is None:
        head += f"INSERT INTO {quoted(target)} BY NAME\n"
        names = () if stream.by_name else stream.columns or columns
        tail = f"\n) AS {_ROWS}({', '.join(map(quoted_column, names))})" if names else ""
        head += "SELECT * FROM (\n" if names else ""
    else:
        if options.sequence_by is None:
            edits += _positions(stream, scans)
        head += f"AUTO CDC INTO {quoted(target)}\nFROM (\n"
        if len(query.tokens) < 3 or not query.tokens[0].is_word("SELECT", "FROM"):
            head += "SELECT *" + ("" if options.sequence_by else f", {_POSITION}") + " FROM STREAM "
            edits = []
        listed = ", ".join(map(quoted_column, columns))
        tail = f"\n)\nKEYS ({', '.join(map(quoted_column, stream.merge.keys))})\n"
        tail += f"APPLY AS DELETE WHEN {stream.merge.deletes}\n" if stream.merge.deletes else ""
        tail += f"SEQUENCE BY {options.sequence_by or POSITION}\n"
        excluded = "" if options.sequence_by else f"COLUMNS * EXCEPT ({POSITION})"
        tail += f"COLUMNS ({listed})" if listed else excluded
    whole = SqlText(query.text.edited, query.text.location, tuple(edits))
    stop = query.stop + sum(len(edit.text) - (edit.stop - edit.start) for edit in edits)
    return FlowSql(
        text=f"{head}{whole.edited[query.start : stop]}{tail};\n",
        query=whole,
        begins=len(head) - query.start,
        start=query.start,
        stop=stop,
    )


def table_columns(table: CreateTable) -> dict[str, str]:
    """The types of the columns of a Delta table by name; none if it declares none."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if not table.columns:
        return {}
    try:
        parsed = sqlglot.parse_one(f"STRUCT<{table.columns}>", into=exp.DataType, dialect="spark")
    except SqlglotError as error:
        raise invalid_sql(table.location, "the list of columns cannot be read") from error
    return {
        str(one.name): one.args["kind"].sql("spark") for one in parsed.expressions if one.args.get("kind")
    }


def _streams(tokens: Sequence[Token], scans: Mapping[str, bool]) -> Iterator[Edit]:
    """Read each scan as a stream: ``FROM scan`` becomes ``FROM STREAM scan``."""
    for index, token in enumerate(tokens[1:], 1):
        is_scan = token.kind in ("word", "name") and token.value.casefold() in scans
        if is_scan and tokens[index - 1].is_word("FROM", "JOIN"):
            yield Edit(token.start, token.start, "STREAM ")


def _positions(stream: CreateStream, scans: Mapping[str, bool]) -> Iterator[Edit]:
    """Carry the position of the records to the rows of a query of nested ``SELECT``s over one scan."""
    tokens = stream.query.tokens
    if len(tokens) < 3:
        if not any(scans.get(one.value.casefold()) for one in tokens):
            raise _no_order(stream)
        return
    depths = list(_depths(tokens))
    if any(token.is_word(*_MIXED) for token in tokens):
        raise _no_order(stream)
    for index, token in enumerate(tokens):
        if not token.is_word("SELECT"):
            continue
        ends = (at for at in range(index, len(tokens)) if depths[at] == depths[index])
        found = next((at for at in ends if tokens[at].is_word("FROM")), None)
        if found is None or found + 1 >= len(tokens):
            raise _no_order(stream)
        source = tokens[found + 1]
        if source.is_symbol("("):
            if not _has_star(tokens[index:found]):
                yield Edit(tokens[found - 1].stop, tokens[found - 1].stop, f", {POSITION}")
        elif scans.get(source.value.casefold()):
            yield Edit(tokens[found - 1].stop, tokens[found - 1].stop, f", {_POSITION}")
        else:
            raise _no_order(stream)


def _depths(tokens: Sequence[Token]) -> Iterator[int]:
    depth = 0
    for token in tokens:
        depth -= token.is_symbol(")")
        yield depth
        depth += token.is_symbol("(")


def _has_star(selected: Sequence[Token]) -> bool:
    """Whether a list of a ``SELECT`` has ``*`` as a column; ``a * b`` and ``s.*`` are none."""
    pairs = itertools.pairwise(selected)
    return any(
        token.is_symbol("*") and (before.is_symbol(",") or before.is_word("SELECT"))
        for before, token in pairs
    )


def _no_order(stream: CreateStream) -> SqlInvalidError:
    return invalid_sql(
        stream.location,
        "the order of the changes of this MERGE is not known",
        "write nested SELECTs over one scan of a Kafka table: partition and offset order its records",
        "or name a column of the source: CREATE STREAM name OPTIONS (sequenceBy 'changed_at') MERGE INTO ..",
    )


def invalid_sql(location: SourceLocation, problem: str, *remedies: str) -> SqlInvalidError:
    return SqlInvalidError(problem, location=location, remedies=remedies, params={"problem": problem})


def scans_of(query: Cursor, names: Sequence[str]) -> list[str]:
    found = {token.value.casefold() for token in query.tokens if token.kind in ("word", "name")}
    return [name for name in names if name.casefold() in found]


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{quote_string(key)} = {quote_string(value)}" for key, value in values.items())
