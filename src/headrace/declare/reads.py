"""Kafka topics and their records in query functions: `read_kafka`, `parse_json`, `debezium`, `from_avro`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.declare.arguments import Arguments, arguments_of, evolving_schema, parse_drift
from headrace.declare.registry import ActivePipeline, current_pipeline, require_pipeline
from headrace.errors import FeatureUnsupportedError, SchemaInvalidError, SpecInvalidError
from headrace.model.declarations import DriftAction
from headrace.runtime.lazy_pyspark import Column, DataFrame, F, StructType
from headrace.sources.kafka.clusters import map_connection
from headrace.sources.kafka.subscription import compile_pattern, is_topic_name
from headrace.sources.requests import RegisteredAvro
from headrace.sources.schemas import SchemaFile, load_schema
from headrace.syntax.locations import argument_location

if TYPE_CHECKING:
    from headrace.runtime.schema_registry import SchemaRegistry
    from headrace.sources.kafka.avro_decoder import AvroDecoder
    from headrace.sources.kafka.read import StartingOffsets


def read_kafka(
    topic: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    allow_no_match: bool = False,
    format: Literal["raw", "json", "text", "csv", "avro", "debezium"] = "raw",
    schema: str | StructType | None = None,
    format_options: Mapping[str, str] | None = None,
    schema_registry: str | bool | None = None,
    subject: str | None = None,
    invalid_utf8: Literal["reject", "replace"] = "reject",
    starting_offsets: StartingOffsets = "earliest",
    starting_timestamp: datetime | str | None = None,
    max_offsets_per_trigger: int | None = None,
    bad_records: Literal["quarantine", "stop"] = "quarantine",
    tombstones: Literal["quarantine", "skip", "keep"] | None = None,
    max_value_bytes: int | None = None,
    drift: DriftAction | Mapping[str, DriftAction] | None = None,
    on_data_loss: Literal["refuse", "record"] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A Kafka topic as a streaming DataFrame; the connection comes from the pipeline's profile.

    Every row has a struct ``_source``: topic, partition, offset, timestamp, key, headers and, except for
    ``raw`` and ``text``, the original bytes as ``value``. A query may keep, flatten or drop it;
    if a table keeps it, ``headrace verify`` can compare each record with the broker.

    Args:
        topic: One topic or a list of them.
        pattern: In place of topics, a regular expression for whole topic names. Topics that are
            created later are read from their first record.
        allow_no_match: Whether the pattern may match no topic.
        format: ``raw`` gives ``key`` and ``value`` as bytes; ``json`` gives the fields of ``schema``;
            ``text`` gives ``value`` as a string; ``csv`` gives the fields of ``schema`` by position;
            ``avro`` gives the fields of the Avro schema; ``debezium`` gives the columns of ``schema`` from
            a change event in JSON, and ``_op``, ``_position`` and ``_changed_at``, as `hr.debezium` does.
        schema: The fields of JSON, CSV or Debezium records: a DDL string, a ``StructType``, or a file of
            either. For ``avro``, the reader's schema: Avro JSON, or a file of it.
        format_options: Options of Spark's CSV parser, such as ``{"sep": ";"}``; for ``debezium``,
            ``timestamp_unit`` and ``decimals`` of `hr.debezium`.
        schema_registry: For ``avro``: the address of the schema registry, or ``True`` for the one of the
            profile. Records then have Confluent's wire format, and are resolved to ``schema``, or to the
            latest version of the subject.
        subject: The subject in the registry; by default ``TOPIC-value``.
        invalid_utf8: What to do with a JSON or text record that is not valid UTF-8: ``reject``
            makes it a bad record, ``replace`` replaces invalid bytes by U+FFFD.
        starting_offsets: Where a flow without a checkpoint starts: ``earliest``, ``latest``, or a dict
            by topic and partition, of offsets or of these words.
        starting_timestamp: In place of offsets, a ``datetime`` or text in ISO 8601; without a zone it is
            in UTC. A partition without a later record starts at its end.
        max_offsets_per_trigger: The maximum number of records in a batch; the default keeps a batch
            under about 30 seconds.
        bad_records: What to do with a record that cannot be decoded: move it to the
            ``quarantine`` table, or ``stop`` the flow.
        tombstones: What to do with a record without a value: ``quarantine`` makes it a bad record,
            ``skip`` drops and counts it, ``keep`` makes a row of NULLs. The default is ``quarantine``, and
            ``skip`` for ``debezium``, whose tombstones follow the event of the delete.
        max_value_bytes: A record with a longer value is a bad record; by default the spec's, else 8 MiB.
        drift: What to do with a JSON record that differs from the schema: ``evolve`` adds columns, ``rescue``
            keeps its fields in the column ``_rescued_data``, ``quarantine`` makes it a bad record, ``fail``
            stops the flow; or a dict of these by field, with ``*`` for all others. By default, new fields
            are ignored, and a value of another type makes it a bad record.
        on_data_loss: What to do if the topics no longer have records that the flow must read:
            ``refuse``, or ``record`` the loss and continue after it. By default as in ``headrace.yml``.
        options: Further options of Spark's Kafka source. With ``kafka.bootstrap.servers`` of another cluster
            they are the whole connection: give its ``kafka.*`` settings too.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE")
    """
    from headrace.sources.kafka.read import KafkaRead, read

    active = require_pipeline("read_kafka")
    arguments = arguments_of("hr.read_kafka")
    chosen = arguments.settings("options", options)
    active.settings.redactor.add_settings(chosen)
    if (mapped := map_connection(chosen, active.settings, arguments.location)) is not None:
        chosen = dict(mapped.options)
    _check(active, arguments, chosen, max_offsets_per_trigger, on_data_loss)
    with arguments.located():
        topics = _topics(arguments, topic, pattern, allow_no_match)
        avro = AvroRead(active, arguments, topics, schema, schema_registry, subject)
        fields = None if format == "avro" else declared_schema(arguments, schema)
        actions = parse_drift(arguments, drift, fields if format == "json" else None)
        cluster = next((v for k, v in chosen.items() if k.lower() == "kafka.bootstrap.servers"), "")
        read_from = f"kafka {topics or pattern} {cluster}".strip()
        evolving = evolving_schema(active, arguments, read_from, fields, actions)
        kafka = KafkaRead(
            topics=topics,
            pattern=pattern,
            allow_no_match=allow_no_match,
            format=format,
            schema=fields if evolving is None else evolving.schema,
            format_options=arguments.settings("format_options", format_options),
            avro=avro.decoder(format),
            invalid_utf8=invalid_utf8,
            starting_offsets=starting_offsets,
            starting_timestamp=starting_timestamp,
            max_offsets_per_trigger=max_offsets_per_trigger,
            bad_records=bad_records,
            tombstones=tombstones or ("skip" if format == "debezium" else "quarantine"),
            max_value_bytes=value_limit(active, arguments, max_value_bytes),
            on_data_loss=on_data_loss,
            options=chosen,
            drift=actions,
            evolving=evolving,
            notes_unknown=active.quarantines,
        )
        if not active.quarantines:
            kafka = replace(kafka, bad_records="stop")
        return read(active.session(), active.settings.kafka, kafka, active.bad_records)


