"""`create_sink` and `foreach_batch_sink`: where flows send rows that the pipeline does not store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.declare.arguments import Arguments, arguments_of
from headrace.declare.registry import current_pipeline
from headrace.model.declarations import Sink, StreamingTable
from headrace.model.kafka_settings import unshaded
from headrace.sinks.target import FORMATS
from headrace.sources.registry import kind_for
from headrace.storage.mapped_files import mapped_path

_EXAMPLES = {
    "path": "/data/orders",
    "table": "public.orders",
    "url": "jdbc:mysql://host/shop",
    "dbtable": "orders",
}

FunctionT = TypeVar("FunctionT", bound=Callable[[Any, int], object])


def create_sink(name: str, format: str, options: Mapping[str, str] | None = None) -> None:
    """Declare a sink: append flows send rows to it with ``@hr.append_flow(target=name)``.

    A Delta table, a table of PostgreSQL and a topic, for readers with ``isolation.level=read_committed``, get
    each row exactly once. A folder and a table by JDBC get each row at least once: if a process ends after it
    has sent a batch and before the batch is recorded, the batch is sent again. A full refresh of a sink sends
    everything again.

    Args:
        name: The name of the sink. Unless it is a topic or a table of PostgreSQL, the storage keeps a Delta
            table of this name without rows, which records the batches.
        format: ``delta``, ``postgres``, ``kafka``, ``jdbc``, ``parquet``, ``json``, ``csv`` or ``orc``. A row
            for Kafka has a column ``value``, and may have ``key``, ``headers`` (an array of structs of
            ``key`` and ``value``), ``topic`` and ``partition``; or the option ``format`` is ``json``.
        options: The options of Spark's writer: ``path`` for Delta and files (relative to the pipeline's
            folder), or ``tableName`` for a Delta table that the key ``tables`` of the spec has; ``topic``,
            ``format``, ``keys`` and ``guarantee`` for Kafka; ``table``, ``url`` and ``keys`` for PostgreSQL;
            ``url`` and ``dbtable`` for JDBC. The Kafka connection is the profile's, unless there are
            ``kafka.*`` options.

    Example:
        >>> import headrace as hr
        >>> hr.create_sink("alerts", "kafka", {"topic": "alerts"})
        >>> @hr.append_flow(target="alerts")
        ... def large_orders():
        ...     orders = hr.read_table_stream("orders").where("amount > 1000")
        ...     return orders.selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
    """
    arguments = arguments_of("hr.create_sink")
    chosen = arguments.settings("options", options)
    chosen = {**chosen, **unshaded(chosen)}
    known = [one for one in FORMATS if one != "function"]
    if format not in known:
        raise arguments.invalid(
            "format",
            f"must be one of {', '.join(known)}, not {format!r}",
            "write to others in @hr.foreach_batch_sink",
        )
    active = current_pipeline()
    needs = FORMATS[format].needs
    if "path" in needs and "tableName" in chosen and active is not None:
        name_of_table = chosen.pop("tableName")
        found = active.settings.tables.find(tuple(part.strip("`") for part in name_of_table.split(".")))
        if found is None or found.path is None:
            raise arguments.invalid(
                "options",
                f"names the table {name_of_table}, which has no path in {active.settings.spec_to_edit}",
                f"name its path:   tables: {{{name_of_table}: ./path}}",
            )
        chosen["path"] = found.path
    for option in needs:
        if not (chosen.get(option) or (option == "path" and chosen.get("tableName"))):
            example = json.dumps({option: _EXAMPLES.get(option, "<value>")})
            raise arguments.invalid("options", f"has no {option}", f"write options={example}")
    if "path" in needs and active is not None:
        chosen = {**chosen, "path": mapped_path(chosen["path"], active.settings, arguments.location)}
    if active is not None:
        given, note = kind_for(format).choose_sink_options(chosen, active.settings, arguments.location)
        chosen = dict(given)
        if note is not None:
            active.note(note, arguments.location)
    _register(arguments, arguments.text("name", name), Sink(format=format, options=chosen))


def foreach_batch_sink(*, name: str | None = None) -> Callable[[FunctionT], FunctionT]:
    """Declare a sink that calls the decorated function with the rows and the number of each batch.

    The function gets each batch at least once: if a process ends after the function has returned and before
    the batch is recorded, the function gets the same rows with the same number again. A full refresh sends
    everything again, with numbers that begin at 0 again.

    Args:
        name: The name of the sink; by default the function's.

    Example:
        >>> import headrace as hr
        >>> @hr.foreach_batch_sink(name="warehouse")
        ... def write_batch(df, batch_id):
        ...     df.write.format("jdbc").options(url="..", dbtable="orders").mode("append").save()
        >>> @hr.append_flow(target="warehouse")
        ... def orders_to_warehouse():
        ...     return hr.read_table_stream("orders")
    """

    def decorator(function: FunctionT) -> FunctionT:
        arguments = arguments_of("@hr.foreach_batch_sink", function)
        if not callable(function):
            raise arguments.invalid("name", 'must be named: write @hr.foreach_batch_sink(name="..")')
        given = arguments.text("name", name if name is not None else getattr(function, "__name__", None))
        _register(arguments, given, Sink(format="function", function=function))
        return function

    return decorator


def _register(arguments: Arguments, name: str, sink: Sink) -> None:
    active = current_pipeline()
    if active is None or active.registry is None:
        return
    active.settings.redactor.add_settings(sink.options)
    table = arguments.table_name("name", name, active.settings.database)
    dataset = StreamingTable(name=table, location=arguments.location, sink=sink)
    active.registry.add_dataset(dataset, sink.function)
