"""What `import headrace` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import headrace


def test_the_public_surface() -> None:
    assert headrace.__all__ == [
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
    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None, name


def test_importing_headrace_and_declaring_is_light() -> None:
    code = (
        "import sys, headrace as hr\n"
        "@hr.table\ndef x(): ...\n"
        "assert not {'pyspark', 'py4j', 'deltalake', 'rich', 'confluent_kafka', 'pydantic', 'click'} "
        "& set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
