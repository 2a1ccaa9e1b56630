"""The Python code and the spec of an ingested topic, as a user would write them."""

from __future__ import annotations

import json
import keyword
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.contracts.schema_types import quote
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.secrets import is_secret_key
from headrace.runtime.places import shared_broker_folder

Mode = Literal["append", "upsert", "cdc"]

KAFKA_COLUMNS = ("kafka_key", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_ts")
"""The columns of an ingested table in addition to the payload's."""

_KAFKA_SQL = (
    "try_validate_utf8(CAST(_source.key AS STRING)) AS kafka_key",
    *(f"_source.{part} AS kafka_{part}" for part in ("topic", "partition", "offset")),
    "_source.timestamp AS kafka_ts",
)
_RAW = """

@hr.table(name={name}, comment={comment})
def {function}():
    return hr.read_kafka({topic})
"""


@dataclass(frozen=True, kw_only=True)
class IngestedTopic:
    topic: str
    table: str
    # Whether records are appended, are the newest row of their key, or are changes of Debezium.
    mode: Mode = "append"
    keys: tuple[str, ...] = ()  # the columns that identify a row; the key of the records if there are none
    # The column that orders the records of a key; by default the timestamp of Kafka, or the position of
    # Debezium.
    sequence_by: str | None = None
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    keep_raw: bool = False  # whether a second table keeps the records as they are

    @property
    def raw_table(self) -> str:
        return f"{self.table}_raw"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table, self.raw_table) if self.keep_raw else (self.table,)

    @property
    def file(self) -> str:
        """The name of its files, without a suffix."""
        return self.table.replace(".", "_")

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.keys or ("kafka_key",)


def build_code(ingested: IngestedTopic, columns: Mapping[str, str], schema: str) -> str:
    """The Python file that declares the table of a topic."""
    name = re.sub(r"\W", "_", ingested.table)
    function = name if name.isidentifier() and not keyword.iskeyword(name) else f"topic_{name}"
    comment = f"The Kafka topic {ingested.topic}"
    head = f'"""{comment} as the table {ingested.table}."""\n\nimport headrace as hr\n'
    if ingested.mode == "append":
        body = (
            f"\n\n@hr.table(\n{_lines(name=ingested.table, comment=comment, **_layout(ingested))})\n"
            f"def {function}():\n{_read(ingested, schema)}"
            f'    return rows.selectExpr(\n{_listed("*", *_KAFKA_SQL)}    ).drop("_source")\n'
        )
    else:
        body = _merge_code(ingested, columns, schema, f"{function}_changes", comment)
    raw = _RAW.format(
        name=json.dumps(ingested.raw_table),
        comment=json.dumps(f"{comment}, as it is"),
        function=f"{function}_raw",
        topic=json.dumps(ingested.topic),
    )
    return head + body + (raw if ingested.keep_raw else "")


def build_spec(
    folder: str | os.PathLike[str],
    name: str,
    storage: str,
    database: str,
    kafka: KafkaConnection,
    configuration: Mapping[str, str],
) -> str:
    """The spec of a pipeline in a folder; secrets become variables."""
    lines = [f"name: {json.dumps(name)}", f"storage: {json.dumps(storage)}"]
    lines += [f"database: {json.dumps(database)}"] if database != "default" else []
    lines += ["libraries:", "  - glob: {include: transformations/**}"]
    for head, settings in (("kafka", kafka.settings), ("configuration", configuration)):
        lines += [f"{head}:"] if settings else []
        for key, value in settings.items():
            text = "${" + variable_of(key) + "}" if is_secret_key(key) else value.replace("${", "$${")
            lines.append(f"  {key}: {json.dumps(text)}")
    if kafka.broker is not None:
        is_shared = kafka.broker == shared_broker_folder()
        broker = str(kafka.broker) if is_shared else os.path.relpath(kafka.broker, folder)
        lines += ["runtime:", f"  broker: {json.dumps(broker)}"]
    return "\n".join(lines) + "\n"


def variable_of(key: str) -> str:
    """The environment variable for a secret setting of the Kafka connection, or of Spark."""
    return ("" if key.startswith("spark.") else "KAFKA_") + re.sub(r"\W", "_", key).upper()


def _merge_code(
    ingested: IngestedTopic, columns: Mapping[str, str], schema: str, view: str, comment: str
) -> str:
    key_lines = ""
    sequence, deletes = ingested.sequence_by or "kafka_ts", "_source.value IS NULL"
    further: dict[str, object] = {}
    if ingested.mode == "cdc":
        sequence, deletes = ingested.sequence_by or "_position", "_op = 'd'"
        further = {
            "apply_as_truncates": "_op = 't'",
            "except_column_list": ["_op", "_position", "_changed_at"],
        }
    else:
        for name in ingested.keys:
            sql = _key_sql(name, columns[name], is_only=len(ingested.keys) == 1)
            key_lines += f"    rows = rows.withColumn({json.dumps(name)}, F.expr({json.dumps(sql)}))\n"
        if columns.get(sequence) == "TIMESTAMP":
            sequence = f"CASE WHEN {deletes} THEN kafka_ts ELSE {quote(sequence)} END"
    imported = "from pyspark.sql import functions as F\n" if key_lines else ""
    comments = (
        "    # A record without a value has its key columns in the record's key.\n" if key_lines else ""
    )
    flow = _lines(
        target=ingested.table,
        source=view,
        keys=list(ingested.key_columns),
        sequence_by=sequence,
        apply_as_deletes=deletes,
        **further,
    )
    table = _lines(name=ingested.table, comment=comment, **_layout(ingested))
    return (
        f"{imported}\n\n@hr.temporary_view\ndef {view}():\n{_read(ingested, schema)}{comments}{key_lines}"
        f"    return rows.selectExpr(\n{_listed('*', *_KAFKA_SQL)}    )\n\n\n"
        f"hr.create_streaming_table(\n{table})\nhr.create_auto_cdc_flow(\n{flow})\n"
    )


def _key_sql(name: str, kind: str, *, is_only: bool) -> str:
    """The value of a key column; for a record without a value, from the record's key. The key is a JSON
    object with the column, or the value of the only key column as text."""
    column, text = quote(name), "CAST(_source.key AS STRING)"
    ddl = f"{column} {kind}".replace("'", "\\'")
    value = f"from_json({text}, '{ddl}').{column}"
    if is_only:
        plain = f"trim(BOTH '\"' FROM {text})"
        value = f"coalesce({value}, CASE WHEN {text} NOT LIKE '{{%' THEN try_cast({plain} AS {kind}) END)"
    return f"CASE WHEN _source.value IS NULL THEN {value} ELSE {column} END"


def _read(ingested: IngestedTopic, schema: str) -> str:
    arguments: dict[str, object] = {"format": "json", "schema": schema, "tombstones": "keep"}
    if ingested.mode == "cdc":
        arguments = {"format": "debezium", "schema": schema}
    listed = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments.items())
    return f"    rows = hr.read_kafka({json.dumps(ingested.topic)}, {listed})\n"


def _layout(ingested: IngestedTopic) -> dict[str, list[str]]:
    given = {"partition_cols": ingested.partition_by, "cluster_by": ingested.cluster_by}
    return {name: list(columns) for name, columns in given.items() if columns}


def _lines(**arguments: object) -> str:
    return "".join(
        f"    {name}={json.dumps(value, ensure_ascii=False)},\n" for name, value in arguments.items()
    )


def _listed(*texts: str) -> str:
    return "".join(f"        {json.dumps(text)},\n" for text in texts)
