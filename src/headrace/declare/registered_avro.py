"""`from_avro` with a schema registry, as Databricks has it."""

from __future__ import annotations

from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.reads import checked_avro
from headrace.declare.registry import require_pipeline
from headrace.errors import FeatureUnsupportedError
from headrace.runtime.lazy_pyspark import Column, F
from headrace.sources.formats import RegisteredAvro

_LOGIN = "confluent.schema.registry.basic.auth.user.info"
_WITHOUT_MEANING = frozenset(
    {"confluent.schema.registry.basic.auth.credentials.source", "avroschemaevolutionmode"}
)


def decode_registered(call: RegisteredAvro) -> Column:
    """The records of a column in the wire format of Confluent's registry, as `read_kafka` decodes them.

    With the mode ``PERMISSIVE`` a malformed record is NULL. Else it stops the query, and a flow without state
    over Kafka records moves it to the quarantine.
    """
    from headrace.sources.kafka.avro_decoder import URL, USER_INFO, AvroDecoder, SchemaRegistry
    from headrace.sources.records import decode_or_stop

    active, arguments = require_pipeline("from_avro"), arguments_of("hr.from_avro")
    kafka, redactor = active.settings.kafka.settings, active.settings.redactor
    redactor.add_settings(call.options)
    options = {name.lower(): value for name, value in call.options.items()}
    _check(arguments, options)
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


def _check(arguments: Arguments, options: dict[str, str]) -> None:
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
