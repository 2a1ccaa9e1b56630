"""Histories whose records come in order: the index names the current rows, and no other row is read."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import numpy as np
import pytest

from cdc_oracle import Change, history_rows
from cdc_table import create_table, history_target
from headrace.errors import KeyTwiceError
from headrace.model.counts import HistoryChanges
from headrace.model.names import KEPT_PROPERTY
from headrace.sinks.delta import key_events, placed_rows
from headrace.sinks.delta.folding import SharedTable
from headrace.sinks.delta.history import HistoryTarget
from headrace.sinks.delta.table_index import HistoryIndex
from integration.test_history import COLUMNS, TRACKED, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "id INT, value STRING, note STRING, __START_AT INT, __END_AT INT"


def table_at(spark: SparkSession, path: Path, *, layout: str = "", index_memory: int = 1 << 30) -> Table:
    create_table(spark, path, TABLE, layout)
    target = history_target(spark, path, TRACKED, index_memory)
    return Table(spark, path, COLUMNS, target)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Table:
    return table_at(spark, tmp_path / "t")


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many keys of each batch were in order, and how many had a late record."""
    found: list[tuple[int, int]] = []
    choose = key_events.chosen_in_order

    def chosen(*given: Any) -> Any:
        keys = choose(*given)
        found.append((int(keys.sum()), int((~keys).sum())))
        return keys

    monkeypatch.setattr(key_events, "chosen_in_order", chosen)
    return found


def batches_in_order(
    seed: int, *, keys: int, count: int, late: float, batches: int = 4
) -> Iterator[list[Change]]:
    """Batches whose records are newer than those of the batches before, but for some late ones."""
    choose = random.Random(seed)
    offset = 0
    for number in range(batches):
        batch = []
        for _ in range(count):
            is_late = choose.random() < late
            sequence = choose.randrange(10 * number + 1) if is_late else 10 * number + choose.randrange(10)
            operation = "delete" if choose.random() < 0.2 else "upsert"
            values = choose.choice("AAB"), choose.choice("xyz")
            batch.append(Change(offset, choose.randrange(keys), sequence, operation, *values))
            offset += 1
        yield batch


def forget_index(table: Table) -> None:
    """Let the next batch build the index, as after a restart."""
    assert isinstance(table.target, HistoryTarget)
    table.target = replace(table.target, shared=SharedTable())


@pytest.mark.parametrize("layout", [pytest.param("", marks=pytest.mark.thorough), "PARTITIONED BY (value)"])
def test_the_table_holds_the_history_of_each_key_with_and_without_late_records(
    spark: SparkSession, tmp_path: Path, ways: list[tuple[int, int]], layout: str
) -> None:
    table = table_at(spark, tmp_path / "t", layout=layout)
    applied: list[Change] = []
    for number, batch in enumerate(batches_in_order(1, keys=60, count=60, late=0.1)):
        if number == 2:
            forget_index(table)
        committed = table.apply(batch)
        assert committed is not None and committed.without_index is None
        before, applied = len(history_rows(applied)), applied + batch
        assert table.rows == history_rows(applied)
        did, target = committed.counts.changes, table.target
        assert isinstance(did, HistoryChanges) and isinstance(target, HistoryTarget)
        assert did.rows_added - did.rows_removed == len(table.rows) - before
        assert committed.counts.accepted == did.inserted + did.updated + did.deleted + did.superseded
        assert target.shared.index is not None and target.shared.index.version == committed.version
    assert ways[0][1] == 0
    assert all(in_order > late > 0 for in_order, late in ways[1:]), "both ways in one batch"


def _equal_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_events, "is_newer", lambda known, oldest, newest: ~known | (oldest >= newest))


def _all_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_events, "is_newer", lambda known, *_: np.ones_like(known))


def _old_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = placed_rows.mask_rows
    monkeypatch.setattr(placed_rows, "mask_rows", lambda *given: mask(*given[:3], given[3][:0]))


def _hidden_events_are_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryIndex, "_read_tombstones", lambda *_: None)


def _every_change_begins_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions as F

    monkeypatch.setattr(key_events, "tracked_values", lambda *_: F.rand())


