"""Kafka topics, files and change feeds into Delta tables: declared, exactly once, proven.

The public surface; each name is loaded at its first use, so that importing Headrace is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.declare.cdc import (
        apply_changes,
        apply_changes_from_snapshot,
        create_auto_cdc_flow,
        create_auto_cdc_from_snapshot_flow,
    )
    from headrace.declare.expectations import (
        expect,
        expect_all,
        expect_all_or_drop,
        expect_all_or_fail,
        expect_all_or_quarantine,
        expect_fresh,
        expect_or_drop,
        expect_or_fail,
        expect_or_quarantine,
        expect_row_count,
        expect_unique,
    )
    from headrace.declare.kinesis_reads import read_kinesis
    from headrace.declare.python import (
        append_flow,
        create_streaming_table,
        materialized_view,
        table,
        temporary_view,
    )
    from headrace.declare.reads import debezium, parse_json, read_kafka
    from headrace.declare.sinks import create_sink, foreach_batch_sink
    from headrace.declare.stored_reads import read_changes, read_files, read_table_stream
    from headrace.errors import HeadraceError
    from headrace.project.ingesting import ingest
    from headrace.project.pipeline import Pipeline
    from headrace.project.reading import read_delta

    __version__: str
    spark: SparkSession

__all__ = [
    "HeadraceError",
    "Pipeline",
    "append_flow",
    "apply_changes",
    "apply_changes_from_snapshot",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "create_sink",
    "create_streaming_table",
    "debezium",
    "expect",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
    "expect_all_or_quarantine",
    "expect_fresh",
    "expect_or_drop",
    "expect_or_fail",
    "expect_or_quarantine",
    "expect_row_count",
    "expect_unique",
    "foreach_batch_sink",
    "ingest",
    "materialized_view",
    "parse_json",
    "read_changes",
    "read_delta",
    "read_files",
    "read_kafka",
    "read_kinesis",
    "read_table_stream",
    "spark",
    "table",
    "temporary_view",
]

_HOMES = {
    "declare.cdc": (
        *("apply_changes", "apply_changes_from_snapshot"),
        *("create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow"),
    ),
    "declare.expectations": tuple(name for name in __all__ if name.startswith("expect")),
    "declare.python": (
        *("append_flow", "create_streaming_table", "materialized_view"),
        *("table", "temporary_view"),
    ),
    "declare.kinesis_reads": ("read_kinesis",),
    "declare.reads": ("debezium", "parse_json", "read_kafka"),
    "declare.registry": ("spark",),
    "declare.sinks": ("create_sink", "foreach_batch_sink"),
    "declare.stored_reads": ("read_changes", "read_files", "read_table_stream"),
    "errors": ("HeadraceError",),
    "project.ingesting": ("ingest",),
    "project.pipeline": ("Pipeline",),
    "project.reading": ("read_delta",),
}
"""The modules of the public names."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("headrace")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
