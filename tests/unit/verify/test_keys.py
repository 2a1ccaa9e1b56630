"""Keys with several rows, and histories whose rows overlap, found in the data of a table."""

from __future__ import annotations

import decimal
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from headrace.model.counts import BatchCounts, HistoryChanges, sum_counts
from headrace.model.ranges import RecordCoordinates
from headrace.verify import sampled_keys
from headrace.verify.delta_log import TableLog, TableMetadata
from headrace.verify.equations import RowCounts
from headrace.verify.keys import judge_keys
from headrace.verify.reader import SourceRecord
from headrace.verify.report import Judgement
from headrace.verify.source_range import Spans
from headrace.verify.stored import StoredPath

PLAIN = pa.int64()
PARTS = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])


def codes(path: Path, rows: list[tuple[int, Any, Any]], kind: pa.DataType) -> list[str]:
    """The findings in a history with these keys, starts and ends."""
    names = ("id", "__START_AT", "__END_AT")
    schema = pa.schema([("id", pa.int64()), ("__START_AT", kind), ("__END_AT", kind)])
    records = [dict(zip(names, row, strict=True)) for row in rows]
    deltalake.write_deltalake(path, pa.Table.from_pylist(records, schema))
    table = deltalake.DeltaTable(path)
    metadata = TableMetadata(
        id="t",
        properties={"headrace.keys": '["ID"]', "headrace.scd_type": "2"},
        schema=table.schema().to_json(),
    )
    stored = StoredPath.at(str(path))
    log = TableLog(
        path=stored, version=0, metadata=metadata, commits=(), base={}, base_version=0, transactions={}
    )
    found = Judgement()
    assert judge_keys(stored, log, found) is None
    return [one.code for one in found.findings]


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([(1, 1, 5), (1, 5, None), (2, 3, 4), (2, 7, 9)], 0),
        ([(1, 1, None), (1, 5, None)], 1),
        ([(1, 1, 6), (1, 5, None), (2, 1, 2)], 1),
        ([(1, 5, 5)], 1),
        ([(1, 5, 4), (2, 1, 3), (2, 1, 4)], 2),
    ],
)
def test_rows_of_a_key_that_overlap_or_are_empty_are_found(
    tmp_path: Path, rows: list[tuple[int, int, int | None]], count: int
) -> None:
    assert codes(tmp_path / "plain", rows, PLAIN) == ["HISTORY_OVERLAPS"] * count

    def parts(value: int | None) -> dict[str, Any] | None:
        """Values with the same order: first by a number, then by a text, where NULL is the least."""
        return None if value is None else {"a": value // 5, "b": None if value % 5 == 0 else str(value % 5)}

    structs = [(key, parts(start), parts(end)) for key, start, end in rows]
    assert codes(tmp_path / "structs", structs, PARTS) == ["HISTORY_OVERLAPS"] * count


def test_the_rows_of_a_history_grow_by_those_that_are_added_and_removed() -> None:
    did = HistoryChanges(inserted=2, deleted=1, superseded=1, rows_added=3, rows_changed=4, rows_removed=1)
    counts = BatchCounts(input=4, accepted=4, kind="history", changes=did).to_json()
    for stated, times in ((counts, 1), (sum_counts({}, counts), 1), (sum_counts(counts, counts), 2)):
        found = RowCounts.parse(stated)
        assert (found.by_key, found.added, found.broken) == (True, 2 * times, [])
        assert found.text.endswith(f"{3 * times} rows added, {times} row{'s' if times > 1 else ''} removed")


def test_rows_of_sampled_keys_are_found_by_keys_of_every_type(tmp_path: Path) -> None:
    nested = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rows = pa.table(
        {
            "id": pa.array([{"a": 1, "b": None}, {"a": 2, "b": [None]}, {"a": 2, "b": []}], nested),
            "name": ["a", "b", "b"],
            "at": pa.array([at] * 3, pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.50")] * 3, pa.decimal128(10, 2)),
            "place": [{"value": n} for n in (4, 5, 6)],
        }
    )
    deltalake.write_deltalake(tmp_path / "t", rows)
    others = at, decimal.Decimal("1.5")
    wanted = {((1, None), "a", *others), ((2, (None,)), "b", *others), ((2, None), "b", *others)}
    columns = ["id", "name", "at", "price", "place"]
    found = sampled_keys._rows_of(StoredPath(str(tmp_path / "t")), None, columns, wanted)
    assert found == {((1, None), "a", *others): (4,), ((2, (None,)), "b", *others): (5,)}


def _judge_records(tmp_path: Path, lost: Any, tombstone_at: int | None) -> list[str]:
    """The findings of a sample of three keys of records; two of them have rows, the third one has not."""
    nested = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    kept = [{"a": 1, "b": None}, {"a": 2, "b": [None]}]

    def place(number: int) -> dict[str, Any]:
        return {"value": number, "partition": 0, "source": "t", "position": number}

    rows = {"id": pa.array(kept, nested), "_sequence": [place(0), place(1)]}
    deltalake.write_deltalake(tmp_path / "t", pa.table(rows))
    if tombstone_at is not None:
        dead = {
            "key_1": pa.array([lost], nested),
            "_sequence": [place(tombstone_at)],
            "_cdc_operation": ["delete"],
        }
        deltalake.write_deltalake(tmp_path / "dead", pa.table(dead))
    keys: list[sampled_keys.Key] = [((1, None),), ((2, (None,)),)]
    sample = {key: (at, 0, "t", at) for at, key in enumerate(keys)}
    kind = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": {"type": "array", "elementType": "long"}},
        ],
    }
    read = {("t", 0): Spans.of([(0, 3)])}
    coordinates = RecordCoordinates.of(topic="STRING", partition="INT", offset="BIGINT")
    records = sampled_keys._Records(sample, ["id"], [kind], {}, read, 10, coordinates, "Kafka")
    for offset, key in enumerate([*kept, lost]):
        value = json.dumps({"id": key, "at": offset}).encode()
        records.take(SourceRecord(("t", 0), offset, None, value, timestamp_ms=0))
    balance = SimpleNamespace(deltas={}, earlier=())
    evidence: Any = SimpleNamespace(log=SimpleNamespace(version=0), lineages=(), batches=(), balance=balance)
    held = sampled_keys._Held(
        evidence, StoredPath(str(tmp_path / "t")), StoredPath(str(tmp_path / "dead")), ["id"]
    )
    return [one.code for one in sampled_keys._compare(records, held).findings]


@pytest.mark.parametrize("lost", [{"b": [1]}, {"a": 2, "b": []}, {"a": None, "b": None}])
def test_a_key_of_a_record_has_a_row_or_a_tombstone_that_is_not_older(tmp_path: Path, lost: Any) -> None:
    lost = {"a": None, "b": None, **lost}
    assert _judge_records(tmp_path / "lost", lost, None) == ["KEY_LOST"]
    assert _judge_records(tmp_path / "deleted", lost, 2) == []
    assert _judge_records(tmp_path / "written again", lost, 1) == ["KEY_LOST"]
