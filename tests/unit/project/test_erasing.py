"""What an erasure reports."""

from __future__ import annotations

from datetime import UTC, datetime

from checked_json import check_data
from headrace.model.names import TableName
from headrace.project.erasing import ErasurePlan

DONE = ErasurePlan(
    table=TableName("default", "orders"),
    where="customer = 'ada'",
    steps=(),
    notes=("orders  another process runs flow orders",),
    final_at=datetime(2026, 1, 1, tzinfo=UTC),
    unchecked=("orders",),
)


def test_tables_whose_files_could_not_be_checked_are_not_called_clean() -> None:
    first, second = DONE.final_lines()
    assert first.endswith(": orders") and "can still have the rows" in second
    assert DONE.to_json()["unchecked"] == ["orders"]
    check_data("erase", {"done": True, **DONE.to_json()})
