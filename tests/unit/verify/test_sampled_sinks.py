"""What is a finding if a table and its sink differ in a key, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest

from headrace.verify.sampled_sinks import _Comparison, _Source
from headrace.verify.sink_rows import Key, SinkRow, SinkRows

ROW = [1, "ada"]
SAME = SinkRow(values={"id": 1, "name": "ada"}, version=7)
NONE = SinkRow(values=None)


def compare(
    key: Key, rows: Sequence[list[Any]], row: SinkRow, *, needs: str | None = None, **more: bool
) -> tuple[list[str], str]:
    """The codes of the findings, and the reason why the key was not compared."""
    found = SinkRows(state={}, holder="cache", rows={}, columns=("id", "name"), needs=needs)
    kinds = {"id": "long", "name": "string"}
    facts = {"is_whole": True, "has_deletes": True, "is_moving": False, **more}
    source = _Source("customers", None, 7)
    comparison = _Comparison(source=source, found=found, kinds=kinds, compared={"name"}, **facts)
    comparison.take(key, list(rows), row)
    report = comparison.report(0)
    assert report.figures["keys"] == 1 - len(report.reasons)
    return [one.code for one in report.findings], ", ".join(report.reasons)


@pytest.mark.parametrize(
    ("rows", "row", "codes"),
    [
        ([ROW], SAME, []),
        ([], NONE, []),
        ([ROW], NONE, ["KEY_LOST"]),
        ([], SAME, ["KEY_EXTRA"]),
        ([[1, "Ada"]], SAME, ["ROW_STALE"]),
        ([[1, None]], SAME, ["ROW_STALE"]),
        ([ROW], SinkRow(values={}, version=7), ["ROW_STALE"]),
        # Without an unfinished batch, another writer has changed it.
        ([[1, "Ada"]], SinkRow(values=SAME.values, version=8), ["ROW_STALE"]),
    ],
)
def test_differences(rows: list[list[Any]], row: SinkRow, codes: list[str]) -> None:
    assert compare((1,), rows, row) == (codes, "")


def test_what_is_not_certain_is_no_finding() -> None:
    newer, gone = SinkRow(values=SAME.values, version=8), SinkRow(values=None, version=8)
    for row in (newer, gone):
        assert "not complete" in compare((1,), [[1, "Ada"]], row, is_moving=True)[1]
    assert compare((1,), [[1, "Ada"]], SAME, is_moving=True)[0] == ["ROW_STALE"]
    assert "began after" in compare((1,), [ROW], NONE, is_whole=False)[1]
    assert "changed keys" in compare((1,), [], SAME, has_deletes=False)[1]
    assert "several rows" in compare((1,), [ROW, ROW], SAME)[1]
    assert "Julian" in compare((date(1500, 1, 1),), [], SAME)[1]


def test_a_null_removes_the_key_of_a_column() -> None:
    assert compare((1,), [[1, None]], NONE, needs="name") == ([], "")
    assert compare((1,), [[1, None]], SAME, needs="name")[0] == ["KEY_EXTRA"]
    assert compare((1,), [ROW], NONE, needs="name")[0] == ["KEY_LOST"]
