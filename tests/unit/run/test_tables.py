"""What opening a table does: `plan` reports it and `run` executes it, by one function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import At, on_disk

from headrace.errors import SchemaMismatchError, SourceLocation, TableFolderTakenError, TableLostError
from headrace.model.declarations import AppendFlow, StreamingTable
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.plan.stages import OpenTableStage, PlannedFlow
from headrace.run.tables import TableOpening, check_table
from headrace.sinks.delta.table import TableState
from headrace.state.checkpoint import CheckpointIdentity, write_checkpoint
from headrace.storage.layout import Storage
from headrace.storage.location import Location

HERE = SourceLocation("orders.py", 7)
NAME = TableName("default", "orders")


def schema(**columns: str) -> dict[str, Any]:
    listed = [{"name": k, "type": v, "nullable": True, "metadata": {}} for k, v in columns.items()]
    return {"type": "struct", "fields": listed}


FLOW = PlannedFlow(
    flow=AppendFlow(name="orders", target=NAME, query=PythonQuery(lambda: None, HERE)),
    schema=schema(id="long"),
    reads=(),
    sources=(),
    stateful=False,
    coordinates=None,
    timestamp=None,
    reads_target=False,
    fingerprint="",
)
STAGE = OpenTableStage(
    table=StreamingTable(name=NAME, location=HERE),
    schema=schema(id="long"),
    properties={"a": "1"},
    flows=("orders",),
)


@pytest.fixture
def storage(at: At, tmp_path: Path) -> Storage:
    return Storage(at(tmp_path))


def check(
    storage: Storage, held: TableState | None = None, *, emptied: bool = False, stage: OpenTableStage = STAGE
) -> TableOpening:
    def read(path: Location) -> TableState:
        assert held is not None
        return held

    if held is not None:
        log = on_disk(storage.table(NAME)) / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        (log / f"{0:020d}.json").write_text("")
    return check_table(stage, [FLOW], storage, read, emptied=emptied)


def state(**given: Any) -> TableState:
    values: dict[str, Any] = {"schema": schema(id="long"), "properties": {}, "transactions": {}, **given}
    return TableState(version=0, table_id="t1", **values)


def write_generation(storage: Storage, *, table_id: str, batches: int) -> None:
    """A checkpoint of the flow that has planned batches."""
    identity = CheckpointIdentity(
        pipeline="shop", flow="orders", dataset=str(NAME), generation=1, table_id=table_id, sources=()
    )
    path = storage.checkpoint(NAME, "orders", 1)
    write_checkpoint(path, identity, {})
    for batch in range(batches):
        (path / "offsets" / str(batch)).replace("v1\n{}\n")


def test_a_missing_table_is_created_and_nothing_is_written_before(storage: Storage) -> None:
    assert check(storage) == TableOpening(creates=True)
    assert not storage.table(NAME).exists()


def test_a_missing_table_that_a_checkpoint_has_fed_is_lost(storage: Storage) -> None:
    write_generation(storage, table_id="t1", batches=2)
    with pytest.raises(TableLostError) as caught:
        check(storage)
    assert caught.value.params == {"flow": "orders", "dataset": "default.orders"}


def test_a_folder_with_other_files_is_not_taken(storage: Storage) -> None:
    storage.table(NAME).make_folder()
    (storage.table(NAME) / "notes.txt").create("mine")
    with pytest.raises(TableFolderTakenError):
        check(storage)


def test_an_existing_table_is_altered(storage: Storage) -> None:
    found = check(storage, state())
    assert (found.creates, found.alterations.properties) == (False, {"a": "1"})


def test_columns_of_another_type_are_refused_unless_the_table_is_emptied(storage: Storage) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        check(storage, state(schema=schema(id="string")))
    assert caught.value.params["columns"] == ["id"]
    keyed = replace(STAGE, properties={"headrace.keys": '["id"]'})
    with pytest.raises(SchemaMismatchError, match="inferred from snapshots"):
        check(storage, state(schema=schema(id="string")), stage=keyed)


def test_keys_keep_their_type_and_histories_their_columns(storage: Storage) -> None:
    """The tables of deleted keys and of hidden events have these columns, too."""
    wide = replace(STAGE, properties={"delta.enableTypeWidening": "true"})
    held = schema(id="integer")
    assert check(storage, state(schema=held), stage=wide).alterations.widened == (("id", "BIGINT"),)
    merged = {"headrace.keys": '["id"]'}
    with pytest.raises(SchemaMismatchError) as caught:
        check(storage, state(schema=held, properties=merged), stage=wide)
    assert not any("let Delta widen" in one for one in caught.value.remedies)

    history = {**merged, "headrace.scd_type": "2"}
    renamed = replace(
        STAGE,
        table=replace(STAGE.table, renamed_columns={"cust": "customer"}),
        schema=schema(id="long", customer="string"),
        properties=history,
    )
    before, after = schema(id="long", cust="string"), schema(id="long", customer="string")
    with pytest.raises(SchemaMismatchError, match="keeps the history"):
        check(storage, state(schema=before, properties=history), stage=renamed)
    assert not check(storage, state(schema=after, properties=history), stage=renamed).alterations.renamed


def test_an_emptied_table_may_have_other_types(storage: Storage) -> None:
    assert not check(storage, state(schema=schema(id="string")), emptied=True).creates


def test_another_table_than_the_one_that_was_fed_is_left_alone(storage: Storage) -> None:
    write_generation(storage, table_id="another", batches=1)
    assert check(storage, state(schema=schema(id="string"))).alterations.is_empty