def parse_json(
    value: str | Column,
    schema: str | StructType,
    *,
    at: Sequence[str | Column] = (),
    on_null: Literal["refuse", "keep"] = "refuse",
) -> Column:
    """Parse JSON text or bytes into a struct; a malformed record, or invalid UTF-8, is an error of the query.

    A flow without state over Kafka records quarantines such a record. Other flows stop.

    Args:
        value: The column with the text.
        schema: The record's fields: a DDL string, a ``StructType``, or a file of either.
        at: Columns that identify the record in the error.
        on_null: Whether a record without a value stops the flow or gives a null struct.

    Returns:
        A struct column with the fields of ``schema``.

    Example:
        >>> import headrace as hr
        >>> sale = hr.parse_json("value", "id LONG, amount DOUBLE", at=["offset"])  # doctest: +SKIP
    """
    from headrace.sources.decoders import JsonDecoder
    from headrace.sources.records import decode_or_stop

    arguments = arguments_of("hr.parse_json")
    fields = declared_schema(arguments, schema) or load_schema(schema, Path(), arguments.location)
    column, *coordinates = (F.col(one) if isinstance(one, str) else one for one in (value, *at))
    return decode_or_stop(JsonDecoder(fields), column, at=coordinates, on_null=on_null)


def declared_schema(arguments: Arguments, given: Any) -> StructType | None:
    """A schema as a ``StructType``; a schema file is recorded, since the plan depends on it."""
    active = current_pipeline()
    root = active.settings.root if active else Path()
    found = arguments.schema(given, root)
    if isinstance(found, SchemaFile) and active is not None:
        active.schema_files[found.path] = found.digest
    return None if found is None else load_schema(found, root, arguments.location)


