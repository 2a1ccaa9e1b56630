"""Rate of the decoders of records: the same rows as JSON (once with a DECIMAL), CSV and Avro, not written."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.results import expect, keep, table
from headrace.runtime.session import open_spark

_FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": ["null", "string"], "default": None},
    {"name": "amount", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
_NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def avro(*more: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [*_FIELDS, *more]})


@click.command()
@click.option("--records", default=1_000_000, show_default=True)
@click.option("--times", default=5, show_default=True)
@click.option("--quick", is_flag=True, help="A short run, to see that it works.")
def main(records: int, times: int, quick: bool) -> None:
    """Records that each decoder reads in a second."""
    records, times = (10_000, 2) if quick else (records, times)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        log_file = Path(name) / "spark.log"
        running = open_spark("formats", master="local[2]", memory="2g", conf={}, log_file=log_file)
        try:
            found = measure(running.spark, Path(name), records, times)
        finally:
            running.stop()
    table(
        ("format", "bytes", "records/s"), [(name, size, round(rate)) for name, (size, rate) in found.items()]
    )
    keep("formats", {"formats": found})


def measure(spark: Any, folder: Path, records: int, times: int) -> dict[str, tuple[int, float]]:
    """The mean bytes of a record, and the median rate, of each format."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro
    from pyspark.sql.types import StructType

    from headrace.sources.decoders import CsvDecoder, JsonDecoder
    from headrace.sources.kafka.avro_decoder import AvroDecoder
    from headrace.sources.records import decode_or_stop

    row = F.struct("id", "customer", "amount", "at")
    plain = to_avro(row, avro())
    values = {
        "json": F.to_json(row).cast("binary"),
        "json, decimal": F.to_json(row).cast("binary"),
        "csv": F.to_csv(row).cast("binary"),
        "avro": plain,
        "registry": F.concat(F.lit(b"\0\0\0\0\1"), plain),
    }
    rows = spark.range(records).selectExpr(
        "id", "concat('name', id % 100) customer", "id * 0.25D amount", "timestamp_micros(id) at"
    )
    rows.select(*(value.alias(name) for name, value in values.items())).write.parquet(str(folder / "rows"))
    source = spark.read.parquet(str(folder / "rows"))
    schema = StructType.fromDDL("id LONG, customer STRING, amount DOUBLE, at TIMESTAMP")
    decoders = {
        "json": JsonDecoder(schema),
        "json, decimal": JsonDecoder(
            StructType.fromDDL("id LONG, customer STRING, amount DECIMAL(12, 2), at TIMESTAMP")
        ),
        "csv": CsvDecoder(schema),
        "avro": AvroDecoder(avro()),
        "registry": AvroDecoder(avro(_NOTE), {1: avro(), 2: avro(_NOTE)}),
    }
    for name, decoder in decoders.items():
        decoded = source.select(decode_or_stop(decoder, F.col(name)).alias("record"))
        expect(name, decoded.where("record.id IS NOT NULL").count(), records)
    rates: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(times + 1):
        for name, decoder in decoders.items():
            record = decode_or_stop(decoder, F.col(name)).alias("record")
            started = time.perf_counter()
            source.select(record).select("record.*").write.format("noop").mode("overwrite").save()
            rates[name].append(records / (time.perf_counter() - started))
    sizes = source.select(*(F.avg(F.length(name)) for name in decoders)).first()
    # The first round compiles.
    return {
        name: (round(sizes[place]), statistics.median(rates[name][1:])) for place, name in enumerate(decoders)
    }


if __name__ == "__main__":
    main()
