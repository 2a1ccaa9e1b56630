"""The damaged file of a Delta log, found after a reader has failed."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from stores import object_location

from headrace.errors import LogUnreadableError
from headrace.observe.read import read_rows
from headrace.plan.stored import load_stored_at
from headrace.storage.layout import KINDS, locate
from headrace.storage.location import Location
from headrace.storage.log_damage import data_file_faults, find_damage, find_damage_named, naming_damage
from headrace.storage.table_log import load_commit
from headrace.storage.table_snapshot import load_snapshot
from headrace.verify import delta_log
from headrace.verify.stored import StoredPath

ODD = "odd \u2028 \u2029 \x85 text"


@pytest.fixture
def table(tmp_path: Path) -> Location:
    """A table of three versions, with a checkpoint, whose commits have odd characters in their texts."""
    path = tmp_path / "lake" / "tables" / "default" / "orders"
    for number in range(3):
        deltalake.write_deltalake(path, pa.table({"id": [number]}), mode="append", description=ODD)
    first = path / "_delta_log" / f"{0:020d}.json"
    info = json.dumps({"commitInfo": {"timestamp": 1, "userMetadata": ODD}}, ensure_ascii=False)
    first.write_text(f"{first.read_text()}\n{info}\n", encoding="utf-8")
    deltalake.DeltaTable(path).create_checkpoint()
    return locate(str(path))


def file(table: Location, name: str) -> Path:
    return Path(table.path) / "_delta_log" / name


def damage(table: Location) -> LogUnreadableError:
    found = find_damage(table)
    assert found is not None
    return found


def test_a_healthy_log_is_never_called_damaged(table: Location, tmp_path: Path) -> None:
    assert find_damage(table) is None
    assert find_damage(locate(str(tmp_path / "nowhere"))) is None
    with file(table, f"{0:020d}.json").open("a") as commit:
        commit.write("\n")
    assert load_commit(table, 0).version == 0, "a blank line at the end is no damage"
    stored = StoredPath.at(table.path)
    assert delta_log.load_commit(stored, 0).user_metadata == ODD


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"garbage\n", "is not JSON in line 1: 'garbage'"),
        (b'{"add": {}}\n{"commitInfo": {"tim', "is not JSON in line 2"),
        (b"\x00\xff\xfe", "is not JSON in line 1"),
        (b"\x00" * 99, "is not JSON in line 1"),
    ],
)
def test_a_commit_that_is_not_json_is_named_with_its_line(table: Location, data: bytes, fault: str) -> None:
    name = f"{1:020d}.json"
    file(table, name).write_bytes(data)
    error = damage(table)
    assert error.summary == "the log of the table orders is damaged at v1"
    assert f"{name} {fault}" in error.facts[0]
    assert "\\x00" not in error.summary
    assert error.params["path"] == str(file(table, name))
    assert error.remedies[1:] == (
        "or, if its sources still have all records, move the table out of the storage:   "
        f"{shlex.join(['mv', table.path, 'orders-damaged'])}",
        "then compute it again:   headrace full-refresh orders",
    )


def test_a_damaged_data_file_is_named_without_the_layers_of_its_reader() -> None:
    layers = "External error: Parquet error: Parquet error: Failed to fetch metadata for file "
    text = f"{layers}lake/tables/x/a.snappy.parquet: Object Store error: Requested range was bad"
    assert data_file_faults(f"{text}\nmore") == ("its file a.snappy.parquet: Requested range was bad",)
    assert data_file_faults("Something else: broke\nand\nmore") == ("Something else: broke", "and")


def test_a_torn_checkpoint_is_named(table: Location) -> None:
    (checkpoint,) = Path(table.path).glob("_delta_log/*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-20])
    assert f"{checkpoint.name} is not a whole Parquet file" in damage(table).facts[0]
    with pytest.raises(LogUnreadableError, match="is not a whole Parquet file"):
        load_stored_at(table)


def test_a_reader_of_commits_names_the_file(table: Location) -> None:
    file(table, f"{2:020d}.json").write_bytes(b'{"commitInfo": {"tim')
    with pytest.raises(LogUnreadableError, match=r"00002\.json cannot be read"):
        load_commit(table, 2)
    for checkpoint in Path(table.path).glob("_delta_log/*checkpoint*"):
        checkpoint.unlink()
    for data, fault in ((b"\x00\xff\xfe", "is not text"), (b"", "is empty"), (b"\n\n", "is empty")):
        file(table, f"{2:020d}.json").write_bytes(data)
        for read in (partial(load_commit, table, 2), partial(load_snapshot, table)):
            with pytest.raises(LogUnreadableError, match=fault):
                read()
    with pytest.raises(LogUnreadableError, match="is empty"), naming_damage(table):
        raise OSError("Delta cannot read it")


def test_rows_are_not_read_without_those_of_an_empty_commit(table: Location) -> None:
    file(table, f"{2:020d}.json").write_bytes(b"")
    assert read_rows(table).arrow.num_rows == 3, "a checkpoint has the rows"
    for checkpoint in Path(table.path).glob("_delta_log/*checkpoint*"):
        checkpoint.unlink()
    with pytest.raises(LogUnreadableError, match="is empty"):
        read_rows(table)


def test_a_failure_can_name_a_log_on_an_object_store(
    table: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = object_location(Path(table.path))
    monkeypatch.setitem(KINDS, stored.files.scheme, lambda _: stored.files)
    file(table, f"{1:020d}.json").write_bytes(b"garbage")
    text = f"java.io.IOException: cannot read {stored}/_delta_log/00000000000000000001.json"
    found = find_damage_named(text)
    assert found is not None and found.params["table"] == str(stored)
    assert not any(" mv /" in one for one in found.remedies), "the tool of the store, not mv"
    assert find_damage_named(text.replace("orders", "sales")) is None


def test_only_the_log_that_a_failure_names_is_looked_at(table: Location) -> None:
    file(table, f"{1:020d}.json").write_bytes(b"garbage")
    log = f"{table.path}/_delta_log"
    for text in (f"cannot read file:{log}/00000000000000000001.json", f"`{log}`", f"in file://{log}: gone"):
        assert find_damage_named(text) is not None
    spaced = Path(table.path).parent.parent / "my tables"
    spaced.mkdir()
    log = Path(table.path).rename(spaced / "orders") / "_delta_log"
    for text in (
        f"cannot read file:{log}/00000000000000000001.json",
        f"a\n{log.as_uri()}",
        f"/{'x' * 300}/ '{log}'",
    ):
        assert find_damage_named(text) is not None, "a path can have spaces"
    other = table.path.replace("orders", "sales")
    assert find_damage_named(f"cannot read {other}/_delta_log/00000000000000000001.json") is None
    assert find_damage_named("no table at all") is None
