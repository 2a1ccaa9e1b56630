"""A driver that stands still with a batch in hand, while another one replaces its checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import BatchFencedError, CheckpointBehindTableError
from headrace.project.pipeline import Pipeline
from headrace.run.targets import sink_store
from headrace.sinks.target import BatchStamp, SplitRows
from landing import Site

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_replaced_driver(site: Site, flow: str, stale: DataFrame) -> None:
    """Check that a sink refuses rows that a driver wrote before its checkpoint was replaced."""
    with Pipeline.load(site.root) as pipeline:
        store = sink_store(next(one for one in pipeline.plan().flows if one.flow.name == flow))
    assert store is not None
    state = store.state()
    assert state is not None
    checkpoint = state.checkpoints[flow]
    batch = state.transactions[checkpoint] + 1
    stamp = BatchStamp(pipeline="site", flow=flow, checkpoint=checkpoint, batch=batch, ranges=())
    old = store.begin(stale.sparkSession, stamp)
    assert old is not None
    with old:
        old.write(SplitRows(accepted=stale))
        site.run_well(reset=frozenset({flow}))
        with pytest.raises(BatchFencedError):
            old.commit()
    with pytest.raises(CheckpointBehindTableError):
        store.begin(stale.sparkSession, stamp)
