"""Tables with changes by key share one memory for the indexes of their keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from stores import At, on_disk

from headrace.declare.spec import load_project
from headrace.errors import SourceLocation
from headrace.model.declarations import StreamingTable
from headrace.model.names import TableName
from headrace.plan.properties import SCD_TYPE
from headrace.plan.stages import OpenTableStage, Plan
from headrace.project.plan_queries import find_index_notes
from headrace.sinks.delta.key_index import BYTES_PER_KEY
from headrace.sinks.delta.table_index import memory_of

ROWS, DELETED = 1000, 5
BOTH = BYTES_PER_KEY * ROWS + memory_of(ROWS)  # the index of one table, while that of another one is built


@pytest.mark.parametrize(
    ("limit", "named"),
    [(BOTH, []), (BOTH - 1, ["second"]), (memory_of(ROWS) - 1, ["first", "second"]), (0, [])],
)
def test_a_table_whose_index_does_not_fit_beside_the_others_has_a_note(
    at: At, tmp_path: Path, limit: int, named: list[str]
) -> None:
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path))})
    stages = []
    for name in ("first", "second", "missing"):
        table = StreamingTable(name=TableName("default", name), location=SourceLocation("a.py", 1))
        properties = {SCD_TYPE: "1"}
        stages.append(OpenTableStage(table=table, schema={}, properties=properties, flows=()))
        if name != "missing":
            folder = on_disk(settings.storage.table(table.name))
            write_deltalake(folder, pa.table({"id": range(ROWS + DELETED)}))
            checksum = json.dumps({"numDeletedRecordsOpt": DELETED})
            (folder / "_delta_log" / f"{0:020d}.crc").write_text(checksum)
    settings = replace(settings, index_memory=limit)
    notes = list(find_index_notes(Plan(project=settings, datasets=(), all_levels=(tuple(stages),))))
    assert [one.text.partition(" ")[0] for one in notes] == named
    shared = [one for one in notes if "the indexes of other tables need" in one.text]
    assert len(shared) == (1 if named == ["second"] else 0)
