"""Kinesis streams in query functions: `read_kinesis`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal

from headrace.declare.arguments import Arguments, arguments_of, evolving_schema, parse_drift
from headrace.declare.reads import declared_schema, value_limit
from headrace.declare.registry import require_pipeline
from headrace.errors import FeatureUnsupportedError, OptionUnknownError, nearest
from headrace.model.declarations import DriftAction
from headrace.runtime.lazy_pyspark import DataFrame, StructType
from headrace.sources.kinesis.clients import connect
from headrace.sources.kinesis.connection import StreamConnection
from headrace.syntax.locations import argument_location

_FAN_OUT = frozenset({"consumer_name", "consumername", "consumerarn", "consumer_arn", "consumermode"})
"""Options of other connectors that name a consumer of enhanced fan-out."""


def read_kinesis(
    stream: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    profile: str | None = None,
    role_arn: str | None = None,
    format: Literal["raw", "json", "text", "csv"] = "raw",
    schema: str | StructType | None = None,
    format_options: Mapping[str, str] | None = None,
    invalid_utf8: Literal["reject", "replace"] = "reject",
    starting_position: Literal["earliest", "latest"] = "earliest",
    starting_timestamp: datetime | str | None = None,
    max_records_per_trigger: int | None = None,
    bad_records: Literal["quarantine", "stop"] = "quarantine",
    max_value_bytes: int | None = None,
    drift: DriftAction | Mapping[str, DriftAction] | None = None,
    on_data_loss: Literal["refuse", "record"] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A Kinesis data stream as a streaming DataFrame; needs ``pip install 'headrace[kinesis]'``.

    With ``raw``, the columns are data, stream, shard, record_number, shard_id, sequence_number,
    sub_sequence_number, partition_key and approximate_arrival_timestamp. Other formats give the fields of the
    records, and all these columns in the struct ``_source``. The records of a shard are numbered as the flow
    reads them; if a table keeps stream, shard and record_number, ``headrace verify`` can compare each record
    with the stream. Records that the Kinesis Producer Library has aggregated are taken apart.

    Args:
        stream: The name of the stream, or its ARN.
        region: The region; by default that of the ARN, of ``kinesis`` in the spec, or of AWS's settings.
        endpoint: The URL of a server in place of AWS, such as LocalStack's.
        profile: A profile of AWS's files of settings and credentials.
        role_arn: A role to assume with the credentials that were found.
        format: ``raw`` gives ``data`` as bytes; ``json`` gives the fields of ``schema``; ``text`` gives
            ``value`` as a string; ``csv`` gives the fields of ``schema`` by position.
        schema: The fields of JSON or CSV records: a DDL string, a ``StructType``, or a file of either.
        format_options: Options of Spark's CSV parser, such as ``{"sep": ";"}``.
        invalid_utf8: What to do with a JSON or text record that is not valid UTF-8: ``reject``
            makes it a bad record, ``replace`` replaces invalid bytes by U+FFFD.
        starting_position: Where a flow without a checkpoint starts: ``earliest``, or ``latest`` for the
            records that arrive after the flow was opened.
        starting_timestamp: In place of a position, a ``datetime`` or text in ISO 8601; without a zone it is
            in UTC.
        max_records_per_trigger: The maximum number of records in a batch, but whole aggregates; the default
            keeps a batch under about 30 seconds.
        bad_records: What to do with a record that cannot be decoded: move it to the
            ``quarantine`` table, or ``stop`` the flow.
        max_value_bytes: A record with a longer value is a bad record; by default the spec's, else 8 MiB.
        drift: What to do with a JSON record that differs from the schema, as in `read_kafka`.
        on_data_loss: What to do if records may have expired before they were read: ``refuse``, or ``record``
            the loss and continue after it. By default as in ``headrace.yml``.
        options: ``accessKeyId``, ``secretAccessKey`` and ``sessionToken``, if the login of the stream is
            neither in the spec nor found as AWS's own tools find it.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def clicks():
        ...     return hr.read_kinesis("clicks", format="json", schema="id LONG, page STRING")
    """
    from headrace.sources.kinesis.read import KinesisRead, read

    active = require_pipeline("read_kinesis")
    arguments = arguments_of("hr.read_kinesis")
    given: dict[str, str | None] = {**_login(arguments, arguments.settings("options", options))}
    for name, value in {
        "region": region,
        "endpoint": endpoint,
        "profile": profile,
        "role_arn": role_arn,
    }.items():
        given[name] = arguments.optional_text(name, value)
    if max_records_per_trigger is not None:
        arguments.positive("max_records_per_trigger", max_records_per_trigger)
    if on_data_loss is not None:
        arguments.one_of("on_data_loss", on_data_loss, "refuse", "record")
    with arguments.located():
        name = arguments.text("stream", stream).strip()
        if not name:
            raise arguments.invalid("stream", "must not be empty")
        declared = declared_schema(arguments, schema)
        actions = parse_drift(arguments, drift, declared if format == "json" else None)
        evolving = evolving_schema(active, arguments, f"kinesis {name}", declared, actions)
        connection = connect(active.settings.kinesis, name, given)
        active.settings.redactor.add_settings(connection.to_options())
        kinesis = KinesisRead(
            connection=connection,
            format=format,
            schema=declared if evolving is None else evolving.schema,
            format_options=arguments.settings("format_options", format_options),
            invalid_utf8=invalid_utf8,
            starts=_starts(arguments, starting_position, starting_timestamp),
            max_records_per_trigger=max_records_per_trigger,
            bad_records=bad_records if active.quarantines else "stop",
            max_value_bytes=value_limit(active, arguments, max_value_bytes),
            on_data_loss=on_data_loss,
            drift=actions,
            evolving=evolving,
            notes_unknown=active.quarantines,
        )
        return read(active.session(), kinesis, active.bad_records)


def _login(arguments: Arguments, options: Mapping[str, str]) -> dict[str, str]:
    """The login in the options of a reader."""
    known = {
        "accessKeyId": "access_key_id",
        "secretAccessKey": "secret_access_key",
        "sessionToken": "session_token",
    }
    found: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in _FAN_OUT:
            raise FeatureUnsupportedError(
                f"read_kinesis has no enhanced fan-out, which `{name}` asks for",
                location=argument_location(arguments.location, "options", name),
                facts=(
                    "the stream is read with GetRecords, whose throughput all consumers of a shard share",
                ),
                remedies=("remove the option",),
                params={"feature": "enhanced fan-out", "option": name},
            )
        meant = next((one for one in known if one.lower() == name.lower()), None)
        if meant is None:
            arguments_known = [*known, *(one.name for one in fields(StreamConnection))]
            suggestion = nearest(name, arguments_known, 0.7)
            raise OptionUnknownError(
                f"Unknown option `{name}` of read_kinesis",
                location=argument_location(arguments.location, "options", name),
                remedies=[f"did you mean `{suggestion}`?" if suggestion else "remove it"],
                params={"format": "kinesis", "option": name, "suggestion": suggestion},
            )
        found[known[meant]] = value
    return found


def _starts(arguments: Arguments, position: Any, moment: Any) -> str:
    """Where a flow starts, as the option of the data source has it."""
    arguments.one_of("starting_position", position, "earliest", "latest")
    if moment is None:
        return str(position)
    if position != "earliest":
        raise arguments.invalid("starting_timestamp", "and starting_position cannot both be set", "keep one")
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return str(int(zoned.timestamp() * 1000))
    except (ValueError, AttributeError, OverflowError) as error:
        problem = f"must be a datetime or text in ISO 8601, not {moment!r}"
        raise arguments.invalid("starting_timestamp", problem) from error
