"""The formats of sinks: a new one is a module of its own, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.model.declarations import Sink
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.sinks.target import Applies, BatchStamp, Guarantee, SinkSpec, SinkStore


def _send_to_format(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    """Write the rows with Spark's writer of the format."""
    rows.write.format(sink.format).mode("append").options(**{**connection, **sink.options}).save()


def _send_to_delta(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    # Delta skips the write if the table has this number of this id already.
    own = {"txnAppId": stamp.checkpoint, "txnVersion": str(stamp.batch)}
    rows.write.format("delta").mode("append").options(**sink.options).options(**own).save()


def _send_to_function(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    assert sink.function is not None
    sink.function(rows, stamp.batch)


@dataclass(frozen=True, kw_only=True)
class SinkFormat:
    """What the sinks of a format do. `describe`: says what a sink does, after "it". `open`: opens a sink that
    keeps the state of its flows beside its rows. ``None`` for others: a Delta table without rows records
    their batches, after `send` has sent the rows."""

    describe: Callable[[Sink], str]
    guarantee: Guarantee = "at least once"
    applies: frozenset[Applies] = frozenset({"append"})
    needs: tuple[str, ...] = ()  # the options that a sink must have; `path` is relative to the pipeline
    open: Callable[[SinkSpec], SinkStore] | None = None
    send: Callable[[DataFrame, BatchStamp, Sink, Mapping[str, str]], None] = _send_to_format


_FILES = SinkFormat(
    describe=lambda sink: f"adds {sink.format} files to {sink.options['path']}", needs=("path",)
)

FORMATS: dict[str, SinkFormat] = {
    "delta": SinkFormat(
        describe=lambda sink: f"appends to the Delta table {sink.options['path']}",
        guarantee="exactly once",
        needs=("path",),
        send=_send_to_delta,
    ),
    "kafka": SinkFormat(
        describe=lambda sink: f"sends to the Kafka topic {sink.options.get('topic', 'of each row')}"
    ),
    "parquet": _FILES,
    "json": _FILES,
    "csv": _FILES,
    "orc": _FILES,
    "function": SinkFormat(
        describe=lambda sink: f"calls {getattr(sink.function, '__name__', 'its function')} with each batch",
        send=_send_to_function,
    ),
}


def format_of(sink: Sink) -> SinkFormat:
    return FORMATS[sink.format]


def describe_sink(sink: Sink) -> str:
    kind = format_of(sink)
    return f"{kind.describe(sink)}: {kind.guarantee}"


def keeps_state(sink: Sink | None) -> bool:
    """Whether a sink keeps the state of its flows itself; others have a Delta table that records batches."""
    return sink is not None and format_of(sink).open is not None
