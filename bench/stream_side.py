"""A plain stream from Kafka to Delta until SIGINT: ``python -m bench.stream_side plain|expert ..``."""

from __future__ import annotations

import signal
import sys
import threading

from bench.load import SCHEMA
from bench.plain import Side, parsed, read_topic, start_spark


def main(side: Side, bootstrap: str, topic: str, table: str, checkpoint: str) -> None:
    stop = threading.Event()
    spark = start_spark(side, s3=table.startswith("s3a://"))
    # After the start: PySpark has a handler of its own.
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    records = parsed(read_topic(spark, bootstrap, topic), SCHEMA)
    if side == "expert":
        # A few hundred rows are not worth a file for each of the topic's partitions.
        records = records.coalesce(1)
    query = records.writeStream.format("delta").option("checkpointLocation", checkpoint).start(table)
    while not stop.wait(0.2):
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:])  # type: ignore[arg-type]
