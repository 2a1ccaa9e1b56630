"""Rows as Avro in the wire format of Confluent's schema registry: zero, the schema's id, the record."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headrace.errors import SchemaRegistryUnreachableError
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import Column, DataFrame, F
from headrace.runtime.schema_registry import URL, USER_INFO, SchemaRegistry
from headrace.sinks.outside.by_key import invalid
from headrace.sinks.target import SinkSpec

OPTIONS = ("subject", "schema_registry")
"""The options of a sink that writes Avro."""

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_TYPES = re.compile(
    "boolean|byte|short|integer|long|float|double|string|binary|date|timestamp|timestamp_ntz|void"
    r"|(decimal|char|varchar|time)\(.*\)"
)
"""The types of Spark that other readers of Avro understand. To them, an interval would be a mere number."""


class AvroValues:
    """The values of a sink's messages. `subject`: that of the schema registry for them."""

    def __init__(self, spec: SinkSpec, topic: str, columns: Collection[str]) -> None:
        sent = [one for one in spec.schema["fields"] if one["name"] in columns]
        if (problem := _find_problem({"type": "struct", "fields": sent})) is not None:
            remedy = "rename or cast the column in the query"
            raise invalid(spec, "its rows cannot be sent as Avro", problem, remedy)
        self._name = re.sub(r"\W", "_", topic if topic[:1].isalpha() else f"t_{topic}", flags=re.ASCII)
        self.subject = spec.options.get("subject") or f"{topic}-value"
        address = spec.options.get("schema_registry") or spec.connection.get(URL)
        if address is None:
            what = "its rows are sent as Avro, and no schema registry is known"
            raise invalid(spec, what, None, f'add {URL} under kafka:, or the option "schema_registry"')
        self._registry = SchemaRegistry.at(address, spec.connection.get(USER_INFO))
        self._ids: dict[str, int] = {}

    def column(self, rows: DataFrame, names: Iterable[str]) -> Column:
        """The columns of a row as one record. Registers its schema at the first rows."""
        from pyspark.sql.avro.functions import to_avro

        record = F.struct(*map(quoted_column, names))
        schema = self._schema(rows.select(record.alias("r")).select("r.*"))
        try:
            # In each batch: a registry that was set up again can give the id to another schema.
            self._ids[schema] = self._registry.register(self.subject, schema)
        except SchemaRegistryUnreachableError:
            if schema not in self._ids:
                raise
        header = bytearray(b"\0" + self._ids[schema].to_bytes(4, "big"))
        return F.concat(F.lit(header), to_avro(record, schema))

    def _schema(self, rows: DataFrame) -> str:
        jvm: Any = rows.sparkSession.sparkContext._jvm
        # A later batch may know that a column has no NULL; its schema is the same.
        columns: Any = rows._jdf.schema().asNullable()
        converters = jvm.org.apache.spark.sql.avro.SchemaConverters
        made = converters.toAvroType(columns, False, self._name, "")
        return json.dumps(_with_defaults(json.loads(str(made.toString()))), ensure_ascii=False)


def _find_problem(kind: Any) -> str | None:
    """Why values of one of Spark's types cannot be Avro; ``None`` if they can."""
    match kind:
        case {"type": "struct", "fields": fields}:
            wrong = [one["name"] for one in fields if not _NAME.fullmatch(one["name"])]
            if wrong:
                return (
                    f"`{wrong[0]}` is not a valid name in Avro, which takes letters from A to Z, digits and _"
                )
            return next(filter(None, (_find_problem(one["type"]) for one in fields)), None)
        case {"type": "array", "elementType": element}:
            return _find_problem(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            return _find_problem(value) if key == "string" else f"the keys of a map are {key}, not string"
        case str() if _TYPES.fullmatch(kind):
            return None
    return f"Avro has no type for {kind if isinstance(kind, str) else kind['type']}"


def _with_defaults(schema: Any) -> Any:
    """The schema with NULL as the default of fields: by the rules of a registry, they can come and go."""
    if isinstance(schema, list):
        return sorted(map(_with_defaults, schema), key=lambda one: one != "null")
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _with_defaults(value) for key, value in schema.items() if key != "fields"}
    if "fields" in schema:
        found["fields"] = [
            {**one, "type": kind, **({"default": None} if kind == "null" or isinstance(kind, list) else {})}
            for one in schema["fields"]
            for kind in [_with_defaults(one["type"])]
        ]
    return found
