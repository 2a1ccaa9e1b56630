"""Orphaned tables and replaced checkpoints: what is listed, what is removed, and what is refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from stores import At, on_disk

from headrace.declare.spec import load_project
from headrace.errors import StorageUnreadableError, TableInUseError, TableUnknownError
from headrace.maintain.holders import Pin, add_pin, remove_pins
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.project.engine import Engine
from headrace.project.maintenance import MaintenanceOptions, TableMaintenance
from headrace.project.orphans import find_orphaned, load_orphaned, remove_orphaned
from headrace.state.checkpoint import CheckpointIdentity, write_checkpoint
from headrace.storage.location import Location

ORDERS, OLD = TableName("default", "orders"), TableName("default", "old")


@pytest.fixture
def settings(at: At, tmp_path: Path) -> ProjectSettings:
    settings = load_project(text="name: shop\n", overrides={"storage": str(at(tmp_path))})
    storage = settings.storage
    for name in (ORDERS, OLD):
        add_checkpoint(settings, name, 1)
        for path in (storage.table(name), storage.quarantine(name)):
            write(path)
    return settings


def write(path: Location, **properties: str) -> None:
    """A table with one commit; `deltalake` refuses to set properties of others."""
    write_deltalake(on_disk(path), pa.table({"id": [1]}))
    commit = on_disk(path) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            held = {f"headrace.{name.replace('__', '.')}": value for name, value in properties.items()}
            line["metaData"]["configuration"] = {"headrace.pipeline": "shop", **held}
    commit.write_text("\n".join(map(json.dumps, lines)))


def add_checkpoint(settings: ProjectSettings, name: TableName, generation: int) -> str:
    identity = CheckpointIdentity(
        pipeline="shop", flow="feed", dataset=str(name), generation=generation, table_id="t1", sources=()
    )
    write_checkpoint(settings.storage.checkpoint(name, "feed", generation), identity, {})
    return identity.checkpoint


def refusing(read: Callable[[Location], Any], name: str) -> Callable[[Location], Any]:
    """Reads all files but one, as a store that refuses a request."""

    def or_refuse(file: Location) -> Any:
        if file.name == name:
            raise StorageUnreadableError("the store has failed")
        return read(file)

    return or_refuse


def test_tables_that_are_no_longer_declared_can_be_removed(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = settings.storage
    # The pipeline has not run since these records exist.
    assert find_orphaned(settings) == ()
    now = datetime.now(UTC)
    record: dict[str, object] = {"pipeline": "shop", "at": now.isoformat()}
    record |= {"tables": [["default", "orders"]], "places": {"default.orders": ["orders.sql", 1, 26, 6]}}
    # A run of this table alone has not recorded what the files declare since; another pipeline has no say.
    before = {**record, "at": (now - timedelta(hours=1)).isoformat()}
    for other in ({**record, "pipeline": "another"}, before):
        storage.last_plan(settings.home).replace_json(other)
        assert find_orphaned(settings) == ()
    # A failed run leaves no record; that of a topic does not say what the files declare.
    storage.last_plan(settings.home).delete()
    topic = {**record, "tables": [["default", "customers"]]}
    storage.last_plan(storage.root / "ingest").replace_json(topic)
    assert find_orphaned(settings) == ()
    # Topics are ingested one by one: the record of the last one lacks the tables of others.
    storage.last_plan(settings.home).replace_json(record)
    (storage.root / "ingest" / "old.json").create_json({"table": "old"})
    assert find_orphaned(settings) == ()
    # A table whose record cannot be read is not one to delete.
    for damaged in ("{", "[]", "{}"):
        (storage.root / "ingest" / "old.json").replace(damaged)
        assert find_orphaned(settings) == ()
    (storage.root / "ingest" / "old.json").replace_json({"table": "old"})
    with monkeypatch.context() as patch:
        patch.setattr(Location, "read_json", refusing(Location.read_json, "old.json"))
        assert find_orphaned(settings) == ()
        with pytest.raises(TableInUseError, match=r"a record in .*/ingest cannot be read"):
            remove_orphaned(settings, OLD, pytest.fail)
    assert storage.table(OLD).exists()
    (storage.root / "ingest" / "old.json").delete()
    assert find_orphaned(settings) == (OLD,)
    with pytest.raises(TableInUseError) as caught:
        remove_orphaned(settings, ORDERS, pytest.fail)
    assert "nothing was removed" in caught.value.facts
    assert str(caught.value.location) == "orders.sql:1:26" and "declares it" in caught.value.summary
    stranger = TableName("default", "stranger")
    write_deltalake(on_disk(storage.table(stranger)), pa.table({"id": [1]}))
    with pytest.raises(TableInUseError, match="this pipeline has not written it"):
        load_orphaned(settings, stranger)
    shutil.rmtree(on_disk(storage.table(stranger)))
    add_pin(storage, Pin(table=OLD, version=0, until=now + timedelta(days=1)))
    with pytest.raises(TableInUseError, match="the pin of version 0") as caught:
        load_orphaned(settings, OLD)
    assert caught.value.remedies == ("headrace pin old --remove --version 0",)
    remove_pins(storage, OLD, 0)
    found = remove_orphaned(settings, OLD, pytest.fail)
    assert len(found.folders) == 3 and found.size_bytes > 0
    left = [str(one) for one in Path(str(storage.root)).rglob("*old*") if one.suffix != ".json"]
    assert left == [str(storage.ledger(OLD, "x").parent)] or left == []
    assert storage.find_tables() == (ORDERS,)


def test_what_is_left_of_a_table_whose_folder_was_deleted_is_removed(settings: ProjectSettings) -> None:
    storage = settings.storage
    shutil.rmtree(on_disk(storage.table(OLD)))
    with pytest.raises(TableUnknownError):
        load_orphaned(settings, OLD)
    record = {"pipeline": "shop", "at": datetime.now(UTC).isoformat(), "places": {}}
    for declared in ("old", "orders"):
        storage.last_plan(settings.home).replace_json({**record, "tables": [["default", declared]]})
        if declared == "old":
            with pytest.raises(TableUnknownError):
                load_orphaned(settings, OLD)
    assert load_orphaned(settings, OLD).name == OLD
    found = remove_orphaned(settings, OLD, pytest.fail)
    assert storage.checkpoints(OLD) in found.folders and storage.quarantine(OLD) in found.folders
    assert not storage.checkpoints(OLD).exists() and storage.table(ORDERS).exists()
    with pytest.raises(TableUnknownError):
        load_orphaned(settings, OLD)


def test_an_interrupted_removal_is_repeated(
    settings: ProjectSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = settings.storage
    record = {"pipeline": "shop", "at": datetime.now(UTC).isoformat(), "tables": [["default", "orders"]]}
    storage.last_plan(settings.home).replace_json(record)
    (storage.table(OLD) / "_change_data").make_folder()
    calls = 0
    delete, delete_folder = Location.delete, Location.delete_folder

    def interrupted(original: Callable[[Location], None]) -> Callable[[Location], None]:
        def or_killed(path: Location) -> None:
            nonlocal calls
            calls += 1
            if calls == done + 1:
                raise KeyboardInterrupt
            original(path)

        return or_killed

    for done in range(100):
        calls = 0
        with monkeypatch.context() as patched:
            patched.setattr(Location, "delete", interrupted(delete))
            patched.setattr(Location, "delete_folder", interrupted(delete_folder))
            with contextlib.suppress(KeyboardInterrupt):
                remove_orphaned(settings, OLD, pytest.fail)
        if not storage.table(OLD).exists():
            break
        assert find_orphaned(settings) == (OLD,), done
    assert done > 3 and not storage.quarantine(OLD).exists()


def test_replaced_checkpoints_are_removed_after_the_retention(settings: ProjectSettings) -> None:
    storage = settings.storage
    newest = add_checkpoint(settings, ORDERS, 2)

    def keep(*, days: float, dry_run: bool = False) -> list[str]:
        chosen = load_project(
            text="name: shop\n",
            overrides={"storage": str(storage.root), "maintenance.log_retention": f"{days} days"},
        )
        options = MaintenanceOptions(steps=("checkpoints",), dry_run=dry_run)
        maintenance = TableMaintenance(settings=chosen, engine=cast("Engine", None), options=options)
        (result, _) = maintenance.maintain([ORDERS])
        assert result.warning is None
        return [line for line in result.lines() if "checkpoint 0001 of flow feed" in line]

    # The table does not name the new checkpoint yet: a process may be about to.
    assert keep(days=0) == []
    path = storage.table(ORDERS)
    path.delete_folder()
    write(path, checkpoint__feed=newest)
    assert keep(days=1) == []
    assert len(keep(days=0, dry_run=True)) == 1
    assert storage.flow_checkpoints(ORDERS, "feed").list_folders() == ["0001", "0002"]
    assert keep(days=0)[0].endswith("removed")
    assert storage.flow_checkpoints(ORDERS, "feed").list_folders() == ["0002"]