def value_limit(active: ActivePipeline, arguments: Arguments, given: Any) -> int:
    """The maximum size of a value in bytes: the limit of the reader, of the spec, or the default."""
    from headrace.sources.bad_records import MAX_VALUE_BYTES

    if given is None:
        return active.settings.max_value_bytes or MAX_VALUE_BYTES
    return arguments.positive("max_value_bytes", given)


def _check(
    active: ActivePipeline, arguments: Arguments, options: Mapping[str, str], limit: Any, on_data_loss: Any
) -> None:
    named = any(name.lower() == "kafka.bootstrap.servers" for name in options)
    if not (named or active.settings.kafka.bootstrap_servers):
        raise SpecInvalidError(
            f"read_kafka needs a Kafka broker, but the profile `{active.settings.profile}` sets none",
            location=arguments.location,
            remedies=[
                "set kafka: {bootstrap.servers: HOST:PORT} in headrace.yml; "
                "with `embedded`, Headrace starts a broker"
            ],
            params={"profile": active.settings.profile, "key": "kafka.bootstrap.servers"},
        )
    if limit is not None:
        arguments.positive("max_offsets_per_trigger", limit)
    if on_data_loss is not None:
        arguments.one_of("on_data_loss", on_data_loss, "refuse", "record")


def _topics(arguments: Arguments, topic: Any, pattern: Any, allow_no_match: Any) -> str | None:
    """The topics, separated by commas; ``None`` if a pattern is given."""
    if (topic is None) == (pattern is None):
        problem = "or pattern must be set" if topic is None else "and pattern cannot both be set"
        raise arguments.invalid(
            "topic", problem, 'write read_kafka("orders") or read_kafka(pattern="orders-.*")'
        )
    if pattern is not None:
        try:
            compile_pattern(arguments.text("pattern", pattern))
        except ValueError as error:
            problem = str(error).removeprefix("has a pattern that ")
            raise arguments.invalid("pattern", problem) from error
        return None
    if allow_no_match:
        raise arguments.invalid("allow_no_match", "needs a pattern; a topic that is named must exist")
    names = [topic] if isinstance(topic, str) else arguments.columns("topic", topic)
    named = [name.strip() for text in names for name in text.split(",") if name.strip()]
    if not named:
        raise arguments.invalid("topic", "must not be empty")
    for name in named:
        if not is_topic_name(name):
            problem = f"has `{name}`, which is not a valid topic name (letters, digits, `.`, `_` and `-`)"
            raise arguments.invalid("topic", problem)
    return ",".join(named)


