"""Patches of Spark's functions for arguments that only Databricks has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headrace.errors import FeatureUnsupportedError
from headrace.plan.intercept import current_interception
from headrace.sources.formats import RegisteredAvro, registry_decoder
from headrace.syntax.locations import called_name, caller

SCHEMA_REMEDIES = (
    "give the fields:   from_json(value, 'id LONG, name STRING')",
    "headrace infer TOPIC writes the schema of a topic's records to a file",
)


def patch_functions() -> None:
    from pyspark.sql import functions as names
    from pyspark.sql.avro import functions as avro
    from pyspark.sql.functions import builtin

    from_json = _with_schema(builtin.from_json)
    names.from_json = builtin.from_json = from_json
    avro.from_avro = _with_registry(avro.from_avro)


def _with_schema(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_json(col: Any, schema: Any = None, options: Any = None) -> Any:
        interception = current_interception()
        if interception is not None and schema is None:
            raise FeatureUnsupportedError(
                f"this version does not support {called_name('from_json')} without a schema",
                location=caller(interception.root),
                facts=["Databricks infers the schema, and changes it while the stream runs"],
                remedies=SCHEMA_REMEDIES,
                params={"what": "from_json"},
            )
        return original(col, schema, options)

    return from_json


def _with_registry(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_avro(
        data: Any,
        jsonFormatSchema: Any = None,
        options: Any = None,
        *more: Any,
        subject: Any = None,
        schemaRegistryAddress: Any = None,
    ) -> Any:
        if more or isinstance(options, str):
            # By position: the column, the subject, the address, and the options.
            subject, schemaRegistryAddress = jsonFormatSchema, options
            jsonFormatSchema, options = None, more[0] if more else None
        decode = registry_decoder()
        if decode is None or (subject is None and schemaRegistryAddress is None):
            return original(data, jsonFormatSchema, options)
        return decode(
            RegisteredAvro(
                data=data,
                schema=jsonFormatSchema,
                subject=subject,
                address=schemaRegistryAddress,
                options=dict(options or {}),
            )
        )

    return from_avro