def _no_hidden_events(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = key_events.hidden_of
    monkeypatch.setattr(key_events, "hidden_of", lambda changes, keys: hidden(changes, keys).where("false"))


@pytest.mark.parametrize(
    "plant",
    [
        None,
        _equal_is_newer,
        _all_is_newer,
        _old_rows_stay,
        _hidden_events_are_not_indexed,
        _every_change_begins_a_row,
        _no_hidden_events,
    ],
)
def test_the_oracle_finds_a_planted_mistake(
    table: Table, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    if plant is not None:
        plant(monkeypatch)
    offsets = itertools.count()

    def upsert(key: int, sequence: int, value: str, note: str = "") -> Change:
        return Change(next(offsets), key, sequence, "upsert", value, note)

    def delete(key: int, sequence: int) -> Change:
        return Change(next(offsets), key, sequence, "delete")

    batches = [
        [*(upsert(key, 10, "A", "first") for key in (1, 2, 3)), delete(4, 20)],
        # In order; equal to the sequence of the row; in place; older than the delete.
        [upsert(1, 20, "B"), upsert(2, 10, "B"), upsert(3, 20, "A", "last"), upsert(4, 15, "A")]
        + [upsert(key, 20, "C") for key in range(10, 15)],
        [upsert(3, 15, "B"), upsert(1, 30, "C"), upsert(10, 30, "C")],
    ]
    try:
        for batch in batches:
            forget_index(table)
            table.apply(batch)
    except KeyTwiceError:
        assert plant is _old_rows_stay
        return
    found = table.select('id, "__START_AT", "__END_AT", value, note')
    expected = [astuple(one) for one in history_rows([one for batch in batches for one in batch])]
    assert (Counter(found) == Counter(expected)) == (plant is None)


def test_a_wrong_index_leads_to_the_slow_way(table: Table, ways: list[tuple[int, int]]) -> None:
    first = [Change(n, n, 10, "upsert", "A") for n in range(20)]
    table.apply(first)
    target = table.target
    assert isinstance(target, HistoryTarget) and target.shared.index is not None
    for part in (target.shared.index._entries._large, target.shared.index._entries._small):
        part.position[:] = part.position.min(initial=0) if not len(part) else part.position[0]
    second = [Change(100 + n, n, 20, "upsert", "B") for n in range(0, 20, 2)]
    committed = table.apply(second)
    assert committed is not None and committed.without_index is not None
    assert table.rows == history_rows([*first, *second])
    third = [Change(200 + n, n, 30, "upsert", "C") for n in range(20)]
    committed = table.apply(third)
    assert committed is not None and committed.without_index is None
    assert table.rows == history_rows([*first, *second, *third])
    assert ways == [(20, 0), (10, 0), (20, 0)]


def _append(table: Table, name: str) -> None:
    table.spark.sql(
        f"INSERT INTO {name} (id, value, __START_AT) VALUES (900, 'foreign', 55), (901, 'no start', NULL)"
    )
    table.spark.sql(f"INSERT INTO {name} (id, value, __START_AT, __END_AT) VALUES (902, 'ended', 1, 70)")


def _optimize(table: Table, name: str) -> None:
    table.spark.sql(f"OPTIMIZE {name}")


def _delete(table: Table, name: str) -> None:
    table.spark.sql(f"DELETE FROM {name} WHERE id < 15 AND __END_AT IS NULL OR id > 25")


def _restore(table: Table, name: str) -> None:
    table.spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {deltalake.DeltaTable(table.path).version() - 1}")


def _set_property(table: Table, name: str) -> None:
    table.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('a' = 'b')")


def test_the_index_follows_the_commits_of_others(
    spark: SparkSession, tmp_path: Path, ways: list[tuple[int, int]]
) -> None:
    with_index, without = (
        table_at(spark, tmp_path / name, index_memory=memory) for name, memory in (("i", 1 << 30), ("p", 0))
    )
    # Hidden events are not restored: the ways differ where the batch that is undone has added one to a key.
    others = (_restore, _append, _optimize, _delete, _set_property)
    first, second, *batches = batches_in_order(7, keys=40, count=40, late=0.1, batches=2 + len(others))
    batches[1] += [Change(9_000 + key, key, 60, "upsert", "B") for key in (900, 901, 902)]
    for table in (with_index, without):
        table.apply(first)
        table.apply(second)
    for change, batch in zip(others, batches, strict=True):
        for table in (with_index, without):
            change(table, f"delta.`{table.path}`")
            table.apply(batch)
        assert with_index.rows == without.rows, change
    assert len(ways) == 2 + len(others) and all(in_order > late for in_order, late in ways)


def test_the_end_of_a_row_counts_after_its_delete_was_collected(table: Table) -> None:
    table.apply([Change(0, 1, 10, "upsert", "A")])
    table.apply([Change(1, 1, 30, "delete")])
    assert isinstance(table.target, HistoryTarget)
    table.target.tombstones.collect(table.spark, {KEPT_PROPERTY: "-1"})
    forget_index(table)
    table.apply([Change(2, 1, 20, "upsert", "B")])
    changes: Sequence[Change] = [
        Change(0, 1, 10, "upsert", "A"),
        Change(1, 1, 30, "delete"),
        Change(2, 1, 20, "upsert", "B"),
    ]
    assert table.rows == history_rows(changes)