@dataclass(frozen=True)
class AvroRead:
    """The Avro arguments of a read, as the user gave them."""

    active: ActivePipeline
    arguments: Arguments
    topics: str | None  # separated by commas; ``None`` for a pattern
    schema: Any  # the reader's schema: JSON text or a file
    registry: Any  # the address of the schema registry; True for the profile's
    subject: Any

    def decoder(self, format: str) -> AvroDecoder | None:
        """The decoder of the records; ``None`` if the format is not Avro."""
        arguments = self.arguments
        if format != "avro":
            for argument, value in (("schema_registry", self.registry), ("subject", self.subject)):
                if value is not None:
                    raise arguments.invalid(argument, 'works with format="avro" only', f"remove {argument}")
            return None
        from headrace.sources.kafka.avro_decoder import AvroDecoder

        reader = None if self.schema is None else self._reader()
        registry = self._registry(has_reader=reader is not None)
        if registry is None:
            if reader is None:
                problem = 'is missing: format="avro" needs a schema, a schema registry, or both'
                raise arguments.invalid("schema", problem, 'write schema="schemas/orders.avsc"')
            if self.subject is not None:
                raise arguments.invalid("subject", "needs a schema registry", "add schema_registry=..")
            return AvroDecoder(reader)
        subjects = self._subjects()
        if reader is None and len(subjects) > 1:
            problem = "is missing: topics with a subject each have no common latest version"
            raise arguments.invalid("schema", problem, "give the reader's schema, or read one topic")
        versions = [one for subject in subjects for one in registry.load_versions(subject)]
        if reader is None:
            reader = checked_avro(versions[-1].text, arguments, f"subject {subjects[0]}")
        return AvroDecoder(reader, {one.id: one.text for one in versions})

    def _reader(self) -> str:
        given, arguments = self.schema, self.arguments
        text = str(given) if isinstance(given, Path) else arguments.text("schema", given).strip()
        if text.startswith("{"):
            return checked_avro(text, arguments, "the argument schema")
        try:
            found = SchemaFile(text, (self.active.settings.root / text).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            problem = f"names the file {text}, which cannot be read: {error}"
            raise arguments.invalid("schema", problem, "write Avro JSON, or name a file of it") from error
        self.active.schema_files[found.path] = found.digest
        return checked_avro(found.text, arguments, f"the schema file {text}")

    def _registry(self, *, has_reader: bool) -> SchemaRegistry | None:
        from headrace.runtime.schema_registry import URL, USER_INFO, SchemaRegistry

        arguments, profile = self.arguments, self.active.settings
        settings = profile.kafka.settings
        wanted = self.registry
        if wanted is None or isinstance(wanted, bool):
            # A schema without a registry means records without the wire format.
            if wanted is False or (wanted is None and (has_reader or URL not in settings)):
                return None
            if URL not in settings:
                problem = f"is True, but the profile `{profile.profile}` has no registry"
                raise arguments.invalid(
                    "schema_registry", problem, f"set kafka: {{{URL}: ..}} in headrace.yml"
                )
            wanted = settings[URL]
        address = arguments.text("schema_registry", wanted)
        if not address.startswith(("http://", "https://")):
            problem = f"must be an address, not {address!r}"
            raise arguments.invalid("schema_registry", problem, 'write "https://registry.example:8081"')
        registry = SchemaRegistry.at(address, settings.get(USER_INFO))
        if registry.user is not None:
            profile.redactor.add(registry.user)
            profile.redactor.add(registry.user.partition(":")[2])
        return registry

    def _subjects(self) -> list[str]:
        if self.subject is not None:
            return [self.arguments.text("subject", self.subject)]
        if self.topics is None:
            problem = "is missing: a pattern of topics has no subject of its own"
            raise self.arguments.invalid("subject", problem)
        return [f"{topic}-value" for topic in self.topics.split(",")]


def checked_avro(text: str, arguments: Arguments, where: str) -> str:
    """An Avro schema, which must be a record with fields."""
    problem = "it is not a record with fields"
    example = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    try:
        value = json.loads(text)
    except ValueError as error:
        value, problem = None, f"it is not JSON: {error}"
    if isinstance(value, dict) and isinstance(kind := value.get("type"), str) and kind != "record":
        problem = f"its type is `{kind}`, not `record`"
    if not (isinstance(value, dict) and value.get("type") == "record" and value.get("fields")):
        raise SchemaInvalidError(
            f"{where} is not an Avro schema of a record",
            location=argument_location(arguments.location, "schema"),
            facts=[problem],
            remedies=[f"write a record, such as:   {example}"],
            params={"schema": text[:200]},
        )
    return text


def debezium(
    df: DataFrame,
    schema: str | StructType | None = None,
    *,
    timestamp_unit: Literal["millis", "micros", "nanos"] | None = None,
    decimals: Literal["precise", "string"] | None = None,
) -> DataFrame:
    """The rows of Debezium's change events, ready for `create_auto_cdc_flow`.

    The result has the columns of the row (after the change; before it for a delete), ``_op`` (``c``, ``u``,
    ``d``, ``r`` for a snapshot, ``t`` for a truncate), ``_position`` (the position in the database's log, as
    text that sorts in the order of the changes), ``_changed_at`` (the time of the change) and all other
    columns of ``df``, such as ``_source``. Tombstones are skipped: the event of the delete comes before them.

    Args:
        df: A DataFrame with a column ``value`` that holds change events in JSON, with or without the schema
            part; or with the columns ``before``, ``after``, ``source`` and ``op``, as from Avro.
        schema: The columns of the database's table, if ``df`` has JSON: a DDL string, a ``StructType``, or
            a file of either.
        timestamp_unit: The unit of numbers in ``TIMESTAMP`` columns, for JSON without the schema part.
        decimals: How text in ``DECIMAL`` columns is read, for JSON without the schema part: ``precise`` is
            base64, as ``decimal.handling.mode=precise`` writes it, with the scale of the declared type;
            ``string`` is a decimal number.

    Example:
        >>> import headrace as hr
        >>> @hr.temporary_view
        ... def customer_changes():
        ...     return hr.debezium(hr.read_kafka("shop.public.customers"), "id LONG, email STRING")
    """
    from headrace.sources.kafka.debezium import ADDED, ENVELOPE, build_debezium_decoder, flatten_columns
    from headrace.sources.records import decode_or_stop

    arguments = arguments_of("hr.debezium")
    if set(ENVELOPE) <= set(df.columns):
        if schema is not None:
            problem = "is not used: the DataFrame has decoded change events"
            raise arguments.invalid("schema", problem, "remove schema")
        parts = (*ENVELOPE, "ts_ms", "ts_us", "ts_ns", "transaction")
        kept = [name for name in df.columns if name not in parts]
        return df.dropna("all", subset=list(ENVELOPE)).select(*flatten_columns(df.schema, kept))
    if "value" not in df.columns:
        raise arguments.invalid(
            "df",
            f"has neither a column value nor the columns {', '.join(ENVELOPE)}",
            'write hr.debezium(hr.read_kafka("topic"), schema="id LONG, name STRING")',
        )
    fields = declared_schema(arguments, schema)
    with arguments.located():
        decoder = build_debezium_decoder(
            "hr.debezium", fields, timestamp_unit=timestamp_unit, decimals=decimals
        )
    coordinates = ("topic", "partition", "offset") if "_source" in df.columns else ()
    record = decode_or_stop(decoder, F.col("value"), at=[F.col(f"_source.{name}") for name in coordinates])
    names = (*decoder.schema.fieldNames(), *ADDED)
    kept = [name for name in df.columns if name not in ("key", "value") and name not in names]
    return (
        df.where(F.col("value").isNotNull())
        .select(record.alias("_event"), *kept)
        .select(*(F.col(f"_event.`{name}`") for name in names), *kept)
    )


_LOGIN = "confluent.schema.registry.basic.auth.user.info"
_WITHOUT_MEANING = frozenset(
    {"confluent.schema.registry.basic.auth.credentials.source", "avroschemaevolutionmode"}
)


def decode_registered(call: RegisteredAvro) -> Column:
    """The records of a column in the wire format of Confluent's registry, as `read_kafka` decodes them.

    With the mode ``PERMISSIVE`` a malformed record is NULL. Else it stops the query, and a flow without state
    over Kafka records moves it to the quarantine.
    """
    from headrace.runtime.schema_registry import URL, USER_INFO, SchemaRegistry
    from headrace.sources.kafka.avro_decoder import AvroDecoder
    from headrace.sources.records import decode_or_stop

    active, arguments = require_pipeline("from_avro"), arguments_of("hr.from_avro")
    kafka, redactor = active.settings.kafka.settings, active.settings.redactor
    redactor.add_settings(call.options)
    options = {name.lower(): value for name, value in call.options.items()}
    _check_registered(arguments, options)
    address = arguments.text("schemaRegistryAddress", call.address or kafka.get(URL))
    if not isinstance(call.subject, str):
        raise arguments.invalid("subject", "must be text", 'write subject="orders-value"')
    registry = SchemaRegistry.at(address, options.get(_LOGIN) or kafka.get(USER_INFO))
    if registry.user is not None:
        redactor.add(registry.user)
        redactor.add(registry.user.partition(":")[2])
    with arguments.located():
        versions = registry.load_versions(call.subject)
    given = call.schema or options.get("avroschema")
    where = f"subject {call.subject}" if given is None else "the argument jsonFormatSchema"
    reader = checked_avro(given or versions[-1].text, arguments, where)
    decoder = AvroDecoder(reader, {one.id: one.text for one in versions})
    column = F.col(call.data) if isinstance(call.data, str) else call.data
    if options.get("mode", "").upper() == "PERMISSIVE":
        return decoder.decode(column)
    return decode_or_stop(decoder, column, at=[], on_null="keep")


def _check_registered(arguments: Arguments, options: dict[str, str]) -> None:
    for name, value in options.items():
        if name in (_LOGIN, "mode", "avroschema"):
            continue
        if name in _WITHOUT_MEANING and value.lower() != "restart":
            continue
        raise FeatureUnsupportedError(
            f"{arguments.call}: the option `{name}` is not supported with a schema registry",
            location=arguments.location,
            remedies=[
                f"remove it; a login is in `{_LOGIN}`",
                'or read the topic with hr.read_kafka(.., format="avro", schema_registry=True)',
            ],
            params={"argument": name},
        )
