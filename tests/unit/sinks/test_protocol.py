"""What all targets record and refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BatchFencedError
from headrace.model.names import TableName
from headrace.sinks.protocol import check_not_replaced
from headrace.sinks.target import BatchStamp, OpenedGeneration, SinkSpec
from headrace.state.facts import Open
from sqlite_sink import SqliteSink


def test_rejected_rows_of_a_replaced_checkpoint_are_refused(tmp_path: Path) -> None:
    """Its table of rejected rows may not have existed when the checkpoint was replaced."""
    schema = {"fields": [{"name": "id"}]}
    spec = SinkSpec(name=TableName("default", "s"), options={"path": str(tmp_path / "s.db")}, schema=schema)
    sink = SqliteSink(spec)
    stamp = BatchStamp(pipeline="shop", flow="sales", checkpoint="old", batch=3, ranges=())
    check_not_replaced(sink, stamp)
    sink.create()

    def open_generation(checkpoint: str, generation: int, opening: Open, replaces: str | None) -> None:
        opened = OpenedGeneration(
            pipeline="shop",
            flow="sales",
            checkpoint=checkpoint,
            generation=generation,
            opening=opening,
            replaces=replaces,
        )
        sink.open_generation(opened)

    open_generation("old", 1, Open(reason="first"), None)
    check_not_replaced(sink, stamp)
    open_generation("new", 2, Open(reason="reset", fences="old"), "old")
    with pytest.raises(BatchFencedError, match="has replaced this checkpoint"):
        check_not_replaced(sink, stamp)
