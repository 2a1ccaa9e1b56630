"""Keys with several rows, and histories whose rows overlap, found in the data of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from headrace.model.counts import BatchCounts, HistoryChanges, sum_counts
from headrace.verify.delta_log import TableLog, TableMetadata
from headrace.verify.equations import RowCounts
from headrace.verify.keys import judge_keys
from headrace.verify.report import Judgement
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
        partition_columns=(),
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
