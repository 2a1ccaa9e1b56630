"""One side of the catch-up, twice in one JVM.

``python -m bench.catchup_side SIDE CONTENT BOOTSTRAP TOPIC FOLDER`` prints one JSON object: the
seconds of the first, cold run and of the second, warm one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load import SCHEMA
from bench.pipelines import Content, write_pipeline
from bench.plain import parsed, raw, read_topic, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 500_000
"""Headrace's own default, and what an expert would set: a batch has an end."""


def main(side: str, content: Content, bootstrap: str, topic: str, folder: Path, lake: str = "") -> None:
    """`lake`: the URI of a folder in a bucket; without it, the tables are in the folder."""
    run = (
        _headrace(content, bootstrap, topic, lake)
        if side == "headrace"
        else _plain(side, content, bootstrap, topic, lake)
    )
    found = {}
    for turn in ("cold", "warm"):
        found[turn] = run(folder / turn)
    sys.stdout.write(json.dumps(found) + "\n")


def _plain(
    side: str, content: Content, bootstrap: str, topic: str, lake: str
) -> Callable[[Path], dict[str, float]]:
    spark = start_spark("expert" if side in ("expert", "parquet") else "plain", s3=bool(lake))
    limit = None if side in ("plain", "parquet") else LIMIT

    def shaped(records: DataFrame) -> DataFrame:
        return raw(records) if content == "raw" else parsed(records, SCHEMA)

    def stream(folder: Path) -> dict[str, float]:
        place = f"{lake}/{folder.name}" if lake else str(folder)
        began = time.monotonic()
        query = (
            shaped(read_topic(spark, bootstrap, topic, limit))
            .writeStream.format("delta")
            .option("checkpointLocation", f"{place}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{place}/table")
        )
        query.awaitTermination()
        took = time.monotonic() - began
        return {"seconds": took, "rows": spark.read.format("delta").load(f"{place}/table").count()}

    def batch(folder: Path) -> dict[str, float]:
        began = time.monotonic()
        shaped(_read_once(spark, bootstrap, topic)).write.parquet(str(folder / "table"))
        took = time.monotonic() - began
        return {"seconds": took, "rows": spark.read.parquet(str(folder / "table")).count()}

    return batch if side == "parquet" else stream


def _read_once(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )


def _headrace(content: Content, bootstrap: str, topic: str, lake: str) -> Callable[[Path], dict[str, float]]:
    from headrace import Pipeline
    from headrace.model.event_forms import Event
    from headrace.model.events import FlowStarted
    from headrace.runtime.session import open_spark
    from headrace.storage.s3.spark import build_support

    # Both runs find this session, so the second one is warm.
    running = open_spark("bench", storage=build_support({}, {})) if lake else open_spark("bench")

    def run(folder: Path) -> dict[str, float]:
        assert running.owned
        # A session knows one table of a name, and this one sees both runs.
        storage = f"{lake}/{folder.name}" if lake else "./lake"
        write_pipeline(folder, bootstrap, topic, content, name=f"records_{folder.name}", storage=storage)
        started: list[float] = []

        def watch(event: Event) -> None:
            if isinstance(event, FlowStarted):
                started.append(time.monotonic())

        began = time.monotonic()
        with Pipeline.load(folder) as pipeline:
            result = pipeline.run(emit=watch)
        ended = time.monotonic()
        if result.errors:
            raise SystemExit(str([error.to_dict() for error in result.errors]))
        # `seconds` is from the start of the query, as for the others; `whole_s` has planning, too.
        rows = sum(flow.rows for flow in result.flows)
        return {"seconds": ended - started[0], "whole_s": ended - began, "rows": rows}

    return run


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]), *sys.argv[6:])  # type: ignore[arg-type]
