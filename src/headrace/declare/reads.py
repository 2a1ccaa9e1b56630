"""Reading sources inside of query functions, with the connection of the active profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.declare.arguments import Arguments
from headrace.declare.places import caller_location
from headrace.declare.registry import ActivePipeline, require_pipeline
from headrace.errors import HeadraceError, SpecInvalidError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def read_kafka(
    topic: str,
    *,
    format: Literal["raw", "json"] = "raw",
    schema: str | StructType | None = None,
    starting_offsets: Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] = "earliest",
    max_offsets_per_trigger: int | None = None,
    on_null: Literal["refuse", "drop", "keep"] = "refuse",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A Kafka topic as a streaming DataFrame; the connection comes from the pipeline's profile.

    Every row carries one ``_source`` struct: topic, partition, offset, timestamp, key, headers and,
    for ``json``, the original bytes as ``value``. A query may keep, flatten or drop it; a table that
    keeps it lets ``headrace verify`` compare each record with the broker.

    Args:
        topic: One topic, or several separated by commas.
        format: ``raw`` gives ``key`` and ``value`` as bytes; ``json`` gives the fields of ``schema``.
        schema: The fields of the JSON records.
        starting_offsets: Where a flow without a checkpoint starts.
        max_offsets_per_trigger: The most records that one batch takes; the default keeps a batch
            under about 30 seconds.
        on_null: What a JSON record without a value becomes: ``refuse`` stops the flow, ``drop``
            leaves it out, ``keep`` makes it a row whose fields are null.
        options: Further options of Spark's Kafka source.

    Example:
        >>> import headrace as hr
        >>> @hr.table
        ... def orders():
        ...     return hr.read_kafka("orders", format="json", schema="id LONG, amount DOUBLE")
    """
    active = require_pipeline("read_kafka")
    arguments = Arguments("hr.read_kafka", caller_location(active.settings.root))
    _check(active, arguments, topic, max_offsets_per_trigger)
    active.settings.redactor.add_settings(options or {})
    from headrace.sources.kafka import read

    try:
        return read(
            active.session(),
            active.settings.kafka,
            topic,
            format=format,
            schema=schema,
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=max_offsets_per_trigger,
            on_null=on_null,
            options=arguments.settings("options", options),
        )
    except HeadraceError as error:
        # The reader does not know the user's files; the place is known here.
        error.location = error.location or arguments.location
        raise


def _check(active: ActivePipeline, arguments: Arguments, topic: Any, limit: Any) -> None:
    if not active.settings.kafka.bootstrap_servers:
        raise SpecInvalidError(
            f"the profile `{active.settings.profile}` names no Kafka broker, and read_kafka needs one",
            location=arguments.location,
            remedies=["write kafka: {bootstrap.servers: ..} in the spec, or `embedded` for the own broker"],
            params={"profile": active.settings.profile, "key": "kafka.bootstrap.servers"},
        )
    if not arguments.text("topic", topic):
        raise arguments.invalid("topic", "must not be empty")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise arguments.invalid("max_offsets_per_trigger", f"must be a whole number above 0, not {limit!r}")
