"""Whether a stream over a table has anything to read, told without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from headrace.errors import SourceLocation
from headrace.model.declarations import AppendFlow
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.plan.stages import PlannedFlow, PlannedSource
from headrace.run.survey import is_drained
from headrace.state.facts import CheckpointFacts
from headrace.state.identity import CheckpointIdentity
from headrace.storage.layout import Storage

UPSTREAM = TableName("default", "bronze")
HERE = SourceLocation("shop.py", 1)
SOURCE = PlannedSource(index=0, kind="delta", location=HERE, table=UPSTREAM, erasures_only=True)


def reader(source: PlannedSource = SOURCE) -> PlannedFlow:
    target = TableName("default", "silver")
    return PlannedFlow(
        flow=AppendFlow(name="silver", target=target, query=PythonQuery(lambda: None, HERE)),
        schema={},
        reads=(),
        sources=(source,),
        stateful=False,
        coordinates=None,
        timestamp=None,
        reads_target=False,
        fingerprint="",
    )


def at(version: int) -> CheckpointFacts:
    identity = CheckpointIdentity.create(
        pipeline="shop", flow="silver", dataset="default.silver", generation=1, table_id="t", sources=()
    )
    position = {"reservoirVersion": version, "index": -1}
    return CheckpointFacts(identity=identity, last_planned=0, last_finished=0, positions={0: position})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A table of versions 0 to 2."""
    storage = Storage.at(tmp_path)
    for number in range(3):
        deltalake.write_deltalake(storage.table(UPSTREAM), pa.table({"id": [number, 10]}), mode="append")
    return storage


def test_a_stream_at_the_end_has_nothing_to_read(storage: Storage) -> None:
    assert is_drained(reader(), at(3), {}, storage)
    assert not is_drained(reader(), at(2), {}, storage)


def test_commits_that_bring_a_stream_nothing_are_passed_over(storage: Storage) -> None:
    table = deltalake.DeltaTable(storage.table(UPSTREAM))
    table.optimize.compact()
    table.delete("id = 1")
    assert is_drained(reader(), at(3), {}, storage)
    assert not is_drained(reader(replace(SOURCE, erasures_only=False)), at(3), {}, storage)
    table.update({"id": "7"}, predicate="id = 2")
    assert not is_drained(reader(), at(3), {}, storage)


def test_a_log_that_has_lost_what_comes_next_is_left_to_spark(storage: Storage) -> None:
    for version in (0, 1):
        (storage.table(UPSTREAM) / "_delta_log" / f"{version:020d}.json").unlink()
    assert not is_drained(reader(), at(1), {}, storage)
